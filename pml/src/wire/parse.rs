//! Parses and checks headers.

use std::mem::size_of;

use cableway_btl::{Offer, RemoteHandle};
use cableway_common_cuda::Strided;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::headers::{
    self, FLAG_ADDRESSABLE, FLAG_BLOCKS, FLAG_INVITABLE, FLAG_OFFERED, FLAG_PACKS, FLAG_TO_DEVICE, kind,
};
use super::message::{Ack, Announced, BtlTag, Envelope, Exposed, Header, Id, Invite, Put};
use crate::error::Abort;
use crate::status::ANY;

/// Why no correct engine can have sent a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Malformed {
    #[error("message of {len} bytes is too short for its header of kind {kind}")]
    Short { kind: u8, len: usize },
    #[error("unknown header kind {0}")]
    Kind(u8),
    #[error("header of kind {kind} has unknown flags {flags:#x}")]
    Flags { kind: u8, flags: u8 },
    #[error("header of kind {kind}: reserved bytes are not zero")]
    Reserved { kind: u8 },
    #[error("tag {0} is a wildcard")]
    Tag(i32),
    #[error("message of {0} bytes is too long for a message of several headers")]
    TooLong(usize),
    #[error("payload of {payload} bytes follows a header of kind {kind}; expected {expected}")]
    Payload { kind: u8, payload: usize, expected: u64 },
    #[error("invalid memory handle of {0} bytes")]
    Handle(u8),
    #[error("invalid blocks: they must hold {len} bytes within registered memory")]
    Blocks { len: u64 },
    #[error("invalid range {from}..{to} of {total} bytes")]
    Range { from: u64, to: u64, total: u64 },
    #[error("sequence number {seq} of context {context} was used twice")]
    Repeated { context: u32, seq: u32 },
    #[error("{what} names unknown transfer {id:#x}")]
    NoTransfer { what: &'static str, id: u64 },
    #[error("{what} does not fit the state of transfer {id:#x}")]
    OutOfTurn { what: &'static str, id: u64 },
    #[error("{stored} bytes of unexpected messages exceed the window of {allowed}")]
    OverCredit { stored: u64, allowed: u64 },
    #[error("credit for {consumed} bytes, but only {sent} were sent")]
    Credit { consumed: u64, sent: u64 },
    #[error(
        "invalid count of received messages {received}: {sent} were sent, {delivered} of them delivered for certain"
    )]
    Resume { received: u64, delivered: u64, sent: u64 },
    #[error("too many messages for unknown communicators: {0}")]
    TooManyEarly(usize),
}

