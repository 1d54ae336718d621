//! The argument of the kernels that copy runs of bytes, as kernels/copy.cu and kernels/moves.cu declare it.

use std::ffi::c_void;

use super::job::{Argument, Job, Name, THREADS};
use crate::driver::MOST_ARGUMENT;

/// The number of threads that copy a tile together.
const LANES: u32 = 32;

/// Copies that can be revoked.
pub(crate) type Pieces = List<64, 4096>;
/// Blocks that a collective copies from the memory of other ranks.
pub(crate) type Moves = List<16, 2048>;

#[derive(Clone, Copy)]
#[repr(C)]
struct Piece {
    to: u64,
    from: u64,
    len: u64,
    /// The number of its first tile.
    tile: u64,
}

/// A list of copies, cut into tiles of so many bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct List<const MOST: usize, const TILE: u64> {
    job: Name,
    tiles: u64,
    count: u64,
    pieces: [Piece; MOST],
}
const _: () = assert!(size_of::<Pieces>() == 32 + 64 * 32 && size_of::<Pieces>() <= MOST_ARGUMENT);
const _: () = assert!(size_of::<Moves>() == 32 + 16 * 32);

impl<const MOST: usize, const TILE: u64> List<MOST, TILE> {
    pub(crate) const NOTHING: Self = {
        let none = Piece { to: 0, from: 0, len: 0, tile: 0 };
        List { job: Name::NONE, tiles: 0, count: 0, pieces: [none; MOST] }
    };

    /// Adds a copy. Returns false if there is no room.
    pub(crate) fn push(&mut self, to: *mut u8, from: *const u8, len: u64) -> bool {
        let Some(piece) = self.pieces.get_mut(self.count as usize) else { return false };
        *piece = Piece { to: to as u64, from: from as u64, len, tile: self.tiles };
        self.tiles += len.div_ceil(TILE);
        self.count += 1;
        true
    }
}

impl<const MOST: usize, const TILE: u64> Argument for List<MOST, TILE> {
    /// Returns the blocks of twice as many groups as there are tiles: partly filled blocks spread over more of the device.
    fn blocks(&mut self, multiprocessors: u32) -> u32 {
        let wanted = self.tiles.div_ceil(u64::from(THREADS / LANES) / 2);
        wanted.clamp(1, u64::from(multiprocessors)) as u32
    }

    fn for_job(&mut self, job: &Job) -> *mut c_void {
        self.job = Name::of(job);
        (&raw mut *self).cast()
    }
}
