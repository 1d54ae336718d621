//! The block layout of a message for kernels: blocks at regular distances, or a list.

use std::sync::Arc;

use super::host_pool::HostMemory;
use super::lists::{Copies, ListMemory};
use crate::strided::{Rows, Strided, rows_from};

/// The largest number of blocks in a [`BlockList`]. Longer lists take too much time and memory (16 MiB).
pub const MOST_LISTED_BLOCKS: usize = 1 << 21;

/// The blocks of a message, in packing order, relative to some address.
#[derive(Clone, Debug)]
pub enum Spread {
    /// Blocks at regular distances.
    Regular(Strided),
    /// The blocks of a list, repeated at this distance in bytes.
    Listed(BlockList, i64),
}

impl Spread {
    /// Visits `len` packed bytes from `position` on as rows, for messages without a kernel. `to` and `from` of each row
    /// are its offsets among these bytes and in the user's memory.
    pub(crate) fn rows(&self, position: u64, len: u64, mut each: impl FnMut(Rows)) {
        match self {
            Spread::Regular(strided) => {
                rows_from((&Strided::run(position + len), position), (strided, position), len, |row| {
                    each(Rows { to: (row.to.0 - position as i64, row.to.1), ..row });
                });
            }
            Spread::Listed(list, extent) => {
                let mut done = 0;
                while done < len {
                    let (at, left) = list.find(position + done, *extent);
                    let width = left.min(len - done);
                    let pitch = width as usize;
                    each(Rows { to: (done as i64, pitch), from: (at, pitch), width: pitch, rows: 1 });
                    done += width;
                }
            }
        }
    }
}

/// A range of packed bytes that is moved between the user's device memory and other memory.
#[derive(Clone, Debug)]
pub struct Packing {
    /// The base address of the blocks.
    pub user: *mut u8,
    /// The message's blocks. They keep the list, which a kernel reads.
    pub spread: Spread,
    /// The first packed byte of the range. The message has at least `len` bytes from there on.
    pub position: u64,
    /// The packed bytes: in host memory, or on a device in a batch between devices.
    pub packed: *mut u8,
    /// The length in bytes.
    pub len: u64,
    /// True to unpack into the blocks.
    pub unpack: bool,
    /// True if copy engines may do the work block by block, with very many calls, if no kernel can.
    pub by_engines: bool,
}

// SAFETY: the addresses are for the driver and are never dereferenced here. The caller that adds the work promises that
// they stay valid, on any thread.
unsafe impl Send for Packing {}

/// A list of blocks as kernels read it, in registered host memory. Clones share it.
#[derive(Clone, Debug)]
pub struct BlockList {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Declared before the memory, because copies of it may be under way when it is dropped.
    copies: Copies,
    /// The [`Entry`] array.
    memory: HostMemory,
    blocks: u32,
    unit: u32,
    low: i64,
    size: u64,
    uniform: u32,
}

// SAFETY: nobody writes the memory once the list is made.
unsafe impl Sync for Inner {}

/// An entry, as kernels/copy.cu reads it: the block's offset from the lowest block, and the number of packed bytes
/// before it, both in units of the list. The last entry has only the total size.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    offset: u32,
    start: u32,
}
const _: () = assert!(size_of::<Entry>() == 8);

/// The largest element that a thread moves.
const WIDEST: u64 = 16;

impl BlockList {
    /// Lists blocks: their offsets and lengths in bytes, in packing order. Returns `None` if there are no blocks or too
    /// many, if their distances are too large for the kernel, or if memory is exhausted.
    pub(crate) fn in_memory(
        blocks: &[(i64, u64)],
        take: impl FnOnce(usize) -> Option<HostMemory>,
    ) -> Option<BlockList> {
        let blocks: Vec<(i64, u64)> = blocks.iter().copied().filter(|block| block.1 != 0).collect();
        let low = blocks.iter().map(|block| block.0).min().filter(|_| blocks.len() <= MOST_LISTED_BLOCKS)?;
        let size = blocks.iter().try_fold(0_u64, |size, block| size.checked_add(block.1))?;
        let bits = blocks.iter().fold(WIDEST, |bits, block| bits | block.0.wrapping_sub(low) as u64 | block.1);
        let unit = 1_u64 << bits.trailing_zeros();
        let in_units = |bytes: u64| u32::try_from(bytes / unit).ok();
        in_units(size)?;
        // Offsets are relative to the lowest block, so the highest block decides whether all offsets fit.
        in_units(blocks.iter().map(|block| block.0.abs_diff(low)).max()?)?;

        let memory = take((blocks.len() + 1) * size_of::<Entry>())?;
        let entries = memory.address().cast::<Entry>();
        let mut packed = 0;
        let starts = blocks.iter().map(|block| (block.0.abs_diff(low), block.1)).chain([(0, 0)]);
        for (index, (offset, len)) in starts.enumerate() {
            let entry = Entry { offset: in_units(offset)?, start: in_units(packed)? };
            // SAFETY: the memory has room for one entry more than there are blocks, and this function owns it.
            unsafe { entries.add(index).write(entry) };
            packed += len;
        }
        let first = blocks[0].1;
        let uniform = blocks.iter().all(|block| block.1 == first).then(|| i32::try_from(first).ok()).flatten();
        let (blocks, uniform) = (blocks.len() as u32, uniform.unwrap_or(0).unsigned_abs());
        let inner = Inner { copies: Copies::default(), memory, blocks, unit: unit as u32, low, size, uniform };
        Some(BlockList { inner: Arc::new(inner) })
    }

