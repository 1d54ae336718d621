//! What the locks ask of the machine and the system. Under loom, `model` stands in for it.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::compiler_fence;

use parking_lot::lock_api::{RawMutex as _, RawRwLock as _};

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(super) use std::thread::yield_now;

/// The ordinary lock behind a bias.
pub(super) struct RawMutex(parking_lot::RawMutex);

impl RawMutex {
    pub(super) const fn new() -> Self {
        RawMutex(parking_lot::RawMutex::INIT)
    }

    pub(super) fn lock(&self) {
        self.0.lock();
    }

    pub(super) fn try_lock(&self) -> bool {
        self.0.try_lock()
    }

    /// # Safety
    /// The calling thread holds it.
    pub(super) unsafe fn unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unlock() };
    }
}

/// The same that many may read at once.
pub(super) struct RawRwLock(parking_lot::RawRwLock);

impl RawRwLock {
    pub(super) const fn new() -> Self {
        RawRwLock(parking_lot::RawRwLock::INIT)
    }

    pub(super) fn lock_shared(&self) {
        self.0.lock_shared();
    }

    pub(super) fn lock_exclusive(&self) {
        self.0.lock_exclusive();
    }

    /// # Safety
    /// The calling thread reads.
    pub(super) unsafe fn unlock_shared(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unlock_shared() };
    }

    /// # Safety
    /// The calling thread writes.
    pub(super) unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unlock_exclusive() };
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

/// The owner's half of a fence whose other half is [`fence_everywhere`]. It keeps the compiler from moving accesses across
/// it; the other half does the same to the processor.
#[inline(always)]
pub(super) fn light_fence() {
    compiler_fence(SeqCst);
}

/// Whether [`fence_everywhere`] can be called. Asks, and no more: to register for it takes a process that has threads
/// some milliseconds, until every processor has passed through the scheduler, and most never have a bias taken away.
pub(super) fn fences_work() -> bool {
    static WORK: OnceLock<bool> = OnceLock::new();
    *WORK.get_or_init(|| {
        let needed = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;
        membarrier(libc::MEMBARRIER_CMD_QUERY).is_some_and(|supported| supported & needed == needed)
    })
}

/// Every thread of the process passes a full fence between the beginning and the end of this call.
pub(super) fn fence_everywhere() {
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
    // SAFETY: a system call that touches no memory of this process.
    let returned = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    libc::c_int::try_from(returned).ok().filter(|&returned| returned >= 0)
}
