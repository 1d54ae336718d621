//! Shapes: blocks that come before the ask to which they belong.

use std::collections::HashMap;

use ahash::RandomState;
use parking_lot::Mutex;

use super::wire::{BLOCKS_IN_SHAPE, Block, MOST_BLOCKS, block_bytes, parse_blocks};
use crate::am::{Arrival, Poster};
use crate::buffer::Buffer;
use crate::error::Error;
use crate::wire::Malformed;

/// Blocks that shapes have brought, for the next ask of their origin that needs them.
#[derive(Default)]
pub(crate) struct Gathered {
    shapes: Mutex<HashMap<u32, Vec<Block>, RandomState>>,
}

impl Gathered {
    /// Keeps the blocks of a shape.
    pub(crate) fn arrive(&self, arrival: &Arrival<'_>) -> Result<(), Malformed> {
        let data = arrival.data().ok_or(Malformed::OneSided("the blocks of a shape do not come with it"))?;
        self.add(arrival.source(), data)
    }

    fn add(&self, origin: u32, data: &[u8]) -> Result<(), Malformed> {
        let blocks = parse_blocks(data)?;
        let mut shapes = self.shapes.lock();
        let kept = shapes.entry(origin).or_default();
        if blocks.is_empty() || blocks.len() > BLOCKS_IN_SHAPE || kept.len() + blocks.len() > MOST_BLOCKS {
            return Err(Malformed::OneSided("a shape has too many blocks, or none"));
        }
        kept.extend(blocks);
        Ok(())
    }

    /// As [`complete`](Self::complete), for an origin that posts no other ask between blocks and their ask.
    pub(crate) fn complete_next(
        &self,
        origin: u32,
        inline: Vec<Block>,
        expected: u32,
    ) -> Result<Vec<Block>, Malformed> {
        match self.shapes.lock().remove(&origin) {
            Some(kept) if inline.is_empty() && expected > 0 => counted(kept, expected),
            Some(_) => Err(Malformed::OneSided("the blocks of a shape belong to no ask")),
            None => counted(inline, expected),
        }
    }

    /// Returns the `expected` blocks of an ask: those that came in it, or else those that were kept.
    pub(crate) fn complete(&self, origin: u32, inline: Vec<Block>, expected: u32) -> Result<Vec<Block>, Malformed> {
        let found = match inline.is_empty() && expected > 0 {
            true => self.shapes.lock().remove(&origin).unwrap_or_default(),
            false => inline,
        };
        counted(found, expected)
    }
}

fn counted(blocks: Vec<Block>, expected: u32) -> Result<Vec<Block>, Malformed> {
    match blocks.len() == expected as usize {
        true => Ok(blocks),
        false => Err(Malformed::OneSided("an ask has more or fewer blocks than it says")),
    }
}

/// Posts the blocks that an ask has no room for, as messages with this id. No other ask without its blocks may be posted to
/// the target between them and their ask.
pub(crate) fn post_shapes(poster: &Poster, target: u32, id: u32, blocks: &[Block]) -> Result<(), Error> {
    for some in blocks.chunks(BLOCKS_IN_SHAPE) {
        let bytes = block_bytes(some);
        let buffer = Buffer::bytes(bytes.as_ptr(), bytes.len() as u64);
        // SAFETY: the bytes are valid host memory, and few enough to be copied.
        unsafe { poster.post_inline(target, id, &[], buffer)? };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_gets_the_blocks_of_its_origin_once() {
        let gathered = Gathered::default();
        let block = |offset| Block { offset, len: 1 };
        gathered.add(1, &block_bytes(&[block(1), block(2)])).unwrap();
        gathered.add(2, &block_bytes(&[block(9)])).unwrap();
        gathered.add(1, &block_bytes(&[block(3)])).unwrap();
        // An ask that brings its own blocks, or has none, leaves them.
        assert_eq!(gathered.complete(1, vec![block(7)], 1).unwrap(), [block(7)]);
        assert_eq!(gathered.complete(1, vec![], 0).unwrap(), []);
        assert_eq!(gathered.complete(1, vec![], 3).unwrap(), [block(1), block(2), block(3)]);
        assert!(gathered.complete(1, vec![], 3).is_err());
        assert!(gathered.complete(2, vec![], 2).is_err() && gathered.complete(2, vec![block(1)], 2).is_err());
    }

    #[test]
    fn the_next_ask_must_use_what_was_kept() {
        let gathered = Gathered::default();
        let block = |offset| Block { offset, len: 1 };
        let keep = || gathered.add(1, &block_bytes(&[block(1), block(2)])).unwrap();
        keep();
        assert_eq!(gathered.complete_next(2, vec![block(7)], 1).unwrap(), [block(7)]);
        assert_eq!(gathered.complete_next(1, vec![], 2).unwrap(), [block(1), block(2)]);
        assert_eq!(gathered.complete_next(1, vec![], 0).unwrap(), []);
        for (inline, expected) in [(vec![], 0), (vec![block(7)], 1), (vec![], 3)] {
            keep();
            assert!(gathered.complete_next(1, inline, expected).is_err(), "{expected} blocks");
        }
    }

    #[test]
    fn empty_and_endless_shapes_are_refused() {
        let gathered = Gathered::default();
        let full = block_bytes(&vec![Block { offset: 0, len: 1 }; BLOCKS_IN_SHAPE]);
        assert!(gathered.add(1, &[]).is_err() && gathered.add(1, &full[1..]).is_err());
        for _ in 0..MOST_BLOCKS / BLOCKS_IN_SHAPE {
            gathered.add(1, &full).unwrap();
        }
        assert!(gathered.add(1, &full).is_err());
    }
}
