//! Packing and unpacking by the CPU.
//!
//! The packed side is one run of bytes. The walk visits the user's side. Regular parts use the loops of
//! [`super::loops`].

use std::ops::{ControlFlow, Range};

use super::loops::{self, Rows, with_constant};
use super::message::{Message, at};
use crate::node::{List, Node, Piece};
use crate::walk::{Visitor, nth, walk_node};

/// The size of a tile: the bytes of the user's buffer that stay in the fastest cache while fields are taken from them
/// one after the other.
const TILE: u64 = 16 << 10;

/// The number of repetitions from which a loop over one field pays.
const WORTH_A_COLUMN: u64 = 8;

/// Moves the packed bytes `range` of a message from or to `packed`.
///
/// # Safety
/// The range lies within the message. The message's bytes are valid host memory, writable unless `PACK`; the packed
/// bytes are valid and writable if `PACK`. The two do not overlap.
pub(super) unsafe fn move_range<const PACK: bool>(message: &Message<'_>, range: Range<u64>, packed: *mut u8) {
    let mut mover = Mover::<PACK> { base: message.base, packed };
    let _whole = message.walk(range, &mut mover);
}

/// Invariant, promised to `move_range`: everything that the walk visits is valid, and so are the bytes from `packed`
/// on.
struct Mover<const PACK: bool> {
    base: *mut u8,
    packed: *mut u8,
}

impl<const PACK: bool> Visitor for Mover<PACK> {
    #[inline]
    fn block(&mut self, offset: i64, len: u64) -> ControlFlow<()> {
        // SAFETY: a walk visits the message's bytes, in packing order, and both sides are valid as promised.
        unsafe {
            loops::move_short::<PACK>(at(self.base, offset), self.packed, len as usize);
            self.packed = self.packed.add(len as usize);
        }
        ControlFlow::Continue(())
    }

    fn repeat(&mut self, offset: i64, count: u64, stride: i64, body: &Node) -> ControlFlow<()> {
        let (this, single) = (Rows { count, stride }, Rows { count: 1, stride: 0 });
        match body {
            Node::Block(len) => self.rows(offset, *len, this, single),
            Node::Repeat(inner) if matches!(*inner.body, Node::Block(_)) => {
                self.rows(offset, inner.body.size(), Rows { count: inner.count, stride: inner.stride }, this);
            }
            Node::List(list) if TILE / stride.unsigned_abs().max(1) >= WORTH_A_COLUMN => {
                self.columns(offset, this, list);
            }
            _ => return (0..count).try_for_each(|i| walk_node(body, nth(offset, i, stride), self)),
        }
        ControlFlow::Continue(())
    }

    fn list(&mut self, offset: i64, pieces: &[Piece], uniform: u64) -> ControlFlow<()> {
        let user = at(self.base, offset);
        // SAFETY: as in `block`, for every block of the list.
        unsafe {
            let moved = with_constant!(uniform, loops::move_list::<PACK>(user, self.packed, pieces));
            self.packed = moved.unwrap_or_else(|| loops::move_any_list::<PACK>(user, self.packed, pieces));
        }
        ControlFlow::Continue(())
    }
}

impl<const PACK: bool> Mover<PACK> {
    fn rows(&mut self, offset: i64, len: u64, inner: Rows, outer: Rows) {
        let user = at(self.base, offset);
        // SAFETY: as in `block`, for every row of the repetition.
        unsafe {
            let moved = with_constant!(len, loops::move_rows::<PACK>(user, self.packed, inner, outer));
            self.packed = moved.unwrap_or_else(|| loops::move_any_rows::<PACK>(user, self.packed, len, inner, outer));
        }
    }

    /// Moves a repeated list: within a tile, each block for all of the tile's repetitions before the next block.
    fn columns(&mut self, offset: i64, Rows { count, stride }: Rows, list: &List) {
        let size = list.size();
        let tile = TILE / stride.unsigned_abs().max(1);
        let mut first = 0;
        while first < count {
            let tall = tile.min(count - first);
            for pair in list.pieces.windows(2) {
                let (len, user) =
                    (pair[1].start - pair[0].start, at(self.base, nth(offset + pair[0].offset, first, stride)));
                // SAFETY: as in `block`, for this block of every repetition of the tile.
                unsafe {
                    let packed = self.packed.add(pair[0].start as usize);
                    let column = Rows { count: tall, stride };
                    with_constant!(len, loops::move_column::<PACK>(user, packed, column, size))
                        .unwrap_or_else(|| loops::move_any_column::<PACK>(user, packed, len, column, size));
                }
            }
            // SAFETY: the tile's packed bytes.
            self.packed = unsafe { self.packed.add((tall * size) as usize) };
            first += tall;
        }
    }
}
