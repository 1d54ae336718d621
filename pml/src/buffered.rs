//! The attached buffer of buffered sends.

/// Memory into which buffered sends copy what cannot leave at once. The memory is the host's.
pub struct AttachedBuffer {
    size: usize,
}

impl AttachedBuffer {
    /// What each message in the buffer needs beside its packed bytes (`MPI_BSEND_OVERHEAD`).
    pub const OVERHEAD: usize = 128;

    /// # Safety
    /// `size` bytes of host memory at `memory` stay valid, and nobody else's, until the value is dropped, which the
    /// engine's messages in it delay: wait for [`is_empty`](Self::is_empty) first (`MPI_Buffer_detach`).
    pub unsafe fn new(_memory: *mut u8, size: usize) -> Self {
        AttachedBuffer { size }
    }

    /// Whether every message in it has left.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }
}
