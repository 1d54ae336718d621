//! The beginning of an active message, within the payload of an ordinary message.
//!
//! docs/wire.md draws the layouts. The program's header follows, and then the data unless it follows in a message of its
//! own.

use memoffset::offset_of;
use smallvec::SmallVec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::wire::{Malformed, layouts};

/// The longest header of an active message in bytes.
pub const HEADER_LIMIT: usize = 2048;

/// The longest data in bytes that comes with its header, if it lies in host memory.
pub const INLINE_LIMIT: usize = 8192;

/// The longest message that begins with a [`Preamble`].
pub(super) const MESSAGE_LIMIT: usize = size_of::<FollowsLayout>() + HEADER_LIMIT + INLINE_LIMIT;

layouts! {
    /// The part that all active messages share. If the data is inline, nothing precedes the header.
    InlineLayout { id: U32, header_len: U16, kind: U16 }
    /// The data follows in a message with this tag.
    FollowsLayout { id: U32, header_len: U16, kind: U16, data_len: U64, tag: U32, zero: U32 }
}

const _: () = {
    assert!(size_of::<InlineLayout>() == 8 && offset_of!(InlineLayout, kind) == 6);
    assert!(size_of::<FollowsLayout>() == 24 && offset_of!(FollowsLayout, kind) == 6);
    assert!(offset_of!(FollowsLayout, data_len) == 8 && offset_of!(FollowsLayout, tag) == 16);
    assert!(HEADER_LIMIT <= u16::MAX as usize);
};

const INLINE: u16 = 1;
const FOLLOWS: u16 = 2;

/// The tag of active messages. Data has other tags.
pub(super) const TAG: i32 = 0;

/// Where the data of an active message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Data<'b> {
    Inline(&'b [u8]),
    /// It comes as a message of its own.
    Follows {
        len: u64,
        /// Above [`TAG`].
        tag: i32,
    },
}

/// An active message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preamble<'b> {
    pub(super) id: u32,
    pub(super) header: &'b [u8],
    pub(super) data: Data<'b>,
}

/// A buffer that grows. [`Extend`] copies byte by byte.
pub(super) trait Append {
    fn append(&mut self, bytes: &[u8]);
}

impl Append for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<const N: usize> Append for SmallVec<[u8; N]>
where
    [u8; N]: smallvec::Array<Item = u8>,
{
    #[inline]
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<'b> Preamble<'b> {
    /// Parses a message.
    ///
    /// # Errors
    /// No correct engine can have sent it.
    pub(super) fn parse(bytes: &'b [u8]) -> Result<Self, Malformed> {
        let wrong = |reason| Malformed::ActiveMessage { len: bytes.len() as u64, reason };
        let short = || wrong("it is too short for its header");
        let (InlineLayout { id, header_len, kind }, rest) =
            InlineLayout::read_from_prefix(bytes).map_err(|_| short())?;
        let header_len = usize::from(header_len.get());
        if header_len > HEADER_LIMIT {
            return Err(wrong("its header is longer than the limit"));
        }
        let split = |rest: &'b [u8]| rest.split_at_checked(header_len).ok_or_else(short);
        match kind.get() {
            INLINE => {
                let (header, data) = split(rest)?;
                if data.len() > INLINE_LIMIT {
                    return Err(wrong("its inline data is longer than the limit"));
                }
                Ok(Preamble { id: id.get(), header, data: Data::Inline(data) })
            }
            FOLLOWS => {
                let (layout, rest) = FollowsLayout::read_from_prefix(bytes).map_err(|_| short())?;
                let (header, more) = split(rest)?;
                if !more.is_empty() {
                    return Err(wrong("it is longer than its header"));
                }
                if layout.zero.get() != 0 {
                    return Err(wrong("its reserved bytes are not zero"));
                }
                let tag = i32::try_from(layout.tag.get()).ok().filter(|&tag| tag > TAG);
                let tag = tag.ok_or_else(|| wrong("its data has an invalid tag"))?;
                let data = Data::Follows { len: layout.data_len.get(), tag };
                Ok(Preamble { id: id.get(), header, data })
            }
            _ => Err(wrong("its kind is unknown")),
        }
    }

    /// Writes what precedes the data of a message whose data is inline, if it fits into `out`. Returns its length.
    #[inline]
    pub(super) fn begin_inline(id: u32, header: &[u8], out: &mut [u8]) -> Option<usize> {
        let (before, rest) = out.split_at_mut_checked(size_of::<InlineLayout>())?;
        let room = rest.get_mut(..header.len())?;
        let layout = InlineLayout { id: id.into(), header_len: (header.len() as u16).into(), kind: INLINE.into() };
        before.copy_from_slice(layout.as_bytes());
        room.copy_from_slice(header);
        Some(size_of::<InlineLayout>() + header.len())
    }

    /// Appends the message to `out`. The header is at most [`HEADER_LIMIT`] bytes long.
    pub(super) fn encode(&self, out: &mut impl Append) {
        let (id, header_len) = (self.id.into(), (self.header.len() as u16).into());
        let mut put = |bytes: &[u8]| out.append(bytes);
        match self.data {
            Data::Inline(data) => {
                put(InlineLayout { id, header_len, kind: INLINE.into() }.as_bytes());
                put(self.header);
                put(data);
            }
            Data::Follows { len, tag } => {
                let (data_len, tag) = (len.into(), (tag as u32).into());
                let kind = FOLLOWS.into();
                put(FollowsLayout { id, header_len, kind, data_len, tag, zero: 0.into() }.as_bytes());
                put(self.header);
            }
        }
    }
}

#[cfg(test)]
mod tests;
