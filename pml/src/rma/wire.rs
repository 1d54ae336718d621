//! What a process asks of registered memory, and the answer: headers of active messages.
//!
//! ```text
//! ask     | kind: u8 | update: u8 | width: u8 | z: 5 | number: u64 | name: 24 | offset: u64 | len: u64 |
//!         | value: u64 | compare, or the signal's offset: u64 | signal's name: 24 |        96 bytes
//! answer  | number: u64 | code: u32 | z: u32 | value: u64 |                                24 bytes
//! ```
//!
//! An ask for elements is followed by their form, and by up to [`BLOCKS_IN_ASK`] blocks. More come before it as the inline
//! data of shapes (`pml/src/shapes`). Its length is that of the data, and offsets of blocks count from its offset.
//!
//! The data of a put comes with the ask, the data of a get with the answer. The answer's value is 1 if the owner gave the
//! signal of the get before it answered.

use std::mem::offset_of;

use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

use super::key::Name;
use super::registry::Span;
use crate::am::HEADER_LIMIT;
use crate::refusal::Refusal;
use crate::shapes::{BLOCK_LEN, Block, FORM_LEN, Form, block_bytes, parse_blocks};
use crate::wire::{Malformed, layouts};

layouts! {
    /// See the module.
    AskLayout {
        kind: u8,
        update: u8,
        width: u8,
        zero: [u8; 5],
        number: U64,
        name: Name,
        offset: U64,
        len: U64,
        value: U64,
        compare: U64,
        signal: Name,
    }
    /// See the module.
    AnswerLayout {
        number: U64,
        code: U32,
        zero: U32,
        value: U64,
    }
}

pub(super) const ASK_LEN: usize = size_of::<AskLayout>();
pub(super) const ANSWER_LEN: usize = size_of::<AnswerLayout>();

const _: () = {
    assert!(ASK_LEN == 96 && ANSWER_LEN == 24);
    assert!(offset_of!(AskLayout, number) == 8);
    assert!(offset_of!(AskLayout, name) == 16);
    assert!(offset_of!(AskLayout, offset) == 40);
    assert!(offset_of!(AskLayout, value) == 56);
    assert!(offset_of!(AskLayout, signal) == 72);
    assert!(offset_of!(AnswerLayout, code) == 8);
    assert!(offset_of!(AnswerLayout, value) == 16);
};

const PUT: u8 = 1;
const GET: u8 = 2;
const ATOMIC: u8 = 3;
/// Added to the kind of a put or get of elements.
const ELEMENTS: u8 = 3;

/// The blocks that an ask has room for.
pub(super) const BLOCKS_IN_ASK: usize = (HEADER_LIMIT - ASK_LEN - FORM_LEN) / BLOCK_LEN;

/// The value of an answer to a get whose signal is given.
pub(super) const GIVEN: u64 = 1;

/// The ids of the active messages.
pub(super) const ASK: u32 = 1;
pub(super) const ANSWER: u32 = 2;
/// After those of exposures.
pub(super) const SHAPE: u32 = 7;

/// What the owner's CPU does with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    Add,
    Set,
    /// Sets the word if it equals the other operand.
    CompareSet,
    And,
    Or,
    Xor,
}

impl Update {
    fn code(self) -> u8 {
        match self {
            Update::Add => 1,
            Update::Set => 2,
            Update::CompareSet => 3,
            Update::And => 4,
            Update::Or => 5,
            Update::Xor => 6,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Update::Add,
            2 => Update::Set,
            3 => Update::CompareSet,
            4 => Update::And,
            5 => Update::Or,
            6 => Update::Xor,
            _ => return None,
        })
    }
}

/// The word that an operation changes once its bytes have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalAsk {
    /// 8 bytes.
    pub(super) word: Span,
    /// Add or Set.
    pub(super) update: Update,
    pub(super) value: u64,
}

impl SignalAsk {
    /// Returns what the signal does to its word.
    pub(super) fn change(&self) -> Change {
        Change { update: self.update, value: self.value, compare: 0 }
    }
}

/// An atomic operation on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(super) update: Update,
    pub(super) value: u64,
    pub(super) compare: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// The message has as many bytes of data as the span, and as the elements if there are any.
    Put(Option<SignalAsk>),
    /// The owner gives the signal if it can copy the bytes at once.
    Get(Option<SignalAsk>),
    /// The span has 4 or 8 bytes.
    Atomic(Change),
}

/// What a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Names the operation at the process that asks.
    pub(super) number: u64,
    pub(super) span: Span,
    pub(super) wish: Wish,
}

/// The form of the elements that an ask is for, and the blocks that came in it.
pub(crate) type Shape = (Form, Vec<Block>);

/// The answer to an [`Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(super) number: u64,
    /// The data of a get comes with the answer if it is a success.
    pub(super) result: Result<(), Refusal>,
    /// The word before an atomic operation, or [`GIVEN`].
    pub(super) value: u64,
}

