//! Reads and checks headers.

use std::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes};

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
    #[error("one-sided operation: {0}")]
    OneSided(&'static str),
    #[error("prepared operation: {0}")]
    Prepared(&'static str),
    #[error("active message of {len} bytes: {reason}")]
    ActiveMessage { len: u64, reason: &'static str },
}

/// Checks that reserved bytes are zero. A later version may give them a meaning that this one would miss.
pub(super) fn reserved<T: IntoBytes + Immutable>(kind: u8, field: &T) -> Result<(), Malformed> {
    if field.as_bytes().iter().all(|byte| *byte == 0) { Ok(()) } else { Err(Malformed::Reserved { kind }) }
}

/// Reads the header of a message of `message_len` bytes. `bytes` is a private copy of its beginning, long enough for
/// any header.
pub(crate) struct Reader<'b> {
    pub(super) bytes: &'b [u8],
    pub(crate) message_len: usize,
    pub(crate) kind: u8,
}

impl<'b> Reader<'b> {
    pub(crate) fn new(bytes: &'b [u8], message_len: usize) -> Result<Self, Malformed> {
        let kind = *bytes.first().ok_or(Malformed::Short { kind: 0, len: message_len })?;
        Ok(Reader { bytes, message_len, kind })
    }

    pub(super) fn short(&self) -> Malformed {
        Malformed::Short { kind: self.kind, len: self.message_len }
    }

    pub(crate) fn read<H: FromBytes>(&self) -> Result<H, Malformed> {
        if self.message_len < size_of::<H>() {
            return Err(self.short());
        }
        H::read_from_prefix(self.bytes).map(|(header, _)| header).map_err(|_| self.short())
    }

    /// Reads a header that has no payload.
    pub(crate) fn read_all<H: FromBytes>(&self) -> Result<H, Malformed> {
        let header = self.read()?;
        self.no_payload(size_of::<H>())?;
        Ok(header)
    }

    pub(super) fn no_payload(&self, len: usize) -> Result<(), Malformed> {
        if self.message_len != len {
            return Err(Malformed::Payload { kind: self.kind, payload: self.message_len - len, expected: 0 });
        }
        Ok(())
    }

    pub(crate) fn flags(&self, flags: u8, known: u8) -> Result<(), Malformed> {
        if flags & !known != 0 {
            return Err(Malformed::Flags { kind: self.kind, flags });
        }
        Ok(())
    }

    /// Checks the flags and reserved bytes of a header without flags.
    pub(crate) fn unused<T: IntoBytes + Immutable>(&self, flags: u8, zero: &T) -> Result<(), Malformed> {
        self.flags(flags, 0)?;
        self.reserved(zero)
    }

    /// See [`reserved`].
    pub(crate) fn reserved<T: IntoBytes + Immutable>(&self, field: &T) -> Result<(), Malformed> {
        reserved(self.kind, field)
    }

    /// Checks that `len` bytes from `offset` on are within `total` bytes.
    pub(crate) fn range(&self, offset: u64, len: u64, total: u64) -> Result<(), Malformed> {
        match offset.checked_add(len) {
            Some(end) if end <= total => Ok(()),
            _ => Err(Malformed::Range { from: offset, to: offset.saturating_add(len), total }),
        }
    }
}
