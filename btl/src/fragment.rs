//! Memory of a BTL, filled by its user and then sent.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::streaming;

/// What a fragment will carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentKind {
    /// Data that the CPU copies in.
    Host,
    /// Data that a device's driver copies in, perhaps asynchronously: memory registered with it.
    Device,
}

/// Gives fragments their memory back. One per pool, shared by its fragments.
pub trait FragmentOwner: Send + Sync {
    /// Takes back a fragment that was dropped without being sent.
    fn give_back(&self, memory: NonNull<u8>, key: u64);
}

/// Exclusively owned memory of a BTL, on its way to one endpoint. May be filled by any thread and by a device, also
/// while its endpoint sends others.
pub struct Fragment {
    memory: NonNull<u8>,
    capacity: usize,
    key: u64,
    /// Messages of so many bytes or more are stored past the caches.
    streamed_from: usize,
    owner: Option<Arc<dyn FragmentOwner>>,
}

// SAFETY: a fragment is the only way to its memory until it is sent or dropped.
unsafe impl Send for Fragment {}

impl Fragment {
    /// Wraps memory of a BTL. `key` is the BTL's own name for it.
    ///
    /// # Safety
    /// `capacity` bytes at `memory` are valid, and nobody else's until `owner` gets them back or the BTL takes the
    /// fragment apart with [`into_key`](Self::into_key).
    pub unsafe fn new(memory: NonNull<u8>, capacity: usize, key: u64, owner: Arc<dyn FragmentOwner>) -> Self {
        Fragment { memory, capacity, key, streamed_from: usize::MAX, owner: Some(owner) }
    }

    /// Has [`fill`](Self::fill) store messages of `limit` bytes or more past the caches: for memory that another core
    /// will read.
    ///
    /// # Safety
    /// The fragment's as well is all of every line (64 bytes) of which a part is.
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
        // SAFETY: in bounds by the assertion; the memory is ours alone and `bytes` is a borrow of other memory.
        unsafe { self.memory.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Stores `header`, then `payload`, as the message. Other bytes of its first and last cache line may change.
    ///
    /// # Panics
    /// They do not fit.
    #[inline]
    pub fn fill(&mut self, header: &[u8], payload: &[u8]) {
        let len = header.len() + payload.len();
        if len >= self.streamed_from {
            assert!(len <= self.capacity, "fragment overrun");
            // SAFETY: the memory is ours alone, with its lines by the promise to `streamed_from`.
            unsafe { streaming::store(self.memory.as_ptr(), header, payload) }
        } else {
            self.write(0, header);
            self.write(header.len(), payload);
        }
    }

    /// A copy of the first `len` bytes.
    ///
    /// # Panics
    /// There are fewer.
    pub fn copied(&mut self, len: usize) -> Box<[u8]> {
        assert!(len <= self.capacity, "fragment overrun");
        let mut bytes = vec![0; len].into_boxed_slice();
        // SAFETY: in bounds by the assertion; the memory is ours alone.
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
