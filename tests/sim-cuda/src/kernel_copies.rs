//! The kernels that copy: what `common-cuda/kernels/copy.cu`, `moves.cu` and `block_moves.cu` do, block of threads by block of
//! threads.

use crate::driver::crash;
use crate::kernel_memory::{Job, Memory, THREADS};

/// The groups of a block, each of which copies a tile at a time.
const GROUPS: u64 = 512 / 32;

#[derive(Clone, Copy)]
#[repr(C)]
struct Piece {
    to: u64,
    from: u64,
    len: u64,
    tile: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Pieces<const MOST: usize, const TILE: u64> {
    pub(crate) job: Job,
    tiles: u64,
    count: u64,
    pieces: [Piece; MOST],
}

/// Copies that can be revoked.
pub(crate) type Copies = Pieces<64, 4096>;
/// Copies that cannot.
pub(crate) type Moves = Pieces<16, 2048>;

#[derive(Clone, Copy)]
#[repr(C)]
struct Side {
    address: u64,
    stride: [i64; 3],
    block: u32,
    count: [u32; 3],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Shape {
    elements: u32,
    width: u32,
    to: Side,
    from: Side,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Strided {
    pub(crate) job: Job,
    shape: Shape,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Spread {
    tile: u64,
    shape: Shape,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BlockMoves {
    pub(crate) job: Job,
    tiles: u64,
    count: u32,
    each: u32,
    spreads: [Spread; 16],
}

impl<const MOST: usize, const TILE: u64> Pieces<MOST, TILE> {
    /// Does the work of one block of threads.
    pub(crate) fn run(&self, block: u64, blocks: u64, memory: &mut Memory) {
        for group in 0..GROUPS {
            for tile in (block + blocks * group..self.tiles).step_by((blocks * GROUPS) as usize) {
                let list = &self.pieces[..self.count as usize];
                let piece = list[list.partition_point(|piece| piece.tile <= tile) - 1];
                let at = (tile - piece.tile) * TILE;
                memory.copy(piece.to + at, piece.from + at, TILE.min(piece.len - at));
            }
        }
    }
}

impl Strided {
    /// Does the work of one block of threads.
    pub(crate) fn run(&self, block: u64, blocks: u64, memory: &mut Memory) {
        let (threads, elements) = (u64::from(THREADS), u64::from(self.shape.elements));
        for first in (block * threads..elements).step_by((blocks * threads) as usize) {
            (first..(first + threads).min(elements)).for_each(|index| self.shape.copy(index as u32, memory));
        }
    }
}

impl BlockMoves {
    /// Does the work of one block of threads.
    pub(crate) fn run(&self, block: u64, blocks: u64, memory: &mut Memory) {
        let of_tile = u64::from(THREADS) * u64::from(self.each);
        for tile in (block..self.tiles).step_by(blocks as usize) {
            let list = &self.spreads[..self.count as usize];
            let spread = list[list.partition_point(|spread| spread.tile <= tile) - 1];
            let first = (tile - spread.tile) * of_tile;
            let until = (first + of_tile).min(spread.shape.elements.into());
            (first..until).for_each(|index| spread.shape.copy(index as u32, memory));
        }
    }
}

impl Shape {
    fn copy(&self, index: u32, memory: &mut Memory) {
        let width = self.width;
        let at = |side: &Side| {
            let mut address = side.address + u64::from(index % side.block * width);
            let mut rest = index / side.block;
            for (count, stride) in side.count.into_iter().zip(side.stride) {
                address = address.wrapping_add_signed(stride * i64::from(rest % count));
                rest /= count;
            }
            address
        };
        let (to, from) = (at(&self.to), at(&self.from));
        if !(to | from).is_multiple_of(width.into()) {
            crash("a kernel's element, which is not aligned, at", (to | from) as usize);
        }
        memory.copy(to, from, width.into());
    }
}