/// Parses the header of a message of `message_len` bytes. `bytes` is a private copy of its beginning, long enough for
/// any header. Returns the header and its length.
pub(crate) fn parse(bytes: &[u8], message_len: usize) -> Result<(Header, usize), Malformed> {
    let kind = *bytes.first().ok_or(Malformed::Short { kind: 0, len: message_len })?;
    let reader = Reader { bytes, message_len, kind };
    match kind {
        kind::MATCH => {
            let header: headers::Match = reader.read()?;
            reader.flags(header.flags, 0)?;
            Ok((Header::Match(envelope(&header)?), size_of::<headers::Match>()))
        }
        kind::RENDEZVOUS => {
            let header: headers::Rendezvous = reader.read()?;
            let flags = header.matching.flags;
            reader.flags(flags, FLAG_ADDRESSABLE | FLAG_PACKS | FLAG_INVITABLE)?;
            // A sender that packs or accepts an invitation can PUT. It does not do both.
            let alone = flags & FLAG_ADDRESSABLE == 0 && flags != 0;
            if alone || flags & (FLAG_PACKS | FLAG_INVITABLE) == FLAG_PACKS | FLAG_INVITABLE {
                return Err(Malformed::Flags { kind, flags });
            }
            let (envelope, announced) = reader.announced(&header)?;
            let len = size_of::<headers::Rendezvous>();
            let payload = message_len - len;
            if payload != 0 && payload as u64 != announced.len {
                return Err(Malformed::Payload { kind, payload, expected: announced.len });
            }
            Ok((Header::Rendezvous(envelope, announced), len))
        }
        kind::GET => {
            let header: headers::Get = reader.read()?;
            let flags = header.rendezvous.matching.flags;
            reader.flags(flags, FLAG_ADDRESSABLE | FLAG_BLOCKS)?;
            reserved(kind, &header.zero)?;
            let blocks = flags & FLAG_BLOCKS != 0;
            let (envelope, announced) = reader.announced(&header.rendezvous)?;
            let len = size_of::<headers::Get>();
            let whole = announced.len;
            let exposed = reader.exposed(len, header.btl.get(), header.ordinal, header.handle_len, (blocks, whole))?;
            Ok((Header::Get(envelope, announced, exposed), message_len))
        }
        kind::ACK => {
            let header: headers::AckHeader = reader.read_all()?;
            reader.flags(header.flags, FLAG_TO_DEVICE | FLAG_OFFERED)?;
            reserved(kind, &header.zero)?;
            let (from, to, total) = (header.from.get(), header.to.get(), header.total.get());
            if from > to || to - from > total {
                return Err(Malformed::Range { from, to, total });
            }
            let (sender, receiver) = (Id(header.sender.get()), Id(header.receiver.get()));
            let to_device = header.flags & FLAG_TO_DEVICE != 0;
            let offer = (header.flags & FLAG_OFFERED != 0).then_some(Offer(header.offer.get()));
            if offer.is_none() {
                reserved(kind, &header.offer)?;
            }
            Ok((Header::Ack(Ack { sender, receiver, from, to, total, to_device, offer }), message_len))
        }
        kind::PUT => {
            let header: headers::PutHeader = reader.read()?;
            reader.flags(header.flags, FLAG_BLOCKS)?;
            let (offset, len, total) = (header.offset.get(), header.len.get(), header.total.get());
            reader.range(offset, len, total)?;
            let at = size_of::<headers::PutHeader>();
            let blocks = (header.flags & FLAG_BLOCKS != 0, len);
            let to = reader.exposed(at, header.btl.get(), header.ordinal, header.handle_len, blocks)?;
            // One operation stores all blocks.
            if to.blocks.is_some() && offset != 0 {
                return Err(Malformed::Range { from: offset, to: offset + len, total });
            }
            let (sender, receiver) = (Id(header.sender.get()), Id(header.receiver.get()));
            Ok((Header::Put(Put { sender, receiver, offset, len, total, to }), message_len))
        }
        kind::FRAGMENT => {
            let header: headers::Fragment = reader.read()?;
            unused(kind, header.flags, &header.zero)?;
            let len = size_of::<headers::Fragment>();
            let offset = header.offset.get();
            if message_len == len {
                return Err(Malformed::Payload { kind, payload: 0, expected: 1 });
            }
            reader.range(offset, (message_len - len) as u64, u64::MAX)?;
            Ok((Header::Fragment { receiver: Id(header.receiver.get()), offset }, len))
        }
        kind::FIN => {
            let header: headers::Fin = reader.read_all()?;
            unused(kind, header.flags, &header.zero)?;
            let (sender, result) = (Id(header.sender.get()), result(header.code.get()));
            Ok((Header::Fin { sender, result }, message_len))
        }
        kind::PUT_FIN => {
            let header: headers::PutFin = reader.read_all()?;
            unused(kind, header.flags, &header.zero)?;
            let (offset, len) = (header.offset.get(), header.len.get());
            reader.range(offset, len, u64::MAX)?;
            let (receiver, result) = (Id(header.receiver.get()), result(header.code.get()));
            Ok((Header::PutFin { receiver, offset, len, result }, message_len))
        }
        kind::CREDIT => {
            let header: headers::Credit = reader.read_all()?;
            unused(kind, header.flags, &header.zero)?;
            Ok((Header::Credit { consumed: header.consumed.get() }, message_len))
        }
        kind::ABORT => {
            let header: headers::AbortHeader = reader.read_all()?;
            unused(kind, header.flags, &header.zero)?;
            let (receiver, reason) = (Id(header.receiver.get()), Abort::from_code(header.code.get()));
            Ok((Header::Abort { receiver, sent: header.sent.get(), reason }, message_len))
        }
        kind::RESUME => {
            let header: headers::Resume = reader.read_all()?;
            unused(kind, header.flags, &header.zero)?;
            Ok((Header::Resume { btl: BtlTag(header.btl.get()), received: header.received.get() }, message_len))
        }
        kind::INVITE => {
            let header: headers::InviteHeader = reader.read()?;
            unused(kind, header.matching.flags, &header.zero)?;
            let (at, none) = (size_of::<headers::InviteHeader>(), (false, 0));
            let to = reader.exposed(at, header.btl.get(), header.ordinal, header.handle_len, none)?;
            let (envelope, offer) = (header.matching.envelope(), Offer(header.offer.get()));
            let (receiver, len) = (Id(header.receiver.get()), header.len.get());
            Ok((Header::Invite(Invite { envelope, receiver, len, offer, to }), message_len))
        }
        unknown => Err(Malformed::Kind(unknown)),
    }
}

