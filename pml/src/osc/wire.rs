//! What a process asks of another one's window: headers of active messages.
//!
//! ```text
//! ask     | number: u64 | displacement: i64 | kind: u8 | combine: u8 | z: 2 | operation: u32 | element: u32 |
//!         | blocks: u32 | offset: i64 | count: u64 | extent: i64 |                              56 bytes
//!         | the blocks of an element, unless shapes have brought them |
//! answer  | number: u64 | code: u32 | z: u32 |                                                  16 bytes
//! notice  | kind: u32 |                                                                          4 bytes
//! ```
//!
//! An ask reaches a run of bytes (`blocks` is 0, `count` is its length) or `count` elements of `blocks` blocks each
//! (`pml/src/shapes`). Up to [`BLOCKS_IN_ASK`] blocks follow the ask. More come before it as the inline data of shapes. The
//! data of a put or accumulate comes with the ask, and what is fetched with the answer.

use std::mem::offset_of;

use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::am::HEADER_LIMIT;
use crate::refusal::Refusal;
use crate::shapes::{BLOCK_LEN, Block, MOST_BLOCKS, block_bytes, parse_blocks};
use crate::wire::{Malformed, layouts};

layouts! {
    /// See the module.
    AskLayout {
        number: U64,
        displacement: I64,
        kind: u8,
        combine: u8,
        zero: [u8; 2],
        operation: U32,
        element: U32,
        blocks: U32,
        offset: I64,
        count: U64,
        extent: I64,
    }
    /// See the module.
    AnswerLayout { number: U64, code: U32, zero: U32 }
    /// See the module.
    NoticeLayout { kind: U32 }
}

const ASK_LEN: usize = size_of::<AskLayout>();
pub(super) const ANSWER_LEN: usize = size_of::<AnswerLayout>();
pub(super) const NOTICE_LEN: usize = size_of::<NoticeLayout>();

const _: () = {
    assert!(ASK_LEN == 56 && ANSWER_LEN == 16 && NOTICE_LEN == 4);
    assert!(offset_of!(AskLayout, displacement) == 8 && offset_of!(AskLayout, kind) == 16);
    assert!(offset_of!(AskLayout, operation) == 20 && offset_of!(AskLayout, blocks) == 28);
    assert!(offset_of!(AskLayout, offset) == 32 && offset_of!(AskLayout, extent) == 48);
    assert!(offset_of!(AnswerLayout, code) == 8);
};

/// The ids of the active messages.
pub(super) const ASK: u32 = 1;
pub(super) const SHAPE: u32 = 2;
pub(super) const ANSWER: u32 = 3;
pub(super) const NOTICE: u32 = 4;

/// The blocks that an ask has room for.
pub(super) const BLOCKS_IN_ASK: usize = (HEADER_LIMIT - ASK_LEN) / BLOCK_LEN;

/// How an accumulate combines the window's elements with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// The data replaces the elements.
    Replace,
    /// The elements stay.
    Keep,
    /// A reduction, by the numbers that the host of the window knows.
    Reduce {
        /// The operation.
        operation: u32,
        /// The type of the elements.
        element: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Put,
    Get,
    Accumulate {
        combine: Combine,
        fetch: bool,
    },
    /// The data is what the element must be, and then what it becomes.
    CompareSwap,
}

/// The bytes of a window that an operation reaches, from a displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Run { offset: i64, len: u64 },
    Elements { blocks: u32, count: u64, extent: i64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// Names the operation at the process that asks.
    pub(super) number: u64,
    /// In units of the target.
    pub(super) displacement: i64,
    pub(super) wish: Wish,
    pub(super) reach: Reach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) number: u64,
    pub(super) result: Result<(), Refusal>,
}

/// A message of the synchronization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    LockShared,
    LockExclusive,
    Granted,
    Unlock,
    Unlocked,
    /// An exposure begins.
    Post,
    /// An access ends.
    Complete,
}

impl Ask {
    /// Writes the ask and the blocks, at most [`BLOCKS_IN_ASK`] of them.
    pub(super) fn to_bytes(self, blocks: &[Block]) -> Vec<u8> {
        let (kind, combine) = match self.wish {
            Wish::Put => (1, None),
            Wish::Get => (2, None),
            Wish::Accumulate { combine, fetch: false } => (3, Some(combine)),
            Wish::Accumulate { combine, fetch: true } => (4, Some(combine)),
            Wish::CompareSwap => (5, None),
        };
        let (combine, operation, element) = match combine {
            None => (0, 0, 0),
            Some(Combine::Replace) => (1, 0, 0),
            Some(Combine::Keep) => (2, 0, 0),
            Some(Combine::Reduce { operation, element }) => (3, operation, element),
        };
        let (count_of_blocks, offset, count, extent) = match self.reach {
            Reach::Run { offset, len } => (0, offset, len, 0),
            Reach::Elements { blocks, count, extent } => (blocks, 0, count, extent),
        };
        let layout = AskLayout {
            number: self.number.into(),
            displacement: self.displacement.into(),
            kind,
            combine,
            zero: [0; 2],
            operation: operation.into(),
            element: element.into(),
            blocks: count_of_blocks.into(),
            offset: offset.into(),
            count: count.into(),
            extent: extent.into(),
        };
        let mut bytes = layout.as_bytes().to_vec();
        bytes.extend(block_bytes(blocks));
        bytes
    }

