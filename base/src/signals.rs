//! Keeps the program's signals away from Cableway's threads.

/// Runs `start` with all signals blocked. A thread that `start` spawns inherits this mask, so that the program's signal
/// handlers never run on it.
pub fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: signal sets are plain values that are filled before they are read. The calls only change this thread's
    // mask.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}