    /// Returns the number of blocks, never 0.
    pub fn blocks(&self) -> u64 {
        u64::from(self.inner.blocks)
    }

    /// Returns the number of bytes in all blocks.
    pub fn size(&self) -> u64 {
        self.inner.size
    }

    /// Returns the largest power of two, at most 16, that divides all offsets from the lowest block and all lengths.
    pub(crate) fn unit(&self) -> u32 {
        self.inner.unit
    }

    /// Returns the offset of the lowest block.
    pub(crate) fn low(&self) -> i64 {
        self.inner.low
    }

    /// Returns the bytes of each block; 0 if they differ or do not fit in 31 bits.
    pub(crate) fn uniform(&self) -> u32 {
        self.inner.uniform
    }

    /// Returns the address of its entries.
    pub(crate) fn entries(&self) -> *mut u8 {
        self.inner.memory.address()
    }

    /// Returns the size of the entries in bytes.
    pub(crate) fn bytes(&self) -> usize {
        (self.inner.blocks as usize + 1) * size_of::<Entry>()
    }

    /// Returns the address of its entries for kernels in a context; `None` if they are in host memory only.
    pub(crate) fn on_device(&self, memory: &Arc<ListMemory>) -> Option<u64> {
        self.inner.copies.address(memory, self.entries(), self.bytes())
    }

    fn entry(&self, index: usize) -> Entry {
        assert!(index <= self.inner.blocks as usize, "entry {index} of {}", self.inner.blocks);
        // SAFETY: within the list, whose entries nobody writes any more.
        unsafe { self.inner.memory.address().cast::<Entry>().add(index).read() }
    }

    /// Returns the offset of the byte at a packed position, and the number of bytes left in its block.
    fn find(&self, position: u64, extent: i64) -> (i64, u64) {
        let inner = &*self.inner;
        let (element, within) = (position / inner.size, position % inner.size);
        let (mut low, mut high) = (0, inner.blocks as usize);
        let start = |index: usize| u64::from(self.entry(index).start) * u64::from(inner.unit);
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            if start(middle) <= within { low = middle } else { high = middle }
        }
        let offset = inner.low + i64::from(self.entry(low).offset) * i64::from(inner.unit);
        let skipped = within - start(low);
        let element = (element as i64).wrapping_mul(extent);
        (offset.wrapping_add(element).wrapping_add(skipped as i64), start(low + 1) - within)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HostPool, Registrar};
    use super::*;

    fn listed(blocks: &[(i64, u64)]) -> Option<BlockList> {
        let pool = HostPool::with(Registrar::default(), 0);
        BlockList::in_memory(blocks, |len| pool.take(len))
    }

    #[test]
    fn rows_cover_the_bytes_of_a_range() {
        let blocks = [(40, 8), (-16, 4), (0, 0), (100, 1), (-8, 3)];
        let list = listed(&blocks).unwrap();
        assert_eq!((list.blocks(), list.size()), (4, 16));
        let bytes = |element: i64| {
            blocks.iter().flat_map(move |&(at, len)| (0..len as i64).map(move |byte| element * -300 + at + byte))
        };
        let all: Vec<i64> = (0..3).flat_map(bytes).collect();
        let regular = Strided { offset: 3, block: 4, dimensions: [(4, 7), (3, 100), (1, 0)] };
        for first in 0..48 {
            for len in 0..=48 - first {
                let mut found = Vec::new();
                Spread::Listed(list.clone(), -300).rows(first, len, |row| {
                    assert_eq!((row.to.0, row.rows), (found.len() as i64, 1));
                    found.extend((0..row.width as i64).map(|byte| row.from.0 + byte));
                });
                assert_eq!(found, all[first as usize..(first + len) as usize], "{len} bytes from {first} on");
                let mut covered = 0;
                Spread::Regular(regular).rows(first, len, |row| {
                    assert_eq!(row.to.0, covered);
                    covered += (row.width * row.rows) as i64;
                });
                assert_eq!(covered as u64, len);
            }
        }
    }

    #[test]
    fn layouts_beyond_the_kernels_range_are_not_listed() {
        assert!(listed(&[]).is_none() && listed(&[(5, 0)]).is_none());
        assert!(listed(&[(0, 8), (1 << 34, 8)]).is_some(), "in units of eight bytes");
        assert!(listed(&[(0, 8), (1 << 40, 8)]).is_none());
        assert!(listed(&[(0, 1), (1 << 33, 8)]).is_none());
        assert!(listed(&[(i64::MIN, 8), (i64::MAX - 7, 8)]).is_none());
        assert!(listed(&[(0, u64::MAX), (0, u64::MAX)]).is_none());
        let odd = listed(&[(3, 16), (35, 16)]).unwrap();
        assert_eq!(odd.inner.unit, 16, "the lowest block need not be aligned");
        assert_eq!(odd.inner.uniform, 16);
    }
}
