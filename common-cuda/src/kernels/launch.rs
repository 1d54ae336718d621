//! The kernels' arguments, as kernels/copy.cu declares them.

use std::ffi::c_void;

use super::job::{Argument as _, Job, Name, THREADS};
use super::packed::Packed;
use super::pieces::Pieces;
use crate::copy::BlockCopy;
use crate::strided::{MAX_STRIDED_DIMENSIONS, Strided};

#[derive(Clone, Copy)]
#[repr(C)]
struct Side {
    address: u64,
    stride: [i64; MAX_STRIDED_DIMENSIONS],
    /// In elements.
    block: u32,
    count: [u32; MAX_STRIDED_DIMENSIONS],
}

/// Blocks at regular distances.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Strides {
    job: Name,
    elements: u32,
    width: u32,
    to: Side,
    from: Side,
}
const _: () = assert!(size_of::<Strides>() == 24 + 2 * 48);

impl Strides {
    pub(super) const NOTHING: Strides = {
        let side = Side { address: 0, stride: [0; 3], block: 1, count: [1; 3] };
        Strides { job: Name::NONE, elements: 0, width: 1, to: side, from: side }
    };

    /// Describes the first `len` bytes of both sides. Returns `None` if a count exceeds the kernel's range.
    pub(crate) fn new(copy: &BlockCopy) -> Option<Strides> {
        let len = copy.len;
        let to = (copy.dst as u64, copy.dst_blocks.simplified());
        let from = (copy.src as u64, copy.src_blocks.simplified());
        let width = width(to, from, len);
        let side = |(address, side): (u64, Strided)| -> Option<Side> {
            let number = |count: u64| u32::try_from(count).ok();
            let mut count = [1; MAX_STRIDED_DIMENSIONS];
            for (count, dimension) in count.iter_mut().zip(side.dimensions) {
                *count = number(dimension.0)?;
            }
            let address = address.wrapping_add_signed(side.offset);
            Some(Side {
                address,
                stride: side.dimensions.map(|dimension| dimension.1),
                block: number(side.block / width)?,
                count,
            })
        };
        let elements = u32::try_from(len / width).ok()?;
        Some(Strides { job: Name::NONE, elements, width: width as u32, to: side(to)?, from: side(from)? })
    }
}

/// Returns the largest element that divides both sides.
fn width(to: (u64, Strided), from: (u64, Strided), len: u64) -> u64 {
    let mut bits = 16 | len;
    for (address, side) in [to, from] {
        bits |= address.wrapping_add_signed(side.offset) | side.block;
        bits = side
            .dimensions
            .iter()
            .filter(|dimension| dimension.0 > 1)
            .fold(bits, |bits, dimension| bits | dimension.1 as u64);
    }
    1 << bits.trailing_zeros()
}

/// A kernel of the module.
#[derive(Clone, Copy)]
pub(super) enum Kernel {
    Pieces,
    Strided,
    Packed,
}

/// A job's work.
pub(crate) enum Work {
    Pieces(Box<Pieces>),
    Strided(Strides),
    Packed(Packed),
}

impl Work {
    /// Returns the number of thread blocks for the work, on a device that runs one on each of this many
    /// multiprocessors.
    pub(super) fn blocks(&mut self, multiprocessors: u32) -> u32 {
        match self {
            Work::Packed(packed) => packed.divide(multiprocessors),
            Work::Pieces(pieces) => pieces.blocks(multiprocessors),
            Work::Strided(strides) => strides.elements.div_ceil(THREADS).clamp(1, multiprocessors),
        }
    }

    /// Returns the kernel for a job, and its argument.
    pub(super) fn for_job(&mut self, job: &Job) -> (Kernel, *mut c_void) {
        match self {
            Work::Pieces(pieces) => (Kernel::Pieces, pieces.for_job(job)),
            Work::Strided(strides) => {
                strides.job = Name::of(job);
                (Kernel::Strided, (&raw mut *strides).cast())
            }
            Work::Packed(packed) => {
                packed.job = Name::of(job);
                (Kernel::Packed, (&raw mut *packed).cast())
            }
        }
    }
}
