//! A sum to which its first thread adds without an atomic read-modify-write.

use std::sync::atomic::Ordering::Relaxed;

use super::Locking;
use super::bias::{ANYBODY, NOBODY};
use super::elision;
use super::platform::{AtomicU64, AtomicUsize, this_thread};

/// A sum to which many threads add. The first of them needs no atomic read-modify-write.
pub struct Sum {
    /// The owner's part, or the whole sum if calls never overlap.
    owners: AtomicU64,
    others: AtomicU64,
    owner: Owner,
}

impl Sum {
    /// Makes a sum of zero.
    pub fn new(locking: Locking) -> Self {
        Sum { owners: AtomicU64::new(0), others: AtomicU64::new(0), owner: Owner::new(locking) }
    }

    /// Adds `n` and returns the new sum. Threads that add at the same time may each miss the other's part.
    #[inline(always)]
    pub fn add(&self, n: u64) -> u64 {
        if self.owner.is_this_thread() {
            self.owners.store(self.owners.load(Relaxed).wrapping_add(n), Relaxed);
        } else {
            self.others.fetch_add(n, Relaxed);
        }
        self.get()
    }

    /// Returns the sum.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.owners.load(Relaxed).wrapping_add(self.others.load(Relaxed))
    }

    /// Subtracts `n`.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.add(n.wrapping_neg());
    }
}

/// The first thread that asks, for good.
struct Owner(AtomicUsize);

impl Owner {
    fn new(locking: Locking) -> Self {
        Owner(AtomicUsize::new(if locking.elided { ANYBODY } else { NOBODY }))
    }

    #[inline(always)]
    fn is_this_thread(&self) -> bool {
        let owner = self.0.load(Relaxed);
        owner == this_thread() || (owner == ANYBODY && !elision::has_ended()) || (owner == NOBODY && self.adopt())
    }

    #[cold]
    fn adopt(&self) -> bool {
        self.0.compare_exchange(NOBODY, this_thread(), Relaxed, Relaxed).is_ok()
    }
}