impl Ask {
    pub(crate) fn to_bytes(self) -> [u8; ASK_LEN] {
        let mut layout = AskLayout {
            kind: PUT,
            update: 0,
            width: 0,
            zero: [0; 5],
            number: U64::new(self.number),
            name: self.span.name,
            offset: U64::new(self.span.offset),
            len: U64::new(self.span.len),
            value: U64::ZERO,
            compare: U64::ZERO,
            signal: Name::default(),
        };
        match self.wish {
            Wish::Put(signal) | Wish::Get(signal) => {
                layout.kind = if matches!(self.wish, Wish::Put(_)) { PUT } else { GET };
                if let Some(SignalAsk { word, update, value }) = signal {
                    (layout.update, layout.value) = (update.code(), U64::new(value));
                    (layout.compare, layout.signal) = (U64::new(word.offset), word.name);
                }
            }
            Wish::Atomic(Change { update, value, compare }) => {
                (layout.kind, layout.update, layout.width) = (ATOMIC, update.code(), self.span.len as u8);
                (layout.value, layout.compare) = (U64::new(value), U64::new(compare));
            }
        }
        zerocopy::transmute!(layout)
    }

    /// Writes a put or get of elements. The blocks are those of an element, or none if shapes bring them.
    pub(crate) fn to_bytes_with(self, form: Form, blocks: &[Block]) -> Vec<u8> {
        let mut bytes = self.to_bytes().to_vec();
        bytes[offset_of!(AskLayout, kind)] += ELEMENTS;
        bytes.extend(form.to_bytes());
        bytes.extend(block_bytes(blocks));
        bytes
    }

    /// Parses an ask, and what follows one for elements.
    pub(crate) fn parse(header: &[u8]) -> Result<(Ask, Option<Shape>), Malformed> {
        let wrong = Malformed::OneSided;
        let (mut layout, rest) = AskLayout::read_from_prefix(header).map_err(|_| wrong("an ask that is too short"))?;
        if !matches!(layout.kind.checked_sub(ELEMENTS), Some(PUT | GET)) {
            if !rest.is_empty() {
                return Err(wrong("an ask that is too long"));
            }
            return Ok((Ask::of(&layout)?, None));
        }
        layout.kind -= ELEMENTS;
        let (form, blocks) = Form::parse(rest)?;
        Ok((Ask::of(&layout)?, Some((form, parse_blocks(blocks)?))))
    }

    fn of(layout: &AskLayout) -> Result<Ask, Malformed> {
        let wrong = Malformed::OneSided;
        if layout.zero != [0; 5] {
            return Err(wrong("an ask with reserved bytes that are not zero"));
        }
        let span = Span { name: layout.name, offset: layout.offset.get(), len: layout.len.get() };
        let (value, compare) = (layout.value.get(), layout.compare.get());
        let plain = layout.width == 0;
        let bare = layout.update == 0 && (value, compare) == (0, 0) && layout.signal == Name::default();
        let wish = match (layout.kind, Update::from_code(layout.update)) {
            (PUT, None) if plain && bare => Wish::Put(None),
            (GET, None) if plain && bare => Wish::Get(None),
            (kind @ (PUT | GET), Some(update @ (Update::Add | Update::Set))) if plain => {
                let word = Span { name: layout.signal, offset: compare, len: 8 };
                let signal = Some(SignalAsk { word, update, value });
                if kind == PUT { Wish::Put(signal) } else { Wish::Get(signal) }
            }
            (ATOMIC, Some(update)) if layout.signal == Name::default() => {
                if !matches!(layout.width, 4 | 8) || span.len != u64::from(layout.width) {
                    return Err(wrong("an atomic operation on a word of another width"));
                }
                Wish::Atomic(Change { update, value, compare })
            }
            _ => return Err(wrong("an ask of an unknown kind")),
        };
        Ok(Ask { number: layout.number.get(), span, wish })
    }
}

impl Answer {
    pub(crate) fn to_bytes(self) -> [u8; ANSWER_LEN] {
        zerocopy::transmute!(AnswerLayout {
            number: U64::new(self.number),
            code: U32::new(Refusal::code_of(self.result)),
            zero: U32::ZERO,
            value: U64::new(self.value),
        })
    }

