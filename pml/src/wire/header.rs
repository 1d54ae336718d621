//! What every header implements, and its bytes.

use cableway_btl::MAX_HEADER;

use super::reader::{Malformed, Reader};

/// A checked header.
pub(crate) trait Header: Sized {
    /// Parses a header of this kind.
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed>;

    fn encode(&self, out: &mut HeaderBuffer);
}

/// The bytes of a header.
#[derive(Clone, Copy)]
pub(crate) struct HeaderBuffer {
    bytes: [u8; MAX_HEADER],
    len: usize,
}

impl HeaderBuffer {
    /// Encodes `header`.
    pub(crate) fn new(header: &impl Header) -> Self {
        let mut out = HeaderBuffer { bytes: [0; MAX_HEADER], len: 0 };
        header.encode(&mut out);
        out
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Returns a flag's bit if it is set.
#[inline]
pub(crate) fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

/// Declares the layouts of headers.
macro_rules! layouts {
    ($( $(#[$doc:meta])* $name:ident { $( $field:ident: $type:ty ),+ $(,)? } )+) => {
        $( $(#[$doc])* #[derive(
            Clone,
            Copy,
            Debug,
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::KnownLayout,
            zerocopy::Immutable,
            zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub(crate) struct $name { $( pub(crate) $field: $type ),+ } )+
    };
}
pub(crate) use layouts;
