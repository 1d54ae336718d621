//! The pieces of a user's buffer that form a message.

use std::ops::Range;

use super::message::Message;
use crate::walk::Collect;

/// Adjacent bytes of a user's buffer, in any memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first byte.
    pub address: *mut u8,
    /// The number of bytes.
    pub len: usize,
}

/// Appends at most `max` pieces from the beginning of `range`. Returns their bytes.
pub(super) fn list(message: &Message<'_>, range: Range<u64>, max: usize, out: &mut Vec<Piece>) -> u64 {
    if message.layout.is_none() {
        let len = range.end - range.start;
        out.push(Piece { address: message.at(range.start as i64), len: len as usize });
        return len;
    }
    let mut blocks = Collect::new(max);
    let _full = message.walk(range, &mut blocks);
    let piece = |block: &crate::walk::Block| Piece { address: message.at(block.offset), len: block.len as usize };
    out.extend(blocks.pieces.iter().map(piece));
    blocks.bytes
}
