//! Byte layouts of headers, and their encoding.

use std::mem::size_of;

use cableway_btl::{MAX_HEADER, RemoteHandle};
use cableway_common_cuda::Strided;
use memoffset::offset_of;
use zerocopy::little_endian::{I32, I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::message::{Ack, Announced, Envelope, Exposed, Header, Invite, Put};
use crate::error::Abort;
use crate::status::ANY;

/// Length of the header of an eager message.
pub(crate) const MATCH_LEN: usize = size_of::<Match>();
/// Length of the header of a fragment.
pub(crate) const FRAGMENT_LEN: usize = size_of::<Fragment>();
/// Length of the header that announces a message.
pub(crate) const RENDEZVOUS_LEN: usize = size_of::<Rendezvous>();

/// The first byte of every header.
pub(super) mod kind {
    pub(crate) const MATCH: u8 = 1;
    pub(crate) const RENDEZVOUS: u8 = 2;
    pub(crate) const GET: u8 = 3;
    pub(crate) const ACK: u8 = 4;
    pub(crate) const PUT: u8 = 5;
    pub(crate) const FRAGMENT: u8 = 6;
    pub(crate) const FIN: u8 = 7;
    pub(crate) const PUT_FIN: u8 = 8;
    pub(crate) const CREDIT: u8 = 9;
    pub(crate) const ABORT: u8 = 10;
    pub(crate) const RESUME: u8 = 11;
    // Messages of several headers: see `batch`.
    pub(crate) const PUTS: u8 = 12;
    pub(crate) const PUT_FINS: u8 = 13;
    pub(crate) const FINS: u8 = 14;
    pub(crate) const INVITE: u8 = 15;
}

/// In `Rendezvous` and `Get`: the sender can PUT from its buffer.
pub(super) const FLAG_ADDRESSABLE: u8 = 1;
/// In `Rendezvous`: the sender packs, and can PUT only into one run of device memory. Only with `FLAG_ADDRESSABLE`.
pub(super) const FLAG_PACKS: u8 = 4;
/// In `Rendezvous`: the sender accepts an invitation as the answer. Only with `FLAG_ADDRESSABLE`, never with
/// `FLAG_PACKS`.
pub(super) const FLAG_INVITABLE: u8 = 8;
/// In `Get` and `Put`: blocks follow the handle.
pub(super) const FLAG_BLOCKS: u8 = 2;
/// In `Ack`: the receiver's buffer is on a device.
pub(super) const FLAG_TO_DEVICE: u8 = 1;
/// In `Ack`: the sender must claim an offer first.
pub(super) const FLAG_OFFERED: u8 = 2;

macro_rules! headers {
    ($( $(#[$doc:meta])* $name:ident { $( $field:ident: $type:ty ),+ $(,)? } )+) => {
        $( $(#[$doc])* #[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub(super) struct $name { $( pub(super) $field: $type ),+ } )+
    };
}

headers! {
    Match { kind: u8, flags: u8, epoch: U16, context: U32, tag: I32, seq: U32 }
    Rendezvous { matching: Match, len: U64, sender: U64 }
    /// The handle's bytes follow.
    Get { rendezvous: Rendezvous, btl: U32, ordinal: u8, handle_len: u8, zero: U16 }
    AckHeader { kind: u8, flags: u8, zero: [u8; 6], sender: U64, receiver: U64, from: U64, to: U64, total: U64, offer: U64 }
    /// The handle's bytes follow.
    PutHeader {
        kind: u8, flags: u8, ordinal: u8, handle_len: u8, btl: U32,
        sender: U64, receiver: U64, offset: U64, len: U64, total: U64,
    }
    /// Follows a handle if the data is in blocks at regular distances, with counts and strides of three dimensions.
    Blocks { offset: I64, block: U64, counts: [U64; 3], strides: [I64; 3] }
    Fragment { kind: u8, flags: u8, zero: [u8; 6], receiver: U64, offset: U64 }
    Fin { kind: u8, flags: u8, zero: U16, code: U32, sender: U64 }
    PutFin { kind: u8, flags: u8, zero: U16, code: U32, receiver: U64, offset: U64, len: U64 }
    Credit { kind: u8, flags: u8, zero: [u8; 6], consumed: U64 }
    AbortHeader { kind: u8, flags: u8, zero: U16, code: U32, receiver: U64, sent: U64 }
    Resume { kind: u8, flags: u8, zero: U16, btl: U32, received: U64 }
    /// The handle's bytes follow.
    InviteHeader {
        matching: Match, receiver: U64, len: U64, offer: U64, btl: U32, ordinal: u8, handle_len: u8, zero: U16,
    }
}

const _: () = {
    assert!(size_of::<Match>() == 16 && offset_of!(Match, context) == 4 && offset_of!(Match, seq) == 12);
    assert!(size_of::<Rendezvous>() == 32 && offset_of!(Rendezvous, len) == 16 && offset_of!(Rendezvous, sender) == 24);
    assert!(size_of::<Get>() == 40 && offset_of!(Get, btl) == 32 && offset_of!(Get, handle_len) == 37);
    assert!(size_of::<AckHeader>() == 56 && offset_of!(AckHeader, sender) == 8 && offset_of!(AckHeader, offer) == 48);
    assert!(size_of::<PutHeader>() == 48 && offset_of!(PutHeader, btl) == 4 && offset_of!(PutHeader, total) == 40);
    assert!(size_of::<Fragment>() == 24 && offset_of!(Fragment, receiver) == 8 && offset_of!(Fragment, offset) == 16);
    assert!(size_of::<Fin>() == 16 && offset_of!(Fin, code) == 4 && offset_of!(Fin, sender) == 8);
    assert!(size_of::<PutFin>() == 32 && offset_of!(PutFin, offset) == 16 && offset_of!(PutFin, len) == 24);
    assert!(size_of::<Credit>() == 16 && offset_of!(Credit, consumed) == 8);
    assert!(size_of::<AbortHeader>() == 24 && offset_of!(AbortHeader, sent) == 16);
    assert!(size_of::<Resume>() == 16 && offset_of!(Resume, btl) == 4 && offset_of!(Resume, received) == 8);
    assert!(size_of::<InviteHeader>() == 48 && offset_of!(InviteHeader, offer) == 32);
    assert!(offset_of!(InviteHeader, btl) == 40 && size_of::<InviteHeader>() + RemoteHandle::MAX <= MAX_HEADER);
    assert!(size_of::<Blocks>() == 64 && offset_of!(Blocks, counts) == 16 && offset_of!(Blocks, strides) == 40);
    let handle = RemoteHandle::MAX + size_of::<Blocks>();
    assert!(size_of::<PutHeader>() + handle <= MAX_HEADER && size_of::<Get>() + handle <= MAX_HEADER);
};

impl Match {
    #[inline]
    pub(super) fn new(kind: u8, flags: u8, envelope: &Envelope) -> Self {
        let Envelope { context, epoch, tag, seq } = *envelope;
        Match { kind, flags, epoch: epoch.into(), context: context.into(), tag: tag.into(), seq: seq.into() }
    }

    #[inline]
    pub(super) fn envelope(&self) -> Envelope {
        Envelope { context: self.context.get(), epoch: self.epoch.get(), tag: self.tag.get(), seq: self.seq.get() }
    }
}

/// Encodes an eager message's header. This is on the fast path, so it assembles the bytes in registers: a copy of bytes
/// that were just stored one by one would wait for those stores.
#[inline]
pub(crate) fn match_bytes(envelope: &Envelope) -> [u8; size_of::<Match>()] {
    let &Envelope { context, epoch, tag, seq } = envelope;
    let first = u64::from(kind::MATCH) | u64::from(epoch) << 16 | u64::from(context) << 32;
    let second = u64::from(tag.cast_unsigned()) | u64::from(seq) << 32;
    zerocopy::transmute!([first.to_le(), second.to_le()])
}

/// Encodes the header that announces a message, also in registers.
#[inline]
pub(crate) fn rendezvous_bytes(envelope: &Envelope, announced: &Announced) -> [u8; size_of::<Rendezvous>()] {
    zerocopy::transmute!(rendezvous(kind::RENDEZVOUS, envelope, announced))
}

/// Returns the envelope of an eager message if the little-endian words are the header of one.
#[inline]
pub(crate) fn match_envelope([first, second]: [u64; 2]) -> Option<Envelope> {
    const KIND_AND_FLAGS: u64 = 0xffff;
    let tag = (second as u32).cast_signed();
    let envelope =
        Envelope { context: (first >> 32) as u32, epoch: (first >> 16) as u16, tag, seq: (second >> 32) as u32 };
    (first & KIND_AND_FLAGS == u64::from(kind::MATCH) && tag != ANY).then_some(envelope)
}

/// The bytes of a header.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    bytes: [u8; MAX_HEADER],
    len: usize,
}

impl Buffer {
    /// Encodes `header`.
    pub(crate) fn new(header: &Header) -> Self {
        let mut out = Buffer { bytes: [0; MAX_HEADER], len: 0 };
        out.write(header);
        out
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn push_blocks(&mut self, blocks: Option<Strided>) {
        let Some(Strided { offset, block, dimensions }) = blocks else { return };
        let (counts, strides) = (dimensions.map(|of| of.0.into()), dimensions.map(|of| of.1.into()));
        self.push(Blocks { offset: offset.into(), block: block.into(), counts, strides }.as_bytes());
    }

    fn write(&mut self, header: &Header) {
        match *header {
            Header::Match(envelope) => self.push(&match_bytes(&envelope)),
            Header::Rendezvous(envelope, announced) => {
                self.push(&rendezvous_bytes(&envelope, &announced));
            }
            Header::Get(envelope, announced, Exposed { btl, ordinal, handle, blocks }) => {
                let mut rendezvous = rendezvous(kind::GET, &envelope, &announced);
                rendezvous.matching.flags |= if blocks.is_some() { FLAG_BLOCKS } else { 0 };
                let handle_len = handle.as_bytes().len() as u8;
                let get = Get { rendezvous, btl: btl.0.into(), ordinal, handle_len, zero: 0.into() };
                self.push(get.as_bytes());
                self.push(handle.as_bytes());
                self.push_blocks(blocks);
            }
            Header::Ack(Ack { sender, receiver, from, to, total, to_device, offer }) => {
                let offered = if offer.is_some() { FLAG_OFFERED } else { 0 };
                let flags = offered | if to_device { FLAG_TO_DEVICE } else { 0 };
                let header = AckHeader {
                    kind: kind::ACK,
                    flags,
                    zero: [0; 6],
                    sender: sender.0.into(),
                    receiver: receiver.0.into(),
                    from: from.into(),
                    to: to.into(),
                    total: total.into(),
                    offer: offer.map_or(0, |offer| offer.0).into(),
                };
                self.push(header.as_bytes());
            }
            Header::Put(Put { sender, receiver, offset, len, total, to }) => {
                let header = PutHeader {
                    kind: kind::PUT,
                    flags: if to.blocks.is_some() { FLAG_BLOCKS } else { 0 },
                    ordinal: to.ordinal,
                    handle_len: to.handle.as_bytes().len() as u8,
                    btl: to.btl.0.into(),
                    sender: sender.0.into(),
                    receiver: receiver.0.into(),
                    offset: offset.into(),
                    len: len.into(),
                    total: total.into(),
                };
                self.push(header.as_bytes());
                self.push(to.handle.as_bytes());
                self.push_blocks(to.blocks);
            }
            Header::Fragment { receiver, offset } => {
                let (receiver, offset) = (receiver.0.into(), offset.into());
                self.push(Fragment { kind: kind::FRAGMENT, flags: 0, zero: [0; 6], receiver, offset }.as_bytes());
            }
            Header::Fin { sender, result } => {
                let (code, sender) = (code(result).into(), sender.0.into());
                self.push(Fin { kind: kind::FIN, flags: 0, zero: 0.into(), code, sender }.as_bytes());
            }
            Header::PutFin { receiver, offset, len, result } => {
                let header = PutFin {
                    kind: kind::PUT_FIN,
                    flags: 0,
                    zero: 0.into(),
                    code: code(result).into(),
                    receiver: receiver.0.into(),
                    offset: offset.into(),
                    len: len.into(),
                };
                self.push(header.as_bytes());
            }
            Header::Credit { consumed } => {
                let consumed = consumed.into();
                self.push(Credit { kind: kind::CREDIT, flags: 0, zero: [0; 6], consumed }.as_bytes());
            }
            Header::Resume { btl, received } => {
                let (btl, received) = (btl.0.into(), received.into());
                self.push(Resume { kind: kind::RESUME, flags: 0, zero: 0.into(), btl, received }.as_bytes());
            }
            Header::Invite(Invite { envelope, receiver, len, offer, to }) => {
                let header = InviteHeader {
                    matching: Match::new(kind::INVITE, 0, &envelope),
                    receiver: receiver.0.into(),
                    len: len.into(),
                    offer: offer.0.into(),
                    btl: to.btl.0.into(),
                    ordinal: to.ordinal,
                    handle_len: to.handle.as_bytes().len() as u8,
                    zero: 0.into(),
                };
                self.push(header.as_bytes());
                self.push(to.handle.as_bytes());
            }
            Header::Abort { receiver, sent, reason } => {
                let header = AbortHeader {
                    kind: kind::ABORT,
                    flags: 0,
                    zero: 0.into(),
                    code: reason.code().into(),
                    receiver: receiver.0.into(),
                    sent: sent.into(),
                };
                self.push(header.as_bytes());
            }
        }
    }
}

#[inline]
fn rendezvous(kind: u8, envelope: &Envelope, announced: &Announced) -> Rendezvous {
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    let flags = flag(announced.addressable, FLAG_ADDRESSABLE)
        | flag(announced.packs, FLAG_PACKS)
        | flag(announced.invitable, FLAG_INVITABLE);
    Rendezvous {
        matching: Match::new(kind, flags, envelope),
        len: announced.len.into(),
        sender: announced.sender.0.into(),
    }
}

/// Encodes a result: 0 is success, because no [`Abort`] has this code.
fn code(result: Result<(), Abort>) -> u32 {
    result.map_or_else(Abort::code, |()| 0)
}