    /// Parses an ask, and the blocks behind it.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, Vec<Block>), Malformed> {
        let wrong = |reason| Err(Malformed::OneSided(reason));
        let Ok((layout, rest)) = AskLayout::read_from_prefix(bytes) else {
            return wrong("an ask of a window is too short");
        };
        let (operation, element) = (layout.operation.get(), layout.element.get());
        let combine = match (layout.combine, operation, element) {
            (0, 0, 0) => None,
            (1, 0, 0) => Some(Combine::Replace),
            (2, 0, 0) => Some(Combine::Keep),
            (3, ..) => Some(Combine::Reduce { operation, element }),
            _ => return wrong("an unknown way to combine"),
        };
        let wish = match (layout.kind, combine) {
            (1, None) => Wish::Put,
            (2, None) => Wish::Get,
            (3, Some(combine)) => Wish::Accumulate { combine, fetch: false },
            (4, Some(combine)) => Wish::Accumulate { combine, fetch: true },
            (5, None) => Wish::CompareSwap,
            _ => return wrong("an unknown operation on a window"),
        };
        let (offset, count, extent) = (layout.offset.get(), layout.count.get(), layout.extent.get());
        let reach = match layout.blocks.get() {
            0 if extent == 0 => Reach::Run { offset, len: count },
            blocks if blocks != 0 && offset == 0 && blocks as usize <= MOST_BLOCKS => {
                Reach::Elements { blocks, count, extent }
            }
            _ => return wrong("an invalid shape of elements"),
        };
        if layout.zero != [0; 2] {
            return wrong("reserved bytes of an ask are not zero");
        }
        let blocks = parse_blocks(rest)?;
        Ok((Ask { number: layout.number.get(), displacement: layout.displacement.get(), wish, reach }, blocks))
    }
}

impl Answer {
    pub(super) fn to_bytes(self) -> [u8; ANSWER_LEN] {
        let code = Refusal::code_of(self.result).into();
        let mut bytes = [0; ANSWER_LEN];
        bytes.copy_from_slice(AnswerLayout { number: self.number.into(), code, zero: 0.into() }.as_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let layout = AnswerLayout::read_from_bytes(bytes)
            .map_err(|_| Malformed::OneSided("an answer of a window has a wrong length"))?;
        if layout.zero.get() != 0 {
            return Err(Malformed::OneSided("reserved bytes of an answer are not zero"));
        }
        Ok(Answer { number: layout.number.get(), result: Refusal::result(layout.code.get()) })
    }
}

impl Notice {
    const ALL: [Notice; 7] = [
        Notice::LockShared,
        Notice::LockExclusive,
        Notice::Granted,
        Notice::Unlock,
        Notice::Unlocked,
        Notice::Post,
        Notice::Complete,
    ];

    pub(super) fn to_bytes(self) -> [u8; NOTICE_LEN] {
        (self as u32 + 1).to_le_bytes()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let wrong = || Malformed::OneSided("an unknown notice of a window");
        let layout = NoticeLayout::read_from_bytes(bytes).map_err(|_| wrong())?;
        let at = (layout.kind.get() as usize).checked_sub(1).ok_or_else(wrong)?;
        Self::ALL.get(at).copied().ok_or_else(wrong)
    }
}

/// Parses everything, and writes it again. For fuzzers.
pub(super) fn recode(bytes: &[u8]) {
    if let Ok((ask, blocks)) = Ask::parse(bytes) {
        assert_eq!(ask.to_bytes(&blocks), bytes);
    }
    if let Ok(blocks) = parse_blocks(bytes) {
        assert_eq!(block_bytes(&blocks), bytes);
    }
    if let Ok(answer) = Answer::parse(bytes) {
        assert_eq!(&answer.to_bytes()[..], bytes);
    }
    if let Ok(notice) = Notice::parse(bytes) {
        assert_eq!(&notice.to_bytes()[..], bytes);
    }
}

#[cfg(test)]
mod tests;
