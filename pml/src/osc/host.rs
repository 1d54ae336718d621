//! What a window leaves to the host of the engine.

use cableway_common_cuda::{Element, ReduceOperation};

use crate::tag::Engine;

/// A reduction that kernels know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelReduction {
    /// The operation.
    pub operation: ReduceOperation,
    /// The type of the elements, which have no gaps.
    pub element: Element,
}

/// What a window needs of its host.
pub trait Host: Send + Sync {
    /// Makes progress until `done` returns true.
    fn wait_until(&self, engine: &Engine, done: &mut dyn FnMut() -> bool);

    /// Returns the bytes of data in an element that a reduction combines, or `None` if there is no such reduction. The
    /// numbers come from a peer.
    fn element_size(&self, operation: u32, element: u32) -> Option<usize>;

    /// Returns the same reduction for kernels, or `None` if they have none for such elements without gaps between them.
    /// [`reduce`](Self::reduce) must give the same results.
    fn kernel(&self, operation: u32, element: u32) -> Option<KernelReduction>;

    /// Combines `count` elements of `from` into those of `into`, which are packed and in host memory. Returns false if
    /// there is no such reduction.
    ///
    /// # Safety
    /// Both hold so many elements, `into` is writable, and they do not overlap. Nothing is aligned.
    unsafe fn reduce(&self, operation: u32, element: u32, into: *mut u8, from: *const u8, count: usize) -> bool;
}
