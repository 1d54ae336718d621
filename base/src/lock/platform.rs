//! Wraps what the locks need of the machine and the system. Under loom, `model` replaces it.

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

/// The ordinary readers-writer lock behind a bias.
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
    /// The calling thread holds it as a reader.
    pub(super) unsafe fn unlock_shared(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unlock_shared() };
    }

    /// # Safety
    /// The calling thread holds it as the writer.
    pub(super) unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unlock_exclusive() };
    }
}

/// Returns an identifier of the calling thread. A new thread may reuse the identifier of one that has ended. Everything
/// that the ended thread did happens before that.
#[inline(always)]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn this_thread() -> usize {
    let address: usize;
    // SAFETY: the ABI stores a thread's own address there. A thread-local variable would cost a call in a library that
    // is loaded at run time.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) address, options(nostack, preserves_flags, readonly)) };
    address
}

#[inline(always)]
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

/// The owner's half of a fence; [`fence_everywhere`] is the other half. It keeps the compiler from moving accesses
/// across it. The other half does the same for the processor.
#[inline(always)]
pub(super) fn light_fence() {
    compiler_fence(SeqCst);
}

/// Returns whether [`fence_everywhere`] is supported, without registering for it. Registration takes some milliseconds
/// in a process with threads, until every processor has passed through the scheduler, and most processes never revoke a
/// bias.
pub(super) fn fences_work() -> bool {
    static WORK: OnceLock<bool> = OnceLock::new();
    *WORK.get_or_init(|| {
        let needed = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;
        membarrier(libc::MEMBARRIER_CMD_QUERY).is_some_and(|supported| supported & needed == needed)
    })
}

/// Makes every thread of the process execute a full fence before this call returns.
pub(super) fn fence_everywhere() {
    // The first call fails until this process has registered. A parent's registration does not count.
    let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_some()
        || (membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_some()
            && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_some());
    if !done {
        // The documentation rules this out. To continue would admit two threads to one lock.
        log::error!(
            "membarrier(2) fails although the kernel reports support for it: aborting, because locks cannot exclude threads"
        );
        std::process::abort();
    }
}

/// Returns the system's result, or `None` if the call fails.
fn membarrier(command: libc::c_int) -> Option<libc::c_int> {
    // SAFETY: the system call accesses no memory of this process.
    let returned = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    libc::c_int::try_from(returned).ok().filter(|&returned| returned >= 0)
}
