//! The message of a convertor, without its position.

use std::ops::{ControlFlow, Range};
use std::ptr;

use crate::layout::Layout;
use crate::walk::Visitor;

/// A message in the user's buffer.
#[derive(Clone, Copy)]
pub(super) struct Message<'c> {
    /// `None` for a contiguous message. Then `base` is its first byte.
    pub(super) layout: Option<&'c Layout>,
    pub(super) count: u64,
    pub(super) base: *mut u8,
}

impl Message<'_> {
    /// Visits the packed bytes `range`, which lie within the message.
    pub(super) fn walk<V: Visitor>(&self, range: Range<u64>, visitor: &mut V) -> ControlFlow<()> {
        match self.layout {
            Some(layout) => layout.walk(self.count, range, visitor),
            None if range.is_empty() => ControlFlow::Continue(()),
            None => visitor.block(range.start as i64, range.end - range.start),
        }
    }

    /// The address at an offset that a walk gave.
    pub(super) fn at(&self, offset: i64) -> *mut u8 {
        at(self.base, offset)
    }
}

/// `offset` bytes from `base`. The base may be null and the offset an address (`MPI_BOTTOM`).
#[inline]
pub(super) fn at(base: *mut u8, offset: i64) -> *mut u8 {
    if base.is_null() {
        return ptr::with_exposed_provenance_mut(offset as usize);
    }
    base.wrapping_offset(offset as isize)
}
