//! The kernels' arguments, as kernels/copy.cu declares them.

use std::ffi::c_void;

use super::job::{Argument as _, Job, Name, THREADS};
use super::packed::Packed;
use super::pieces::Pieces;
use super::shape::Shape;
use crate::copy::BlockCopy;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Strides {
    job: Name,
    shape: Shape,
}
const _: () = assert!(size_of::<Strides>() == 24 + 2 * 48);

impl Strides {
    pub(super) const NOTHING: Strides = Strides { job: Name::NONE, shape: Shape::NOTHING };

    /// Describes the first `len` bytes of both sides. Returns `None` if a count exceeds the kernel's range.
    pub(crate) fn new(copy: &BlockCopy) -> Option<Strides> {
        Some(Strides { job: Name::NONE, shape: Shape::new(copy)? })
    }
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
            Work::Strided(strides) => strides.shape.elements.div_ceil(THREADS).clamp(1, multiprocessors),
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
