//! Memory of a BTL that its user fills and sends.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::streaming;

/// The kind of data in a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentKind {
    /// Data that the CPU copies.
    Host,
    /// The same, by non-temporal stores where they may pay.
    Streamed,
    /// Data that a device copies, perhaps asynchronously. The memory is registered with its driver.
    Device,
}

/// Takes back the memory of fragments. The fragments of a pool share one owner.
pub trait FragmentOwner: Send + Sync {
    /// Takes back an unsent fragment.
    fn give_back(&self, memory: NonNull<u8>, key: u64);
}

/// Exclusively owned memory of a BTL for one message of one endpoint. Any thread or device may fill it, even while its
/// endpoint sends other fragments.
pub struct Fragment {
    memory: NonNull<u8>,
    capacity: usize,
    key: u64,
    /// Messages of at least this length are written by non-temporal stores.
    streamed_from: usize,
    owner: Option<Arc<dyn FragmentOwner>>,
}

// SAFETY: only the fragment accesses its memory until it is sent or dropped.
unsafe impl Send for Fragment {}

impl Fragment {
    /// Wraps memory of a BTL. `key` identifies it for the BTL.
    ///
    /// # Safety
    /// The `capacity` bytes at `memory` are valid and belong to the fragment until `owner` gets them back or
    /// [`into_key`](Self::into_key) consumes the fragment.
    pub unsafe fn new(memory: NonNull<u8>, capacity: usize, key: u64, owner: Arc<dyn FragmentOwner>) -> Self {
        Fragment { memory, capacity, key, streamed_from: usize::MAX, owner: Some(owner) }
    }

    /// Makes [`fill`](Self::fill) write messages of at least `limit` bytes by non-temporal stores, for memory that
    /// another core will read.
    ///
    /// # Safety
    /// The fragment also owns the rest of every cache line (64 bytes) that it touches.
    #[inline]
    #[must_use]
    pub unsafe fn streamed_from(mut self, limit: usize) -> Self {
        self.streamed_from = limit;
        self
    }

    /// The first byte.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Room, in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Copies `bytes` in at `offset`.
    ///
    /// # Panics
    /// They do not fit.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.capacity), "fragment overrun");
        // SAFETY: in bounds by the assertion. The fragment owns the memory, and `bytes` borrows other memory.
        unsafe { self.memory.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Writes `header`, then `payload`, as the message. Other bytes of its first and last cache line may change.
    ///
    /// # Panics
    /// Panics if they do not fit.
    #[inline]
    pub fn fill(&mut self, header: &[u8], payload: &[u8]) {
        let len = header.len() + payload.len();
        if self.is_streamed(len) {
            assert!(len <= self.capacity, "fragment overrun");
            // SAFETY: the fragment owns the memory, with its cache lines by the promise to `streamed_from`.
            unsafe { streaming::store(self.memory.as_ptr(), header, payload) }
        } else {
            self.write(0, header);
            self.write(header.len(), payload);
        }
    }

    /// Returns whether [`fill`](Self::fill) stores a message of `len` bytes past the caches.
    #[inline]
    pub fn is_streamed(&self, len: usize) -> bool {
        len >= self.streamed_from
    }

    /// Copies the first `len` bytes.
    ///
    /// # Panics
    /// Panics if the fragment is shorter.
    pub fn copied(&mut self, len: usize) -> Box<[u8]> {
        assert!(len <= self.capacity, "fragment overrun");
        let mut bytes = vec![0; len].into_boxed_slice();
        // SAFETY: in bounds by the assertion, and the fragment owns the memory.
        unsafe { self.memory.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Returns the key and gives the memory back to the BTL that made it.
    #[inline]
    pub fn into_key(mut self) -> u64 {
        self.owner = None;
        self.key
    }
}

impl Drop for Fragment {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            owner.give_back(self.memory, self.key);
        }
    }
}
