//! The view of a datatype for communication.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use cableway_common_cuda::{BlockList, Devices, Location, MOST_LISTED_BLOCKS, Spread, Strided};

use crate::bounds::Bounds;
use crate::error::Error;
use crate::node::{Node, Placed};
use crate::normal::normalise;
use crate::walk::{Block, Collect, Visitor, walk_node, walk_repeat};

/// The canonical layout of a committed datatype: the bytes of one element in packing order, and the distance to the
/// next element. It is immutable, and clones share it.
///
/// # Equality
///
/// Two layouts of types with at most 4096 blocks each are equal if and only if their bytes in packing order and their
/// extents are equal, however the types were built. Equal layouts pack the same bytes for any count.
///
/// Layouts of larger types that compare equal pack the same bytes, too. The converse holds only if the following rules
/// transform one into the other, at every level of the type: adjacent blocks in packing order are one block; a
/// repetition of contiguous blocks without gaps is one block; a repetition of a repetition that continues at the same
/// distance is one repetition; a regular sequence is a repetition; a repetition followed or preceded by one more of the
/// same is a longer one.
///
/// The layout does not tell to which element a byte belongs: four `MPI_BYTE` equal one `MPI_INT`.
#[derive(Clone)]
pub struct Layout {
    inner: Arc<Inner>,
}

struct Inner {
    pattern: Option<Placed>,
    extent: i64,
    size: u64,
    true_lb: i64,
    true_extent: u64,
    /// The element's size if it is one block, else 0. The path of contiguous messages reads only this and `dense`.
    block: u64,
    /// True if there are no gaps between elements.
    dense: bool,
    offset: i64,
    /// A message of n elements is `n * units` copies of `unit` at a distance of `stride`.
    units: u64,
    stride: i64,
    unit: Node,
    /// The unit's blocks as kernels read them, computed at first use; `None` if they cannot be listed.
    list: OnceLock<Option<BlockList>>,
}

impl Layout {
    pub(crate) fn new(pattern: Option<Placed>, extent: i64, bounds: &Bounds) -> Layout {
        let pattern = pattern.map(normalise);
        let (true_lb, true_ub) = bounds.data.unwrap_or((0, 0));
        let (offset, node) = pattern.as_ref().map_or((0, Node::Block(0)), |p| (p.offset, p.node.clone()));
        let size = node.size();
        let block = if let Node::Block(len) = node { len } else { 0 };
        let (units, stride, unit) = match node {
            Node::Repeat(repeat) if i128::from(repeat.count) * i128::from(repeat.stride) == i128::from(extent) => {
                (repeat.count, repeat.stride, (*repeat.body).clone())
            }
            node => (1, extent, node),
        };
        Layout {
            inner: Arc::new(Inner {
                pattern,
                extent,
                size,
                true_lb: true_lb as i64,
                true_extent: (true_ub - true_lb) as u64,
                block,
                dense: i128::from(extent) == i128::from(block),
                offset,
                units,
                stride,
                unit,
                list: OnceLock::new(),
            }),
        }
    }

    /// Returns the bytes of data in one element.
    #[inline]
    pub fn size(&self) -> u64 {
        self.inner.size
    }

    /// Returns the distance between consecutive elements.
    #[inline]
    pub fn extent(&self) -> i64 {
        self.inner.extent
    }

    /// Returns the lowest offset of any byte of an element.
    pub fn true_lb(&self) -> i64 {
        self.inner.true_lb
    }

    /// Returns the distance from an element's lowest byte to the end of its highest byte.
    pub fn true_extent(&self) -> u64 {
        self.inner.true_extent
    }

    /// Returns the number of blocks of an element, with adjacent blocks merged as in the normal form.
    pub fn block_count(&self) -> u64 {
        self.inner.pattern.as_ref().map_or(0, |pattern| pattern.node.blocks())
    }

    /// Returns the bytes of data in `count` elements.
    ///
    /// # Errors
    /// They do not fit in 64 bits.
    pub fn packed_size(&self, count: u64) -> Result<u64, Error> {
        let size = self.size();
        size.checked_mul(count).ok_or(Error::MessageTooLarge { count, size })
    }

