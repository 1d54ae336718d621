//! Two lock-free rings through which processes send to each other, and the words through which they share work.
//!
//! [`fast_box`] carries messages from one process to another with their bytes inline. [`fifo`] belongs to one receiver,
//! is written by all other processes, and carries only references. An [`offer`] is one word. All are generic over their
//! memory, so that loom can explore an instance within one process. [`segment`](crate::segment) defines the layout in
//! shared memory.

pub(crate) mod fast_box;
pub(crate) mod fifo;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod offer;

use std::sync::atomic::{AtomicU64, Ordering};

/// The operations on a 64-bit word of a ring.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64>;
    fn fetch_max(&self, value: u64, order: Ordering) -> u64;
}

macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
            #[inline(always)]
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }
            #[inline(always)]
            fn compare_exchange(&self, current: u64, new: u64, ok: Ordering, failed: Ordering) -> Result<u64, u64> {
                self.compare_exchange(current, new, ok, failed)
            }
            #[inline(always)]
            fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_max(value, order)
            }
        }
    };
}

word!(AtomicU64);
#[cfg(all(test, loom))]
word!(loom::sync::atomic::AtomicU64);

/// The peer wrote a word that no correct program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Corrupt(pub(crate) &'static str);
