//! A sum that its first thread adds to without waiting for others.

use std::sync::atomic::Ordering::Relaxed;

use super::Locking;
use super::bias::{ANYBODY, NOBODY};
use super::platform::{AtomicU64, AtomicUsize, this_thread};

/// A sum that many threads add to, the first of them without waiting for the others.
pub struct Sum {
    /// What its owner added, and all if calls never overlap.
    owners: AtomicU64,
    others: AtomicU64,
    owner: Owner,
}

impl Sum {
    /// Nothing.
    pub fn new(locking: Locking) -> Self {
        Sum { owners: AtomicU64::new(0), others: AtomicU64::new(0), owner: Owner::new(locking) }
    }

    /// Adds and returns the new sum. Where threads add at the same time, each may miss what the others add.
    #[inline(always)]
    pub fn add(&self, n: u64) -> u64 {
        if self.owner.is_this_thread() {
            self.owners.store(self.owners.load(Relaxed).wrapping_add(n), Relaxed);
        } else {
            self.others.fetch_add(n, Relaxed);
        }
        self.get()
    }

    /// The sum.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.owners.load(Relaxed).wrapping_add(self.others.load(Relaxed))
    }

    /// Takes away.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.add(n.wrapping_neg());
    }
}

/// The first thread to ask, for ever.
struct Owner(AtomicUsize);

impl Owner {
    fn new(locking: Locking) -> Self {
        Owner(AtomicUsize::new(if locking.elided { ANYBODY } else { NOBODY }))
    }

    #[inline(always)]
    fn is_this_thread(&self) -> bool {
        let owner = self.0.load(Relaxed);
        owner == this_thread() || owner == ANYBODY || (owner == NOBODY && self.adopt())
    }

    #[cold]
    fn adopt(&self) -> bool {
        self.0.compare_exchange(NOBODY, this_thread(), Relaxed, Relaxed).is_ok()
    }
}