    /// Parses an answer.
    pub(crate) fn parse(header: &[u8]) -> Result<Answer, Malformed> {
        let wrong = Malformed::OneSided;
        let layout = AnswerLayout::read_from_bytes(header).map_err(|_| wrong("an answer of another length"))?;
        if layout.zero != U32::ZERO {
            return Err(wrong("an answer with reserved bytes that are not zero"));
        }
        Ok(Answer {
            number: layout.number.get(),
            result: Refusal::result(layout.code.get()),
            value: layout.value.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shapes::MOST_BLOCKS;

    fn span(len: impl Strategy<Value = u64>) -> impl Strategy<Value = Span> {
        (any::<[u8; 24]>(), any::<u64>(), len).prop_map(|(name, offset, len)| Span {
            name: zerocopy::transmute!(name),
            offset,
            len,
        })
    }

    fn wish() -> impl Strategy<Value = (Wish, Span)> {
        let signal = || {
            let parts = (span(Just(8)), any::<u64>(), any::<bool>());
            let update = |set| if set { Update::Set } else { Update::Add };
            let signal = parts.prop_map(move |(word, value, set)| SignalAsk { word, update: update(set), value });
            prop::option::of(signal)
        };
        let change = (1_u8..=6, any::<u64>(), any::<u64>()).prop_map(|(code, value, compare)| Change {
            update: Update::from_code(code).unwrap(),
            value,
            compare,
        });
        prop_oneof![
            (signal().prop_map(Wish::Put), span(any::<u64>())),
            (signal().prop_map(Wish::Get), span(any::<u64>())),
            (change.prop_map(Wish::Atomic), span(prop_oneof![Just(4), Just(8)])),
        ]
    }

    proptest! {
        #[test]
        fn asks_are_read_as_they_were_written(
            number in any::<u64>(), (wish, span) in wish(), at in 0..ASK_LEN, byte in any::<u8>(),
        ) {
            let ask = Ask { number, span, wish };
            let mut bytes = ask.to_bytes();
            prop_assert_eq!(Ask::parse(&bytes).unwrap(), (ask, None));
            prop_assert!(Ask::parse(&bytes[..at]).is_err());
            prop_assert!(Ask::parse(&[&bytes[..], &[0]].concat()).is_err());
            // A changed ask is refused, or nothing of it is lost.
            bytes[at] = byte;
            if let Ok((read, None)) = Ask::parse(&bytes) {
                prop_assert_eq!(read.to_bytes(), bytes);
            }
        }

        #[test]
        fn asks_for_elements_are_read_as_they_were_written(
            number in any::<u64>(), (wish, span) in wish(), (blocks, count, extent) in any::<(u32, u64, i64)>(),
            pairs in prop::collection::vec(any::<(i64, u64)>(), 0..BLOCKS_IN_ASK), at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            prop_assume!(!matches!(wish, Wish::Atomic(_)));
            let form = Form { blocks: blocks % MOST_BLOCKS as u32 + 1, count, extent };
            let blocks: Vec<Block> = pairs.iter().map(|&(offset, len)| Block { offset, len }).collect();
            let ask = Ask { number, span, wish };
            let mut bytes = ask.to_bytes_with(form, &blocks);
            prop_assert!(bytes.len() <= HEADER_LIMIT);
            prop_assert_eq!(Ask::parse(&bytes).unwrap(), (ask, Some((form, blocks))));
            prop_assert!(Ask::parse(&bytes[..bytes.len() - 1]).is_err());
            *at.get_mut(&mut bytes) = byte;
            super::super::recode(&bytes);
        }

        #[test]
        fn answers_are_read_as_they_were_written(number in any::<u64>(), code in any::<u32>(), value in any::<u64>()) {
            let answer = Answer { number, result: Refusal::result(code), value };
            let bytes = answer.to_bytes();
            prop_assert_eq!(Answer::parse(&bytes).unwrap(), answer);
            prop_assert!(Answer::parse(&bytes[1..]).is_err());
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        let ask = |wish| Ask { number: 1, span: Span { name: Name::default(), offset: 0, len: 8 }, wish }.to_bytes();
        // The kind, the update, the width, reserved bytes, the values and the signal of a get.
        for (at, byte) in
            [(0, 0), (0, 4), (0, 6), (1, 3), (2, 1), (2, 8), (3, 1), (7, 1), (56, 1), (64, 1), (72, 1), (95, 1)]
        {
            let mut bytes = ask(Wish::Get(None));
            bytes[at] = byte;
            assert!(Ask::parse(&bytes).is_err(), "byte {at} is {byte}");
        }
        let change = Change { update: Update::Add, value: 1, compare: 0 };
        for (at, byte) in [(1, 0), (1, 7), (2, 4), (2, 2), (48, 7), (72, 1)] {
            let mut bytes = ask(Wish::Atomic(change));
            bytes[at] = byte;
            assert!(Ask::parse(&bytes).is_err(), "byte {at} is {byte}");
        }
        let mut bytes = ask(Wish::Put(None));
        bytes[1] = 4;
        assert!(Ask::parse(&bytes).is_err());
        let mut answer = Answer { number: 1, result: Ok(()), value: 0 }.to_bytes();
        answer[13] = 1;
        assert!(Answer::parse(&answer).is_err());
    }
}
