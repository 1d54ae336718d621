//! User memory as the engine sees it: where it is, how its bytes are laid out, where it lives.

use cableway_common_cuda::Location;

/// A user's buffer: what is sent, or where to receive to.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    address: *mut u8,
    len: u64,
}

impl Buffer {
    /// No bytes.
    pub const EMPTY: Buffer = Buffer { address: std::ptr::null_mut(), len: 0 };

    /// `len` bytes one after another. `address` is host or device memory and is not looked at if `len` is 0. For a
    /// send the bytes are only read.
    #[inline]
    pub fn bytes(address: *const u8, len: u64) -> Self {
        Buffer { address: address.cast_mut(), len }
    }

    /// Packed length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A classified buffer, as kept by requests and transfers.
pub(crate) struct Span {
    pub(crate) address: *mut u8,
    pub(crate) len: u64,
    pub(crate) location: Location,
}

impl Span {
    pub(crate) const EMPTY: Span = Span { address: std::ptr::null_mut(), len: 0, location: Location::HOST };
}
