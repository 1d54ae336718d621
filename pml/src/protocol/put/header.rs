//! Headers of a PUT.

use cableway_btl::{MAX_HEADER, Offer};
use memoffset::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::abort::Abort;
use crate::wire::{Exposed, ExposedFields, Header, HeaderBuffer, Id, Malformed, Reader, flag, kind, layouts};

/// Receiver to sender: store the range here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    pub(crate) sender: Id,
    pub(crate) receiver: Id,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes that the receiver requests in all, by this and other headers.
    pub(crate) total: u64,
    pub(crate) to: Exposed,
    /// An offer that the sender must claim first. The receiver may have withdrawn it to fetch the range itself.
    pub(crate) offer: Option<Offer>,
}

/// Sender to receiver: FIN of a PUT. `Err`: the range could not be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PutFin {
    pub(crate) receiver: Id,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) result: Result<(), Abort>,
}

layouts! {
    /// The handle's bytes follow.
    PutLayout {
        kind: u8, flags: u8, ordinal: u8, handle_len: u8, btl: U32,
        sender: U64, receiver: U64, offset: U64, len: U64, total: U64, offer: U64,
    }
    PutFinLayout { kind: u8, flags: u8, zero: U16, code: U32, receiver: U64, offset: U64, len: U64 }
}

const LEN: usize = size_of::<PutLayout>();

const _: () = {
    assert!(LEN == 56 && offset_of!(PutLayout, btl) == 4 && offset_of!(PutLayout, total) == 40);
    assert!(offset_of!(PutLayout, offer) == 48);
    assert!(LEN + Exposed::MAX <= MAX_HEADER);
    assert!(size_of::<PutFinLayout>() == 32 && offset_of!(PutFinLayout, offset) == 16);
    assert!(offset_of!(PutFinLayout, len) == 24);
};

/// The sender must claim an offer first.
const FLAG_OFFERED: u8 = 4;
const _: () = assert!(FLAG_OFFERED & Exposed::FLAG_BLOCKS == 0);

impl Header for Put {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let PutLayout { flags, ordinal, handle_len, btl, sender, receiver, offset, len, total, offer, .. } =
            reader.read()?;
        reader.flags(flags, Exposed::FLAG_BLOCKS | FLAG_OFFERED)?;
        let offered = flags & FLAG_OFFERED != 0;
        if !offered {
            reader.reserved(&offer)?;
        }
        let (offset, len, total) = (offset.get(), len.get(), total.get());
        reader.range(offset, len, total)?;
        let blocks = (flags & Exposed::FLAG_BLOCKS != 0).then_some(len);
        let to = Exposed::parse(reader, LEN, &ExposedFields { btl, ordinal, handle_len, blocks })?;
        // One operation stores all blocks.
        if to.blocks.is_some() && offset != 0 {
            return Err(Malformed::Range { from: offset, to: offset + len, total });
        }
        let (sender, receiver) = (Id(sender.get()), Id(receiver.get()));
        Ok(Put { sender, receiver, offset, len, total, to, offer: offered.then_some(Offer(offer.get())) })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        let layout = PutLayout {
            kind: kind::PUT,
            flags: self.to.flags() | flag(self.offer.is_some(), FLAG_OFFERED),
            ordinal: self.to.ordinal,
            handle_len: self.to.handle_len(),
            btl: self.to.btl.0.into(),
            sender: self.sender.0.into(),
            receiver: self.receiver.0.into(),
            offset: self.offset.into(),
            len: self.len.into(),
            total: self.total.into(),
            offer: self.offer.map_or(0, |offer| offer.0).into(),
        };
        out.push(layout.as_bytes());
        self.to.append_to(out);
    }
}

impl Header for PutFin {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let PutFinLayout { flags, zero, code, receiver, offset, len, .. } = reader.read_all()?;
        reader.unused(flags, &zero)?;
        let (offset, len) = (offset.get(), len.get());
        reader.range(offset, len, u64::MAX)?;
        Ok(PutFin { receiver: Id(receiver.get()), offset, len, result: Abort::result(code.get()) })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        let layout = PutFinLayout {
            kind: kind::PUT_FIN,
            flags: 0,
            zero: 0.into(),
            code: Abort::code_of(self.result).into(),
            receiver: self.receiver.0.into(),
            offset: self.offset.into(),
            len: self.len.into(),
        };
        out.push(layout.as_bytes());
    }
}
