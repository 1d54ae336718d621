//! Blocks and forms of elements as bytes.
//!
//! ```text
//! form    | blocks: u32 | z: u32 | count: u64 | extent: i64 |                               24 bytes
//! block   | offset: i64 | len: u64 |                                                        16 bytes
//! shape   | blocks |
//! ```

use std::mem::offset_of;

use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::am::INLINE_LIMIT;
use crate::wire::{Malformed, layouts};

layouts! {
    /// See the module.
    FormLayout { blocks: U32, zero: U32, count: U64, extent: I64 }
    /// See the module.
    BlockLayout { offset: I64, len: U64 }
}

pub(crate) const FORM_LEN: usize = size_of::<FormLayout>();
pub(crate) const BLOCK_LEN: usize = size_of::<BlockLayout>();

const _: () = {
    assert!(FORM_LEN == 24 && BLOCK_LEN == 16);
    assert!(offset_of!(FormLayout, count) == 8 && offset_of!(FormLayout, extent) == 16);
    assert!(offset_of!(BlockLayout, len) == 8);
};

/// The blocks that a shape has room for.
pub(crate) const BLOCKS_IN_SHAPE: usize = INLINE_LIMIT / BLOCK_LEN;
/// The most blocks of an element. It bounds the memory that a peer can make a process use.
pub(crate) const MOST_BLOCKS: usize = 1 << 22;

/// One run of bytes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) offset: i64,
    pub(crate) len: u64,
}

/// How the blocks of an element repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// The blocks of an element, at most [`MOST_BLOCKS`]; not 0.
    pub(crate) blocks: u32,
    /// The elements.
    pub(crate) count: u64,
    /// The bytes from one element to the next.
    pub(crate) extent: i64,
}

impl Form {
    pub(crate) fn to_bytes(self) -> [u8; FORM_LEN] {
        let Form { blocks, count, extent } = self;
        let (zero, count, extent) = (U32::ZERO, U64::new(count), I64::new(extent));
        zerocopy::transmute!(FormLayout { blocks: U32::new(blocks), zero, count, extent })
    }

    /// Parses a form, and returns the bytes behind it, too.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Form, &[u8]), Malformed> {
        let wrong = |reason| Err(Malformed::OneSided(reason));
        let Ok((layout, rest)) = FormLayout::read_from_prefix(bytes) else {
            return wrong("a form of elements that is too short");
        };
        let blocks = layout.blocks.get();
        if layout.zero != U32::ZERO || blocks == 0 || blocks as usize > MOST_BLOCKS {
            return wrong("an invalid form of elements");
        }
        Ok((Form { blocks, count: layout.count.get(), extent: layout.extent.get() }, rest))
    }
}

/// Writes blocks.
pub(crate) fn block_bytes(blocks: &[Block]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(blocks.len() * BLOCK_LEN);
    for block in blocks {
        bytes.extend(BlockLayout { offset: block.offset.into(), len: block.len.into() }.as_bytes());
    }
    bytes
}

/// Parses blocks.
pub(crate) fn parse_blocks(bytes: &[u8]) -> Result<Vec<Block>, Malformed> {
    let layouts = <[BlockLayout]>::ref_from_bytes(bytes)
        .map_err(|_| Malformed::OneSided("the blocks of a shape are not whole"))?;
    let block = |layout: &BlockLayout| Block { offset: layout.offset.get(), len: layout.len.get() };
    Ok(layouts.iter().map(block).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn forms_are_read_as_they_were_written(
            blocks in 1..=MOST_BLOCKS as u32, count in any::<u64>(), extent in any::<i64>(), rest in any::<[u8; 3]>(),
        ) {
            let form = Form { blocks, count, extent };
            let bytes = [&form.to_bytes()[..], &rest].concat();
            prop_assert_eq!(Form::parse(&bytes).unwrap(), (form, &rest[..]));
            prop_assert!(Form::parse(&bytes[..FORM_LEN - 1]).is_err());
        }

        #[test]
        fn blocks_are_read_as_they_were_written(pairs in prop::collection::vec(any::<(i64, u64)>(), 0..9)) {
            let blocks: Vec<Block> = pairs.iter().map(|&(offset, len)| Block { offset, len }).collect();
            let bytes = block_bytes(&blocks);
            prop_assert_eq!(parse_blocks(&bytes).unwrap(), blocks);
            prop_assert!(parse_blocks(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn invalid_forms_are_refused() {
        let form = Form { blocks: 3, count: 1, extent: 8 };
        for (blocks, zero) in [(0, 0), (MOST_BLOCKS as u32 + 1, 0), (3, 1)] {
            let mut bytes = form.to_bytes();
            bytes[..4].copy_from_slice(&u32::to_le_bytes(blocks));
            bytes[7] = zero;
            assert!(Form::parse(&bytes).is_err(), "{blocks} blocks");
        }
    }
}