    /// Checks whether the data of `count` elements is one run of bytes. No elements count as one run.
    pub fn is_contiguous(&self, count: u64) -> bool {
        self.size() == 0 || count == 0 || self.contiguous_span(count).is_some()
    }

    /// Returns the run of bytes of `count` elements: the offset of its first byte from the buffer's address, and its
    /// length. Returns `None` if there are several runs or no byte. This takes a few instructions, and a message that
    /// is one run needs no convertor.
    #[inline]
    pub fn contiguous_span(&self, count: u64) -> Option<(i64, u64)> {
        let inner = &*self.inner;
        if inner.block == 0 || count == 0 || !(inner.dense || count == 1) {
            return None;
        }
        Some((inner.offset, inner.block.checked_mul(count)?))
    }

    /// Returns the range of the bytes of `count` elements: the offset of its first byte from the buffer's address, and
    /// its length. Returns `None` if there is no byte, or if the range exceeds every buffer.
    pub fn span(&self, count: u64) -> Option<(i64, u64)> {
        if count == 0 || self.size() == 0 {
            return None;
        }
        let reach = i128::from(count - 1) * i128::from(self.extent());
        let low = i128::from(self.true_lb()) + reach.min(0);
        let len = i128::from(self.true_extent()) + reach.abs();
        i64::try_from(low + len).ok()?;
        Some((i64::try_from(low).ok()?, u64::try_from(len).ok()?))
    }

    /// Classifies the data of `count` elements at `base`, by the range from its first to its last byte. `base` itself
    /// may be far away (`MPI_BOTTOM`). A message without bytes causes no query. If
    /// [`in_one_allocation`](Self::in_one_allocation) is false, one location is not enough, and the convertor finds
    /// more.
    pub fn classify(&self, base: *const u8, count: u64, devices: &Devices) -> Location {
        match self.span(count) {
            Some((offset, len)) => {
                devices.classify(base.wrapping_offset(offset as isize), usize::try_from(len).unwrap_or(usize::MAX))
            }
            None => Location::HOST,
        }
    }

