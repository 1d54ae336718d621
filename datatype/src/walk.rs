//! Visits the blocks of any range of a pattern's packed bytes, in packing order.
//!
//! The beginning of a range is found by a division or a binary search at each level of the tree. So no state is needed
//! between visits except the number of bytes.

use std::ops::{ControlFlow, Range};

use crate::node::{List, Node, Part, Piece};

/// Receives the blocks of a walk. Whole repetitions and lists arrive at once, for visitors with faster methods than one
/// block at a time. A visitor may end the walk.
pub(crate) trait Visitor {
    /// `len` adjacent bytes at `offset`.
    fn block(&mut self, offset: i64, len: u64) -> ControlFlow<()>;

    /// Visits `body`, whole, `count` times.
    fn repeat(&mut self, offset: i64, count: u64, stride: i64, body: &Node) -> ControlFlow<()> {
        for i in 0..count {
            walk_node(body, nth(offset, i, stride), self)?;
        }
        ControlFlow::Continue(())
    }

    /// Visits the blocks of all but the last of `pieces`, whole, relative to `offset`; `uniform` as in [`List`].
    fn list(&mut self, offset: i64, pieces: &[Piece], _uniform: u64) -> ControlFlow<()> {
        for pair in pieces.windows(2) {
            self.block(offset + pair[0].offset, pair[1].start - pair[0].start)?;
        }
        ControlFlow::Continue(())
    }
}

/// Returns the offset of a repetition. Every repetition's bytes lie within an `i64`, so the product cannot wrap for
/// valid `i`.
pub(crate) fn nth(offset: i64, i: u64, stride: i64) -> i64 {
    offset.wrapping_add((i as i64).wrapping_mul(stride))
}

/// Visits all of `node`.
pub(crate) fn walk_node<V: Visitor + ?Sized>(node: &Node, offset: i64, visitor: &mut V) -> ControlFlow<()> {
    match node {
        Node::Block(len) => visitor.block(offset, *len),
        Node::Repeat(repeat) => visitor.repeat(offset, repeat.count, repeat.stride, &repeat.body),
        Node::List(list) => visitor.list(offset, &list.pieces, list.uniform),
        Node::Sequence(sequence) => {
            for part in sequence.parts.iter() {
                walk_node(&part.node, offset + part.offset, visitor)?;
            }
            ControlFlow::Continue(())
        }
    }
}

/// Visits the packed bytes `range` of `count` repetitions of `body`.
pub(crate) fn walk_repeat<V: Visitor + ?Sized>(
    (count, stride, body): (u64, i64, &Node),
    offset: i64,
    range: Range<u64>,
    visitor: &mut V,
) -> ControlFlow<()> {
    let size = body.size();
    let mut first = range.start / size;
    let skipped = range.start % size;
    let mut left = range.end - range.start;
    if skipped != 0 {
        let taken = left.min(size - skipped);
        walk_range(body, nth(offset, first, stride), skipped..skipped + taken, visitor)?;
        left -= taken;
        first += 1;
    }
    let whole = (left / size).min(count.saturating_sub(first));
    match whole {
        0 => {}
        1 => walk_node(body, nth(offset, first, stride), visitor)?,
        _ => visitor.repeat(nth(offset, first, stride), whole, stride, body)?,
    }
    let rest = left - whole * size;
    if rest != 0 {
        walk_range(body, nth(offset, first + whole, stride), 0..rest, visitor)?;
    }
    ControlFlow::Continue(())
}

/// Visits the packed bytes `range` of `node`. The range lies within it and is not empty.
fn walk_range<V: Visitor + ?Sized>(node: &Node, offset: i64, range: Range<u64>, visitor: &mut V) -> ControlFlow<()> {
    match node {
        Node::Block(_) => visitor.block(offset + range.start as i64, range.end - range.start),
        Node::Repeat(repeat) => walk_repeat((repeat.count, repeat.stride, &repeat.body), offset, range, visitor),
        Node::List(list) => walk_list(list, offset, range, visitor),
        Node::Sequence(sequence) => walk_parts(&sequence.parts, offset, range, visitor),
    }
}

fn walk_list<V: Visitor + ?Sized>(list: &List, offset: i64, range: Range<u64>, visitor: &mut V) -> ControlFlow<()> {
    let pieces = &list.pieces;
    let end_of = |i: usize| pieces[i + 1].start;
    let mut first = pieces.partition_point(|piece| piece.start <= range.start) - 1;
    let skipped = range.start - pieces[first].start;
    if skipped != 0 || range.end < end_of(first) {
        let taken = range.end.min(end_of(first)) - range.start;
        visitor.block(offset + pieces[first].offset + skipped as i64, taken)?;
        first += 1;
    }
    // The blocks from `first` up to `last` are whole.
    let last = first + pieces[first..].partition_point(|piece| piece.start <= range.end).max(1) - 1;
    if last > first {
        visitor.list(offset, &pieces[first..=last], list.uniform)?;
    }
    match range.end.checked_sub(pieces[last].start) {
        Some(rest) if rest != 0 => visitor.block(offset + pieces[last].offset, rest),
        _ => ControlFlow::Continue(()),
    }
}

fn walk_parts<V: Visitor + ?Sized>(parts: &[Part], offset: i64, range: Range<u64>, visitor: &mut V) -> ControlFlow<()> {
    let first = parts.partition_point(|part| part.start <= range.start) - 1;
    for part in &parts[first..] {
        if part.start >= range.end {
            break;
        }
        let size = part.node.size();
        let from = range.start.saturating_sub(part.start);
        let to = (range.end - part.start).min(size);
        let at = offset + part.offset;
        if from == 0 && to == size {
            walk_node(&part.node, at, visitor)?;
        } else {
            walk_range(&part.node, at, from..to, visitor)?;
        }
    }
    ControlFlow::Continue(())
}

/// Adjacent bytes of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The bytes from the buffer's address to the first.
    pub offset: i64,
    /// The number of bytes.
    pub len: u64,
}

/// Collects blocks, with adjacent ones in packing order joined. Stops before it exceeds its limit. `bytes` counts
/// everything that it has ever taken.
#[derive(Clone)]
pub(crate) struct Collect {
    pub(crate) pieces: Vec<Block>,
    pub(crate) bytes: u64,
    limit: usize,
}

impl Collect {
    pub(crate) fn new(limit: usize) -> Self {
        Collect { pieces: Vec::new(), bytes: 0, limit }
    }

    /// Clears the list, except `first`.
    pub(crate) fn restart(&mut self, first: Option<Block>) {
        self.pieces.clear();
        self.pieces.extend(first);
    }
}

impl Visitor for Collect {
    fn block(&mut self, offset: i64, len: u64) -> ControlFlow<()> {
        let full = self.pieces.len() == self.limit;
        match self.pieces.last_mut() {
            Some(last) if last.offset.checked_add_unsigned(last.len) == Some(offset) => last.len += len,
            _ if full => return ControlFlow::Break(()),
            _ => self.pieces.push(Block { offset, len }),
        }
        self.bytes += len;
        ControlFlow::Continue(())
    }
}
