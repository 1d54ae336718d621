//! Copies that were gathered for an operation and are not begun yet.

use super::workspace::Workspace;
use crate::copy::{BlockCopy, Direction, Order, RowCopy, Within};
use crate::driver::{Failure, Stream};
use crate::location::Location;
use crate::memory::Packing;

/// Copies that no mechanism has taken yet, and properties of the whole operation.
pub(super) struct Gathered {
    /// The device's side, at least of the first copy.
    pub(super) at: Location,
    pub(super) direction: Direction,
    pub(super) order: Order,
    pub(super) pieces: Vec<RowCopy>,
    pub(super) blocks: Vec<BlockCopy>,
    pub(super) stretches: Vec<Packing>,
    /// Bytes of all copies that were gathered.
    pub(super) bytes: usize,
    /// The host's side of all pieces is page-locked.
    pub(super) page_locked: bool,
    /// Kernels reach the memory of all pieces.
    pub(super) reachable: Option<Within>,
    /// The copies include one that only a kernel can make.
    pub(super) lost: bool,
}

impl Gathered {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.blocks.is_empty() && self.stretches.is_empty()
    }

    /// Checks whether each copy is a single row.
    pub(super) fn is_plain(&self) -> bool {
        self.blocks.is_empty() && self.stretches.is_empty() && self.pieces.iter().all(|piece| piece.rows == 1)
    }

    /// Returns the stream of the copies' direction, ordered after the work that the copies follow. The context is
    /// current.
    pub(super) fn ordered_stream<'w>(&mut self, workspace: &'w Workspace) -> Result<&'w Stream, Failure> {
        let stream = workspace.streams.of(self.direction)?;
        if workspace.waits(self.order) {
            workspace.default_stream.precede(stream)?;
            self.order = Order::None;
        }
        Ok(stream)
    }

    /// Clears everything, but keeps allocated memory.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.blocks.clear();
        self.stretches.clear();
        (self.bytes, self.page_locked, self.reachable, self.lost) = (0, false, None, false);
    }
}
