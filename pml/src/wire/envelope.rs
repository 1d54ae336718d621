//! The envelope of a message: the beginning of every header that is matched, and all of an eager message's header.

use memoffset::offset_of;
use zerocopy::little_endian::{I32, U16, U32};

use super::header::{Header, HeaderBuffer, layouts};
use super::kind;
use super::reader::{Malformed, Reader};
use crate::status::ANY;

/// The fields by which a message is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) context: u32,
    /// Number of earlier communicators with this context that the two processes shared.
    pub(crate) epoch: u16,
    pub(crate) tag: i32,
    /// Counts the messages from one rank to another in one communicator.
    pub(crate) seq: u32,
}

layouts! {
    MatchLayout { kind: u8, flags: u8, epoch: U16, context: U32, tag: I32, seq: U32 }
}

const _: () = assert!(
    size_of::<MatchLayout>() == 16 && offset_of!(MatchLayout, context) == 4 && offset_of!(MatchLayout, seq) == 12
);

/// Length of the header of an eager message.
pub(crate) const MATCH_LEN: usize = size_of::<MatchLayout>();

impl MatchLayout {
    #[inline]
    pub(crate) fn new(kind: u8, flags: u8, envelope: &Envelope) -> Self {
        let Envelope { context, epoch, tag, seq } = *envelope;
        MatchLayout { kind, flags, epoch: epoch.into(), context: context.into(), tag: tag.into(), seq: seq.into() }
    }

    pub(crate) fn envelope(&self) -> Result<Envelope, Malformed> {
        let (context, epoch, tag, seq) = (self.context.get(), self.epoch.get(), self.tag.get(), self.seq.get());
        if tag == ANY { Err(Malformed::Tag(tag)) } else { Ok(Envelope { context, epoch, tag, seq }) }
    }
}

/// The header of an eager message. The payload is its data.
impl Header for Envelope {
    fn parse(reader: &Reader<'_>) -> Result<Self, Malformed> {
        let layout: MatchLayout = reader.read()?;
        reader.flags(layout.flags, 0)?;
        layout.envelope()
    }

    fn encode(&self, out: &mut HeaderBuffer) {
        out.push(&match_bytes(self));
    }
}

/// Encodes an eager message's header. This is on the fast path, so it assembles the bytes in registers: a copy of bytes
/// that were just stored one by one would wait for those stores.
#[inline]
pub(crate) fn match_bytes(envelope: &Envelope) -> [u8; MATCH_LEN] {
    let &Envelope { context, epoch, tag, seq } = envelope;
    let first = u64::from(kind::MATCH) | u64::from(epoch) << 16 | u64::from(context) << 32;
    let second = u64::from(tag.cast_unsigned()) | u64::from(seq) << 32;
    zerocopy::transmute!([first.to_le(), second.to_le()])
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
