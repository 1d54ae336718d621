//! Which thread may pass a lock without an atomic read-modify-write.
//!
//! Most programs send and receive from one thread, though nothing promises it, and an uncontended lock still costs that
//! thread two such instructions, which wait for all its stores, a message on its way to another processor among them.
//! So a lock is *biased* towards the first thread that takes it. That thread only notes that it is inside and then
//! looks whether it still is the owner; any other thread takes the bias away, once and for good, and from then on the
//! lock is an ordinary one.
//!
//! That is Dekker's algorithm with its two fences moved to one side: the thread that takes the bias away has the kernel
//! put a fence into every thread of the process (`membarrier(2)`, Linux 4.14 and later). After it, either the owner's
//! note is seen here, or the owner sees here that it is none any more.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

use super::Locking;
use super::platform::{AtomicBool, AtomicUsize, fence_everywhere, fences_work, light_fence, this_thread, yield_now};

/// Threads are named by an address of their own; these are no such addresses.
pub(super) const NOBODY: usize = 0;
const REVOKED: usize = usize::MAX;
/// Taken away, but perhaps not seen by the owner yet.
const REVOKING: usize = usize::MAX - 1;
/// Whoever comes is the owner: calls do not overlap.
pub(super) const ANYBODY: usize = usize::MAX - 2;

pub(super) struct Bias {
    owner: AtomicUsize,
    /// The owner is inside. Written by the owner alone.
    inside: AtomicBool,
}

/// How an attempt to pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// The calling thread is inside and must leave.
    Inside,
    /// It was inside already.
    Again,
    /// It must take the ordinary lock, and then revoke the bias.
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
        if owner == this_thread() || owner == ANYBODY { self.enter(owner) } else { self.adopt() }
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

    /// Makes the first thread the owner.
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

    /// Takes the bias away; the caller holds the ordinary lock. Whether the owner is outside now, and will stay so.
    #[inline]
    pub(super) fn revoke(&self) -> bool {
        if self.owner.load(Acquire) != REVOKED {
            self.revoke_now();
        }
        !self.inside.load(Acquire)
    }

    /// As [`revoke`](Self::revoke), and waits for the owner to leave.
    #[inline]
    pub(super) fn revoke_and_wait(&self) {
        while !self.revoke() {
            yield_now();
        }
    }

    #[cold]
    fn revoke_now(&self) {
        // A thread that finds another one at it puts in a fence of its own rather than trust that the other's is done.
        let before = self.owner.swap(REVOKING, SeqCst);
        if before != NOBODY && fences_work() {
            fence_everywhere();
        }
        self.owner.store(REVOKED, Release);
    }
}
