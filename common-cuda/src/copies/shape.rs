//! The shapes of copies between two ranges of device memory.

use super::batch::CopyBatch;
use crate::copy::BlockCopy;
use crate::memory::Packing;

/// Which bytes of two ranges are copied.
#[derive(Clone, Debug)]
pub enum CopyShape {
    /// All. The ranges have one length.
    Run,
    /// Blocks at regular distances, which a kernel reaches on both sides.
    Blocks(Box<BlockCopy>),
    /// Irregular blocks on one side, a run on the other, which a kernel reaches.
    Packed(Box<Packing>),
}

impl CopyBatch {
    /// Adds a copy of this shape. `len` is that of a run.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), [`copy_blocks`](Self::copy_blocks) or [`copy_packed`](Self::copy_packed).
    pub unsafe fn copy_shape(&mut self, dst: *mut u8, src: *const u8, len: usize, shape: &CopyShape) {
        // SAFETY: the caller's promise.
        unsafe {
            match shape {
                CopyShape::Run => self.copy(dst, src, len),
                CopyShape::Blocks(blocks) => self.copy_blocks(**blocks),
                CopyShape::Packed(packing) => self.copy_packed((**packing).clone()),
            }
        }
    }
}