    /// Checks whether the data of `count` elements at `base`, classified as `location`, certainly lies in one
    /// allocation, or all of it in host memory. A type of absolute addresses (`base` is null, MPI's `MPI_BOTTOM`) may
    /// have its blocks anywhere. For any other type the first and the last byte decide.
    pub fn in_one_allocation(&self, base: *const u8, count: u64, location: &Location, devices: &Devices) -> bool {
        if !devices.present() {
            return true;
        }
        let Some((offset, len)) = self.span(count) else { return true };
        let address = base.wrapping_offset(offset as isize);
        (!base.is_null() || self.contiguous_span(count).is_some())
            && devices.one_allocation(location, address, usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Returns the blocks of `count` elements in packing order, with adjacent blocks joined. Returns none if their
    /// range exceeds every buffer.
    pub fn blocks(&self, count: u64) -> Blocks<'_> {
        let end = self.span(count).map_or(0, |_| self.size().saturating_mul(count));
        Blocks { layout: self, count, position: 0, end, batch: Collect::new(BATCH), next: 0 }
    }

    /// Returns the layout in a form for kernels.
    pub fn shape(&self) -> Shape {
        let Some(pattern) = &self.inner.pattern else { return Shape::Empty };
        let mut outer_first = Vec::new();
        let mut node = &pattern.node;
        while let Node::Repeat(repeat) = node {
            outer_first.push(Dimension { count: repeat.count, stride: repeat.stride });
            node = &repeat.body;
        }
        match node {
            Node::Block(block) if outer_first.len() <= MAX_DIMENSIONS => {
                outer_first.reverse();
                Shape::Strided { offset: pattern.offset, block: *block, dimensions: outer_first }
            }
            _ => Shape::Irregular,
        }
    }

    /// Returns the data of `count` elements as blocks at regular distances, relative to the buffer's address. Returns
    /// `None` for other data, or data without bytes.
    pub fn strided(&self, count: u64) -> Option<Strided> {
        let inner = &*self.inner;
        self.span(count)?;
        let mut strided = Strided { offset: inner.offset, ..Strided::run(1) };
        let outermost = (count.checked_mul(inner.units)?, inner.stride);
        let (mut dimensions, mut node) = (vec![outermost], &inner.unit);
        while let Node::Repeat(repeat) = node {
            dimensions.push((repeat.count, repeat.stride));
            node = &repeat.body;
        }
        let Node::Block(block) = node else { return None };
        strided.block = *block;
        dimensions.retain(|dimension| dimension.0 != 1);
        dimensions.reverse();
        strided.dimensions.get_mut(..dimensions.len())?.copy_from_slice(&dimensions);
        strided.size().filter(|size| Some(*size) == self.size().checked_mul(count)).map(|_| strided)
    }

    /// Returns the data of `count` elements in a form for kernels; `None` if there is none.
    pub(crate) fn spread(&self, count: u64, devices: &Devices) -> Option<Spread> {
        if let Some(strided) = self.strided(count) {
            return Some(Spread::Regular(strided));
        }
        let inner = &*self.inner;
        let list = inner.list.get_or_init(|| {
            if inner.unit.blocks() > MOST_LISTED_BLOCKS as u64 {
                return None;
            }
            let mut blocks = Collect::new(usize::MAX);
            let _whole = walk_node(&inner.unit, inner.offset, &mut blocks);
            let blocks: Vec<(i64, u64)> = blocks.pieces.iter().map(|block| (block.offset, block.len)).collect();
            BlockList::new(devices, &blocks)
        });
        Some(Spread::Listed(list.clone()?, inner.stride))
    }

    /// Visits the packed bytes `range` of `count` elements.
    pub(crate) fn walk<V: Visitor>(&self, count: u64, range: Range<u64>, visitor: &mut V) -> ControlFlow<()> {
        if range.is_empty() {
            return ControlFlow::Continue(());
        }
        let inner = &*self.inner;
        // At most the number of bytes, which the caller has checked or limited.
        let units = count.saturating_mul(inner.units);
        walk_repeat((units, inner.stride, &inner.unit), inner.offset, range, visitor)
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
            || (self.inner.extent == other.inner.extent && self.inner.pattern == other.inner.pattern)
    }
}

impl Eq for Layout {}

impl Hash for Layout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.extent.hash(state);
        self.inner.pattern.hash(state);
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("size", &self.size())
            .field("extent", &self.extent())
            .field("blocks", &self.block_count())
            .field("shape", &self.shape())
            .finish()
    }
}

/// The largest number of dimensions of [`Shape::Strided`].
pub const MAX_DIMENSIONS: usize = 3;

/// A layout, as [`Layout::shape`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// No data.
    Empty,
    /// Blocks of `block` bytes, the first at `offset`, repeated along at most [`MAX_DIMENSIONS`] dimensions, the
    /// innermost first. Without a dimension it is one block.
    Strided {
        /// The offset of the first block in packing order.
        offset: i64,
        /// The bytes of each block.
        block: u64,
        /// The repetitions, the innermost first.
        dimensions: Vec<Dimension>,
    },
    /// Anything else: see [`Layout::blocks`].
    Irregular,
}

/// One dimension of [`Shape::Strided`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dimension {
    /// The number of repetitions, at least 2.
    pub count: u64,
    /// The bytes from one repetition to the next; may be zero or negative.
    pub stride: i64,
}

/// The number of blocks that [`Blocks`] fetches at a time.
const BATCH: usize = 64;

/// Iterator over the blocks of a message; see [`Layout::blocks`].
#[derive(Clone)]
pub struct Blocks<'l> {
    layout: &'l Layout,
    count: u64,
    position: u64,
    end: u64,
    batch: Collect,
    next: usize,
}

impl Iterator for Blocks<'_> {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        // The last block of the batch is held back, because the next batch may begin with an adjacent block.
        if self.next + 1 >= self.batch.pieces.len() && self.position < self.end {
            let held = self.batch.pieces.get(self.next).copied();
            self.batch.restart(held);
            self.next = 0;
            let range = self.position..self.end;
            let before = self.batch.bytes;
            let _full = self.layout.walk(self.count, range, &mut self.batch);
            self.position += self.batch.bytes - before;
        }
        let block = self.batch.pieces.get(self.next).copied();
        self.next += 1;
        block
    }
}

impl fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("layout", self.layout).field("position", &self.position).finish()
    }
}
