//! The argument of the kernel that copies blocks with gaps for a collective, as kernels/block_moves.cu declares it.

use std::ffi::c_void;

use super::job::{Argument, Job, Name, THREADS};
use super::shape::Shape;
use crate::copy::BlockCopy;

/// The most copies of one launch.
const MOST: usize = 16;
/// The most elements of a tile for each thread.
const MOST_EACH: u64 = 4;

#[derive(Clone, Copy)]
#[repr(C)]
struct Spread {
    /// The number of its first tile.
    tile: u64,
    shape: Shape,
}

/// Blocks with gaps that a collective copies from the memory of other ranks.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BlockMoves {
    job: Name,
    tiles: u64,
    count: u32,
    each: u32,
    spreads: [Spread; MOST],
}
const _: () = assert!(size_of::<BlockMoves>() == 32 + MOST * (8 + size_of::<Shape>()));

impl BlockMoves {
    /// Describes copies. Returns `None` if they are too many, or a count exceeds the kernel's range.
    pub(crate) fn new(copies: &[BlockCopy]) -> Option<BlockMoves> {
        let none = Spread { tile: 0, shape: Shape::NOTHING };
        let mut moves =
            BlockMoves { job: Name::NONE, tiles: 0, count: copies.len() as u32, each: 1, spreads: [none; MOST] };
        for (spread, copy) in moves.spreads.get_mut(..copies.len())?.iter_mut().zip(copies) {
            spread.shape = Shape::new(copy)?;
        }
        Some(moves)
    }
}

impl Argument for BlockMoves {
    /// Cuts the copies into tiles, smaller ones the less there is to copy, so that it is spread over more of the device. Returns
    /// a block for each tile, until the device is full.
    fn blocks(&mut self, multiprocessors: u32) -> u32 {
        let most = u64::from(multiprocessors.max(1));
        let spreads = &mut self.spreads[..self.count as usize];
        let elements: u64 = spreads.iter().map(|spread| u64::from(spread.shape.elements)).sum();
        let each = elements.div_ceil(u64::from(THREADS) * most).clamp(1, MOST_EACH);
        (self.each, self.tiles) = (each as u32, 0);
        for spread in spreads {
            spread.tile = self.tiles;
            self.tiles += u64::from(spread.shape.elements).div_ceil(each * u64::from(THREADS));
        }
        self.tiles.clamp(1, most) as u32
    }

    fn for_job(&mut self, job: &Job) -> *mut c_void {
        self.job = Name::of(job);
        (&raw mut *self).cast()
    }
}
