//! Headers of the rendezvous: the announcement (RTS), and what ends the transfer of any announced message.

use memoffset::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::abort::Abort;
use crate::wire::{Envelope, Header, HeaderBuffer, Id, Malformed, MatchLayout, Reader, flag, kind, layouts};

/// Sender to receiver: an announcement. The payload is empty, or all of the data (a synchronous send).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rts {
    pub(crate) envelope: Envelope,
    pub(crate) announced: Announced,
}

/// An announced message. The receiver requests its data later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) len: u64,
    pub(crate) sender: Id,
    /// Whether the sender can PUT straight from its buffer.
    pub(crate) addressable: bool,
    /// Whether it can PUT only into one run of device memory, because its kernel packs.
    pub(crate) packs: bool,
    /// Whether the sender's buffer is on a device.
    pub(crate) on_device: bool,
    /// Whether the sender's buffer is page-locked, and a device of the sender may store it in device memory.
    pub(crate) page_locked: bool,
    /// Whether the data follows in fragments, without a request.
    pub(crate) follows: bool,
}

impl Announced {
    /// No data, of which nothing is said.
    pub(crate) const NOTHING: Announced = Announced {
        len: 0,
        sender: Id(0),
        addressable: false,
        packs: false,
        on_device: false,
        page_locked: false,
        follows: false,
    };
}

/// Receiver to sender: the end of the message. `Err`: the receive failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fin {
    pub(crate) sender: Id,
    pub(crate) result: Result<(), Abort>,
}

/// Sender to receiver: no more than the `sent` bytes will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbortHeader {
    pub(crate) receiver: Id,
    pub(crate) sent: u64,
    pub(crate) reason: Abort,
}

layouts! {
    RendezvousLayout { matching: MatchLayout, len: U64, sender: U64 }
    FinLayout { kind: u8, flags: u8, zero: U16, code: U32, sender: U64 }
    AbortLayout { kind: u8, flags: u8, zero: U16, code: U32, receiver: U64, sent: U64 }
}

const _: () = {
    assert!(RENDEZVOUS_LEN == 32 && offset_of!(RendezvousLayout, len) == 16);
    assert!(offset_of!(RendezvousLayout, sender) == 24);
    assert!(size_of::<FinLayout>() == 16 && offset_of!(FinLayout, code) == 4 && offset_of!(FinLayout, sender) == 8);
    assert!(size_of::<AbortLayout>() == 24 && offset_of!(AbortLayout, sent) == 16);
};

/// Length of the header that announces a message.
pub(crate) const RENDEZVOUS_LEN: usize = size_of::<RendezvousLayout>();

/// The sender can PUT from its buffer.
pub(crate) const FLAG_ADDRESSABLE: u8 = 1;
/// The sender packs, and can PUT only into one run of device memory. Only with `FLAG_ADDRESSABLE`.
const FLAG_PACKS: u8 = 4;
/// The sender's buffer is on a device.
pub(crate) const FLAG_ON_DEVICE: u8 = 8;
/// The data follows without a request. Alone.
const FLAG_FOLLOWS: u8 = 16;
/// The sender's buffer is page-locked, and a device of the sender may store it in device memory. Not with
/// `FLAG_ON_DEVICE`.
pub(crate) const FLAG_PAGE_LOCKED: u8 = 32;

impl RendezvousLayout {
    /// Encodes an announcement of this kind.
    #[inline]
    pub(crate) fn new(kind: u8, envelope: &Envelope, announced: &Announced) -> Self {
        let flags = flag(announced.addressable, FLAG_ADDRESSABLE)
            | flag(announced.packs, FLAG_PACKS)
            | flag(announced.on_device, FLAG_ON_DEVICE)
            | flag(announced.page_locked, FLAG_PAGE_LOCKED)
            | flag(announced.follows, FLAG_FOLLOWS);
        RendezvousLayout {
            matching: MatchLayout::new(kind, flags, envelope),
            len: announced.len.into(),
            sender: announced.sender.0.into(),
        }
    }

    pub(crate) fn announced(&self) -> Result<(Envelope, Announced), Malformed> {
        let (kind, flags) = (self.matching.kind, self.matching.flags);
        if flags & FLAG_ON_DEVICE != 0 && flags & FLAG_PAGE_LOCKED != 0 {
            return Err(Malformed::Flags { kind, flags });
        }
        let announced = Announced {
            len: self.len.get(),
            sender: Id(self.sender.get()),
            addressable: flags & FLAG_ADDRESSABLE != 0,
            packs: flags & FLAG_PACKS != 0,
            on_device: flags & FLAG_ON_DEVICE != 0,
            page_locked: flags & FLAG_PAGE_LOCKED != 0,
            follows: flags & FLAG_FOLLOWS != 0,
        };
        Ok((self.matching.envelope()?, announced))
    }
}

/// Encodes the header that announces a message, in registers.
#[inline]
pub(crate) fn rendezvous_bytes(envelope: &Envelope, announced: &Announced) -> [u8; RENDEZVOUS_LEN] {
    zerocopy::transmute!(RendezvousLayout::new(kind::RENDEZVOUS, envelope, announced))
}

impl Header for Rts {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let layout: RendezvousLayout = reader.read()?;
        let (kind, flags) = (reader.kind, layout.matching.flags);
        reader.flags(flags, FLAG_ADDRESSABLE | FLAG_PACKS | FLAG_ON_DEVICE | FLAG_FOLLOWS | FLAG_PAGE_LOCKED)?;
        // A sender that packs can PUT.
        if flags & (FLAG_ADDRESSABLE | FLAG_PACKS) == FLAG_PACKS {
            return Err(Malformed::Flags { kind, flags });
        }
        let (envelope, announced) = layout.announced()?;
        if announced.follows && (flags != FLAG_FOLLOWS || announced.len == 0) {
            return Err(Malformed::Flags { kind, flags });
        }
        let payload = reader.message_len - RENDEZVOUS_LEN;
        if announced.follows && payload != 0 {
            return Err(Malformed::Payload { kind, payload, expected: 0 });
        }
        if payload != 0 && payload as u64 != announced.len {
            return Err(Malformed::Payload { kind, payload, expected: announced.len });
        }
        Ok(Rts { envelope, announced })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        out.push(&rendezvous_bytes(&self.envelope, &self.announced));
    }
}

impl Header for Fin {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let layout: FinLayout = reader.read_all()?;
        reader.unused(layout.flags, &layout.zero)?;
        Ok(Fin { sender: Id(layout.sender.get()), result: Abort::result(layout.code.get()) })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        let (code, sender) = (Abort::code_of(self.result).into(), self.sender.0.into());
        out.push(FinLayout { kind: kind::FIN, flags: 0, zero: 0.into(), code, sender }.as_bytes());
    }
}

impl Header for AbortHeader {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let layout: AbortLayout = reader.read_all()?;
        reader.unused(layout.flags, &layout.zero)?;
        let reason = Abort::from_code(layout.code.get());
        Ok(AbortHeader { receiver: Id(layout.receiver.get()), sent: layout.sent.get(), reason })
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        let (code, receiver, sent) = (self.reason.code().into(), self.receiver.0.into(), self.sent.into());
        out.push(AbortLayout { kind: kind::ABORT, flags: 0, zero: 0.into(), code, receiver, sent }.as_bytes());
    }
}
