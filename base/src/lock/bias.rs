//! Biases a lock towards one thread, which then takes it without an atomic read-modify-write.
//!
//! Most programs send and receive from one thread, though the API does not promise it. An uncontended lock still costs
//! that thread two atomic read-modify-writes. Each waits for all earlier stores of the thread, including a message on
//! its way to another processor. Therefore a lock is *biased* towards the first thread that takes it. That thread only
//! marks that it is inside, and then checks that it is still the owner. Any other thread revokes the bias for good.
//! From then on the lock is an ordinary one.
//!
//! This is Dekker's algorithm with both fences moved to one side. The thread that revokes the bias makes the kernel
//! execute a fence in every thread of the process (`membarrier(2)`, Linux 4.14 and later). After the fence, either the
//! revoking thread sees the owner's mark, or the owner sees the revocation.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

use super::Locking;
use super::elision;
use super::platform::{AtomicBool, AtomicUsize, fence_everywhere, fences_work, light_fence, this_thread, yield_now};

/// No thread identifier, which is an address within the thread's own memory, has one of these values.
pub(super) const NOBODY: usize = 0;
const REVOKED: usize = usize::MAX;
/// The bias is revoked, but the owner may not have seen it yet.
const REVOKING: usize = usize::MAX - 1;
/// Every calling thread counts as the owner, because calls do not overlap. Once elision has ended, none does: each lock
/// then becomes an ordinary one at its next use.
pub(super) const ANYBODY: usize = usize::MAX - 2;

pub(super) struct Bias {
    owner: AtomicUsize,
    /// The owner is inside. Only the owner writes this.
    inside: AtomicBool,
}

/// The result of an attempt to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// The calling thread is inside and must leave.
    Inside,
    /// The calling thread is inside already.
    Again,
    /// The calling thread must take the ordinary lock, and then revoke the bias.
    Refused,
}

impl Bias {
    pub(super) fn new(locking: Locking) -> Self {
        let owner = if locking.elided { ANYBODY } else { NOBODY };
        Bias { owner: AtomicUsize::new(owner), inside: AtomicBool::new(false) }
    }

    #[inline(always)]
    pub(super) fn pass(&self) -> Passage {
        let owner = self.owner.load(Relaxed);
        let owns = owner == this_thread() || (owner == ANYBODY && !elision::has_ended());
        if owns { self.enter(owner) } else { self.adopt() }
    }

    #[inline(always)]
    fn enter(&self, owner: usize) -> Passage {
        if self.inside.load(Relaxed) {
            return Passage::Again;
        }
        self.inside.store(true, Relaxed);
        light_fence();
        if self.owner.load(Relaxed) == owner {
            compiler_fence(Acquire);
            return Passage::Inside;
        }
        self.leave();
        Passage::Refused
    }

    #[inline(always)]
    pub(super) fn leave(&self) {
        self.inside.store(false, Release);
    }

    /// Makes the first calling thread the owner.
    #[inline]
    fn adopt(&self) -> Passage {
        if self.owner.load(Relaxed) == NOBODY { self.adopt_now() } else { Passage::Refused }
    }

    #[cold]
    fn adopt_now(&self) -> Passage {
        let me = this_thread();
        if fences_work() && self.owner.compare_exchange(NOBODY, me, Acquire, Relaxed).is_ok() {
            return self.enter(me);
        }
        Passage::Refused
    }

    /// Revokes the bias. The caller holds the ordinary lock. Returns whether the owner is outside, where it then stays.
    #[inline]
    pub(super) fn revoke(&self) -> bool {
        if self.owner.load(Acquire) != REVOKED {
            self.revoke_now();
        }
        !self.inside.load(Acquire)
    }

    /// Revokes the bias, and waits until the owner leaves.
    #[inline]
    pub(super) fn revoke_and_wait(&self) {
        while !self.revoke() {
            yield_now();
        }
    }

    #[cold]
    fn revoke_now(&self) {
        // Another thread may be revoking too. Execute a fence here as well, as the other thread's may not be complete.
        let before = self.owner.swap(REVOKING, SeqCst);
        if before != NOBODY && fences_work() {
            fence_everywhere();
        }
        self.owner.store(REVOKED, Release);
    }
}
