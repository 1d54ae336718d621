//! Threads of ours and the program's signals.

/// Runs `start` with all signals blocked, which a thread started there inherits: the program's handlers are not for it.
pub fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: signal sets are plain values, filled before they are read; the calls change this thread's mask only.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}
