//! Room for buffered sends.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use cableway_pml::SendMode;

use crate::World;
use crate::world::Inner;

/// Room into which [`Communicator::bsend`](crate::Communicator::bsend) copies what cannot leave at once. Dropping it
/// waits until everything in it has left (as `MPI_Buffer_detach` does).
pub struct AttachedBuffer {
    inner: Arc<cableway_pml::AttachedBuffer>,
    /// From a box; the engine's until everything has left.
    memory: NonNull<[u64]>,
    world: Arc<Inner>,
}

// SAFETY: the memory is touched by the engine, under locks of its own, and by the drop after that.
unsafe impl Send for AttachedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AttachedBuffer {}

impl AttachedBuffer {
    /// What each message takes beside its own bytes (`MPI_BSEND_OVERHEAD`).
    pub const OVERHEAD: usize = cableway_pml::AttachedBuffer::OVERHEAD;

    /// Room for `bytes`.
    pub fn new(world: &World, bytes: usize) -> Self {
        let memory = NonNull::from(Box::leak(vec![0_u64; bytes.div_ceil(8)].into_boxed_slice()));
        // SAFETY: the memory is freed by the drop, when the engine's messages in it have left, or never.
        let inner = unsafe { cableway_pml::AttachedBuffer::new(memory.cast().as_ptr(), memory.len() * 8) };
        AttachedBuffer { inner: Arc::new(inner), memory, world: world.inner().clone() }
    }

    pub(crate) fn mode(&self) -> SendMode {
        SendMode::Buffered(self.inner.clone())
    }
}

impl Drop for AttachedBuffer {
    fn drop(&mut self) {
        let end = Instant::now() + self.world.patience();
        self.world.engine.wait_until(|| self.inner.is_empty() || Instant::now() > end);
        if self.inner.is_empty() {
            // SAFETY: made from a box by `new`; no message is in it, and none can come: `bsend` borrows `self`.
            drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
        } else {
            log::warn!("a buffer of {} bytes is not freed: messages in it cannot leave", self.memory.len() * 8);
        }
    }
}
