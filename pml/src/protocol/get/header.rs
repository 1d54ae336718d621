//! The header of a GET.

use cableway_btl::MAX_HEADER;
use memoffset::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use crate::protocol::rendezvous::{Announced, FLAG_ADDRESSABLE, FLAG_ON_DEVICE, FLAG_PAGE_LOCKED, RendezvousLayout};
use crate::wire::{Envelope, Exposed, ExposedFields, Header, HeaderBuffer, Malformed, Reader, kind, layouts};

/// Sender to receiver: an announcement with a remote key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Get {
    pub(crate) envelope: Envelope,
    pub(crate) announced: Announced,
    pub(crate) from: Exposed,
}

layouts! {
    /// The handle's bytes follow.
    GetLayout { rendezvous: RendezvousLayout, btl: U32, ordinal: u8, handle_len: u8, zero: U16 }
}

const LEN: usize = size_of::<GetLayout>();

const _: () = {
    assert!(LEN == 40 && offset_of!(GetLayout, btl) == 32 && offset_of!(GetLayout, handle_len) == 37);
    assert!(LEN + Exposed::MAX <= MAX_HEADER);
};

impl Header for Get {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let GetLayout { rendezvous, btl, ordinal, handle_len, zero } = reader.read()?;
        let flags = rendezvous.matching.flags;
        reader.flags(flags, FLAG_ADDRESSABLE | FLAG_ON_DEVICE | FLAG_PAGE_LOCKED | Exposed::FLAG_BLOCKS)?;
        reader.reserved(&zero)?;
        let (envelope, announced) = rendezvous.announced()?;
        let blocks = (flags & Exposed::FLAG_BLOCKS != 0).then_some(announced.len);
        let from = Exposed::parse(reader, LEN, &ExposedFields { btl, ordinal, handle_len, blocks })?;
        Ok(Get { envelope, announced, from })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        let Get { envelope, announced, from } = self;
        let mut rendezvous = RendezvousLayout::new(kind::GET, envelope, announced);
        rendezvous.matching.flags |= from.flags();
        let (btl, ordinal, handle_len) = (from.btl.0.into(), from.ordinal, from.handle_len());
        out.push(GetLayout { rendezvous, btl, ordinal, handle_len, zero: 0.into() }.as_bytes());
        from.append_to(out);
    }
}
