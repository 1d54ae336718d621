//! The header of an invitation.

use cableway_btl::{MAX_HEADER, Offer, RemoteHandle};
use memoffset::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::wire::{
    Envelope, Exposed, ExposedFields, Header, HeaderBuffer, Id, Malformed, MatchLayout, Reader, kind, layouts,
};

/// Receiver to sender: store this message here, if it is announced as invitable. It answers an announcement that may
/// not have been sent yet. The receiver knows the message of a receive in advance if no other receive fits that
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invite {
    /// The message's envelope. The tag may be [`ANY`](crate::ANY).
    pub(crate) envelope: Envelope,
    pub(crate) receiver: Id,
    /// Length of the receive buffer in bytes.
    pub(crate) len: u64,
    /// The offer that the sender must claim first. The receiver may have cancelled the receive, or requested the data
    /// in another way.
    pub(crate) offer: Offer,
    /// The receive buffer, which has no blocks.
    pub(crate) to: Exposed,
}

layouts! {
    /// The handle's bytes follow.
    InviteLayout {
        matching: MatchLayout, receiver: U64, len: U64, offer: U64, btl: U32, ordinal: u8, handle_len: u8, zero: U16,
    }
}

const LEN: usize = size_of::<InviteLayout>();

const _: () = {
    assert!(LEN == 48 && offset_of!(InviteLayout, offer) == 32 && offset_of!(InviteLayout, btl) == 40);
    assert!(LEN + RemoteHandle::MAX <= MAX_HEADER);
};

impl Header for Invite {
    const KIND: u8 = kind::INVITE;

    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let InviteLayout { matching, receiver, len, offer, btl, ordinal, handle_len, zero } = reader.read()?;
        reader.unused(matching.flags, &zero)?;
        let to = Exposed::parse(reader, LEN, &ExposedFields { btl, ordinal, handle_len, blocks: None })?;
        let (receiver, offer) = (Id(receiver.get()), Offer(offer.get()));
        Ok(Invite { envelope: matching.pattern(), receiver, len: len.get(), offer, to })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        let layout = InviteLayout {
            matching: MatchLayout::new(Self::KIND, 0, &self.envelope),
            receiver: self.receiver.0.into(),
            len: self.len.into(),
            offer: self.offer.0.into(),
            btl: self.to.btl.0.into(),
            ordinal: self.to.ordinal,
            handle_len: self.to.handle_len(),
            zero: 0.into(),
        };
        out.push(layout.as_bytes());
        self.to.append_to(out);
    }
}
