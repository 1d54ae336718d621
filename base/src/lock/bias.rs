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

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize, compiler_fence};

use super::Locking;

/// Threads are named by an address of their own; these are no such addresses.
const NOBODY: usize = 0;
const REVOKED: usize = usize::MAX;
/// Taken away, but perhaps not seen by the owner yet.
const REVOKING: usize = usize::MAX - 1;
/// Whoever comes is the owner: calls do not overlap.
const ANYBODY: usize = usize::MAX - 2;

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
    pub(super) const fn new(locking: Locking) -> Self {
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
        // The other side's fence makes this one do for the processor, too.
        compiler_fence(SeqCst);
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
            std::thread::yield_now();
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

/// The first thread to ask, for ever.
pub(super) struct Owner(AtomicUsize);

impl Owner {
    pub(super) const fn new(locking: Locking) -> Self {
        Owner(AtomicUsize::new(if locking.elided { ANYBODY } else { NOBODY }))
    }

    #[inline(always)]
    pub(super) fn is_this_thread(&self) -> bool {
        let owner = self.0.load(Relaxed);
        owner == this_thread() || owner == ANYBODY || (owner == NOBODY && self.adopt())
    }

    #[cold]
    fn adopt(&self) -> bool {
        self.0.compare_exchange(NOBODY, this_thread(), Relaxed, Relaxed).is_ok()
    }
}

/// A name of the calling thread. One that has ended may leave it to a new one, which comes after all that it did.
#[inline(always)]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn this_thread() -> usize {
    let address: usize;
    // SAFETY: the ABI puts a thread's own address there. A thread-local variable would take a call where this code is
    // loaded at run time.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) address, options(nostack, preserves_flags, readonly)) };
    address
}

#[inline(always)]
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

/// Whether [`fence_everywhere`] can be called. Asks, and no more: to register for it takes a process that has threads
/// some milliseconds, until every processor has passed through the scheduler, and most never have a bias taken away.
fn fences_work() -> bool {
    static WORK: OnceLock<bool> = OnceLock::new();
    *WORK.get_or_init(|| {
        let needed = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;
        membarrier(libc::MEMBARRIER_CMD_QUERY).is_some_and(|supported| supported & needed == needed)
    })
}

/// Every thread of the process passes a full fence between the beginning and the end of this call.
fn fence_everywhere() {
    // Refused until this process, which may be a child of one that did so, has registered.
    let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_some()
        || (membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_some()
            && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_some());
    if !done {
        // Documented not to happen where it is supported. Going on would let two threads into one lock.
        log::error!("the system refuses a memory barrier that it said it supports: the process cannot go on");
        std::process::abort();
    }
}

/// What the system returns; None if it refuses.
fn membarrier(command: libc::c_int) -> Option<libc::c_int> {
    // SAFETY: a system call that touches no memory of ours.
    let returned = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    libc::c_int::try_from(returned).ok().filter(|&returned| returned >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_thread_owns_it_until_another_comes() {
        if !fences_work() {
            println!("skipped: this system has no membarrier, so that no lock is biased");
            return;
        }
        let bias = Bias::new(Locking::REAL);
        assert_eq!(bias.pass(), Passage::Inside);
        assert_eq!(bias.pass(), Passage::Again);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(bias.pass(), Passage::Refused);
                assert!(!bias.revoke(), "the owner is inside");
            });
        });
        bias.leave();
        assert!(bias.revoke());
        assert_eq!(bias.pass(), Passage::Refused, "for good");
    }

    #[test]
    fn an_elided_one_is_everybodys() {
        // SAFETY: the two threads follow each other.
        let bias = Bias::new(unsafe { Locking::elided() });
        for _ in 0..2 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(bias.pass(), Passage::Inside);
                    assert_eq!(bias.pass(), Passage::Again);
                    bias.leave();
                });
            });
        }
    }
}
