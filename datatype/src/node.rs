//! The tree of a layout.
//!
//! A node's offsets count from the first byte *in packing order*, so that equal patterns at different places are equal
//! nodes. The order is a part of the pattern: no two bytes are ever swapped. No node is empty. A node's size, and the
//! distance between any two of its bytes, fit in an `i64`; the constructors of datatypes check that.

use std::sync::Arc;

/// A pattern of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// This many adjacent bytes.
    Block(u64),
    /// One pattern, repeated at a constant distance.
    Repeat(Repeat),
    /// Blocks at irregular distances.
    List(List),
    /// Different patterns, one after the other.
    Sequence(Sequence),
}

/// See [`Node::Repeat`]. `count` is at least 2.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Repeat {
    pub(crate) count: u64,
    /// The bytes from one repetition to the next; may be zero or negative.
    pub(crate) stride: i64,
    pub(crate) body: Arc<Node>,
}

/// See [`Node::List`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct List {
    /// The blocks, and one more entry whose `start` is the list's size, so that every block's length is the distance to
    /// the next start.
    pub(crate) pieces: Arc<[Piece]>,
    /// The common length of the blocks; 0 if they differ.
    pub(crate) uniform: u64,
}

/// A block of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    /// The offset of the block.
    pub(crate) offset: i64,
    /// The number of bytes of the list that are packed before it.
    pub(crate) start: u64,
}

/// See [`Node::Sequence`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sequence {
    pub(crate) parts: Arc<[Part]>,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
}

/// A pattern within a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    /// The offset of the pattern.
    pub(crate) offset: i64,
    /// The number of bytes of the sequence that are packed before it.
    pub(crate) start: u64,
    pub(crate) node: Node,
}

/// A node and the offset of its first byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Placed {
    pub(crate) offset: i64,
    pub(crate) node: Node,
}

impl Node {
    /// Returns the bytes of data.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Node::Block(len) => *len,
            Node::Repeat(repeat) => repeat.count * repeat.body.size(),
            Node::List(list) => list.size(),
            Node::Sequence(sequence) => sequence.size,
        }
    }

    /// Returns the number of blocks: adjacent blocks of different repetitions count as two. At most the size.
    pub(crate) fn blocks(&self) -> u64 {
        match self {
            Node::Block(_) => 1,
            Node::Repeat(repeat) => repeat.count * repeat.body.blocks(),
            Node::List(list) => list.pieces.len() as u64 - 1,
            Node::Sequence(sequence) => sequence.blocks,
        }
    }

    /// Creates the repetition of `body` in normal form: adjacent bytes are one block, and nested repetitions at the
    /// same distance are one repetition. `count` is not 0.
    pub(crate) fn repeat(count: u64, stride: i64, body: Node) -> Node {
        if count == 1 {
            return body;
        }
        let continues = |inner: u64, step: i64| i128::from(stride) == i128::from(inner) * i128::from(step);
        match body {
            Node::Block(len) if i128::from(stride) == i128::from(len) => Node::Block(count * len),
            Node::Repeat(inner) if continues(inner.count, inner.stride) => {
                Node::Repeat(Repeat { count: count * inner.count, ..inner })
            }
            body => Node::Repeat(Repeat { count, stride, body: Arc::new(body) }),
        }
    }

    /// Creates a node of items one after the other, without merging: a list if all are blocks. There are at least two.
    pub(crate) fn sequence(items: Vec<Placed>) -> Placed {
        let origin = items[0].offset;
        if items.iter().all(|item| matches!(item.node, Node::Block(_))) {
            return Placed { offset: origin, node: Node::List(List::new(origin, &items)) };
        }
        let (mut size, mut blocks) = (0, 0);
        let mut parts = Vec::with_capacity(items.len());
        for item in items {
            let start = size;
            size += item.node.size();
            blocks += item.node.blocks();
            parts.push(Part { offset: item.offset - origin, start, node: item.node });
        }
        Placed { offset: origin, node: Node::Sequence(Sequence { parts: parts.into(), size, blocks }) }
    }
}

impl List {
    fn new(origin: i64, blocks: &[Placed]) -> List {
        let mut start = 0;
        let mut pieces = Vec::with_capacity(blocks.len() + 1);
        for block in blocks {
            pieces.push(Piece { offset: block.offset - origin, start });
            start += block.node.size();
        }
        pieces.push(Piece { offset: 0, start });
        let first = pieces[1].start;
        let uniform = if pieces.windows(2).all(|pair| pair[1].start - pair[0].start == first) { first } else { 0 };
        List { pieces: pieces.into(), uniform }
    }

    pub(crate) fn size(&self) -> u64 {
        self.pieces[self.pieces.len() - 1].start
    }
}
