//! The buffer that buffered sends copy messages to.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use cableway_pml::SendMode;

use crate::World;
use crate::inner::Inner;

/// A buffer for messages of [`Communicator::bsend`](crate::Communicator::bsend) that cannot be sent at once. Dropping it
/// waits until all messages in it are sent, as `MPI_Buffer_detach` does. Several threads may use one at a time.
pub struct AttachedBuffer {
    inner: Arc<cableway_pml::AttachedBuffer>,
    /// Leaked from a box. The engine uses it until all messages in it are sent.
    memory: NonNull<[u64]>,
    world: Arc<Inner>,
}

// SAFETY: only the engine accesses the memory, under its own locks; `drop` frees it after the engine is done.
unsafe impl Send for AttachedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AttachedBuffer {}

impl AttachedBuffer {
    /// Bytes that each message takes in addition to its data (`MPI_BSEND_OVERHEAD`).
    pub const OVERHEAD: usize = cableway_pml::AttachedBuffer::OVERHEAD;

    /// Allocates a buffer of `bytes`. A message of `n` bytes takes `n` plus [`OVERHEAD`](Self::OVERHEAD) of them.
    pub fn new(world: &World, bytes: usize) -> Self {
        let memory = NonNull::from(Box::leak(vec![0_u64; bytes.div_ceil(8)].into_boxed_slice()));
        // SAFETY: `drop` frees the memory after all messages in it are sent, or leaks it.
        let inner = unsafe { cableway_pml::AttachedBuffer::new(memory.cast().as_ptr(), memory.len() * 8) };
        AttachedBuffer { inner: Arc::new(inner), memory, world: world.inner().clone() }
    }

    pub(crate) fn mode(&self) -> SendMode {
        SendMode::Buffered(self.inner.clone())
    }
}

impl Drop for AttachedBuffer {
    fn drop(&mut self) {
        let end = Instant::now() + self.world.peer_timeout();
        self.world.engine.wait_until(|| self.inner.is_empty() || Instant::now() > end);
        if self.inner.is_empty() {
            // SAFETY: `new` made it from a box. It holds no message, and none can be added: `bsend` borrows `self`.
            drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
        } else {
            log::warn!(
                "leaking an attached buffer of {} bytes: messages in it could not be sent",
                self.memory.len() * 8
            );
        }
    }
}