fn strided(blocks: &headers::Blocks, len: u64) -> Result<Strided, Malformed> {
    let mut dimensions = [(1, 0); 3];
    for (dimension, (count, stride)) in dimensions.iter_mut().zip(blocks.counts.into_iter().zip(blocks.strides)) {
        *dimension = (count.get(), stride.get());
    }
    let strided = Strided { offset: blocks.offset.get(), block: blocks.block.get(), dimensions };
    let size = strided.size().filter(|_| strided.span().is_some_and(|(low, _)| low >= 0));
    size.filter(|size| *size >= len).map(|_| strided).ok_or(Malformed::Blocks { len })
}

fn envelope(header: &headers::Match) -> Result<Envelope, Malformed> {
    let envelope = header.envelope();
    if envelope.tag == ANY { Err(Malformed::Tag(envelope.tag)) } else { Ok(envelope) }
}

fn result(code: u32) -> Result<(), Abort> {
    if code == 0 { Ok(()) } else { Err(Abort::from_code(code)) }
}

/// Checks that reserved bytes are zero. A later version may give them a meaning that this one would miss.
pub(super) fn reserved<T: IntoBytes + Immutable>(kind: u8, field: &T) -> Result<(), Malformed> {
    if field.as_bytes().iter().all(|byte| *byte == 0) { Ok(()) } else { Err(Malformed::Reserved { kind }) }
}

/// Checks the flags and reserved bytes of a header without flags.
pub(super) fn unused<T: IntoBytes + Immutable>(kind: u8, flags: u8, zero: &T) -> Result<(), Malformed> {
    if flags != 0 {
        return Err(Malformed::Flags { kind, flags });
    }
    reserved(kind, zero)
}

struct Reader<'b> {
    bytes: &'b [u8],
    message_len: usize,
    kind: u8,
}

impl Reader<'_> {
    fn read<H: FromBytes>(&self) -> Result<H, Malformed> {
        let short = Malformed::Short { kind: self.kind, len: self.message_len };
        if self.message_len < size_of::<H>() {
            return Err(short);
        }
        H::read_from_prefix(self.bytes).map(|(header, _)| header).map_err(|_| short)
    }

    /// Reads a header that has no payload.
    fn read_all<H: FromBytes>(&self) -> Result<H, Malformed> {
        let header = self.read()?;
        self.no_payload(size_of::<H>())?;
        Ok(header)
    }

    fn no_payload(&self, len: usize) -> Result<(), Malformed> {
        if self.message_len != len {
            return Err(Malformed::Payload { kind: self.kind, payload: self.message_len - len, expected: 0 });
        }
        Ok(())
    }

    fn flags(&self, flags: u8, known: u8) -> Result<(), Malformed> {
        if flags & !known != 0 {
            return Err(Malformed::Flags { kind: self.kind, flags });
        }
        Ok(())
    }

    fn range(&self, offset: u64, len: u64, total: u64) -> Result<(), Malformed> {
        match offset.checked_add(len) {
            Some(end) if end <= total => Ok(()),
            _ => Err(Malformed::Range { from: offset, to: offset.saturating_add(len), total }),
        }
    }

    fn announced(&self, header: &headers::Rendezvous) -> Result<(Envelope, Announced), Malformed> {
        let announced = Announced {
            len: header.len.get(),
            sender: Id(header.sender.get()),
            addressable: header.matching.flags & FLAG_ADDRESSABLE != 0,
            packs: header.matching.flags & FLAG_PACKS != 0,
            invitable: header.matching.flags & FLAG_INVITABLE != 0,
        };
        Ok((envelope(&header.matching)?, announced))
    }

    /// Reads a handle, and blocks if it `has_blocks`. The blocks must hold at least `len` bytes; they hold more if the
    /// message is longer than the receiver's buffer.
    fn exposed(
        &self,
        at: usize,
        btl: u32,
        ordinal: u8,
        handle_len: u8,
        (has_blocks, len): (bool, u64),
    ) -> Result<Exposed, Malformed> {
        let mut end = at + usize::from(handle_len);
        let handle = self.bytes.get(at..end).and_then(RemoteHandle::new).ok_or(Malformed::Handle(handle_len))?;
        let mut blocks = None;
        if has_blocks {
            let short = Malformed::Short { kind: self.kind, len: self.message_len };
            let bytes = self.bytes.get(end..).ok_or(short.clone())?;
            let (read, _) = headers::Blocks::read_from_prefix(bytes).map_err(|_| short)?;
            blocks = Some(strided(&read, len)?);
            end += size_of::<headers::Blocks>();
        }
        self.no_payload(end)?;
        Ok(Exposed { btl: BtlTag(btl), ordinal, handle, blocks })
    }
}

#[cfg(test)]
mod tests;
