//! Counts allocated memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator with a count of the allocated bytes. Use it as a test binary's `#[global_allocator]`.
#[derive(Debug, Default)]
pub struct Counting {
    bytes: AtomicUsize,
}

impl Counting {
    /// Creates it with a count of zero.
    pub const fn new() -> Self {
        Counting { bytes: AtomicUsize::new(0) }
    }

    /// Returns the bytes that are allocated now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

// SAFETY: every call is the system allocator's own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.bytes.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }
}
