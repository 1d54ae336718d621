//! Sleeping, where whoever waits has polled in vain for long and all transports that are in use can wake it.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::engine::Engine;

/// What no descriptor tells is found out so much later: that another thread has completed what is waited for, or that a
/// peer begins to use a transport which cannot wake anybody.
const LONGEST: Duration = Duration::from_millis(10);
/// While another thread sleeps for all.
const NAP: Duration = Duration::from_millis(1);

impl Engine {
    /// Whether a call that has polled so often without an event, and has no other work, may sleep.
    #[inline]
    pub fn may_sleep(&self, polls: u64) -> bool {
        let after = self.parameters.pml_sleep_after as u64;
        after != 0 && polls >= after
    }

    /// Sleeps until something has come, or `over` answers true, for a moment at most; answers how many events there were.
    /// None: something is under way that has to be polled, or a transport in use can wake nobody.
    #[cold]
    pub fn sleep(&self, over: impl FnOnce() -> bool) -> Option<usize> {
        let Some(_alone) = self.bed.try_lock() else {
            std::thread::sleep(NAP);
            return Some(0);
        };
        if self.has_work() {
            return None;
        }
        let mut wakers = Vec::new();
        for slot in &self.btls {
            if !slot.btl.arm(&mut wakers) && !slot.is_idle() {
                return None;
            }
        }
        // What came before they were armed wakes nobody.
        let before = self.progress_all();
        if before != 0 || self.has_work() || over() {
            return Some(before);
        }
        let mut sources: Vec<_> = wakers.iter().map(|waker| PollFd::new(waker, PollFlags::IN)).collect();
        let limit = Timespec { tv_sec: 0, tv_nsec: LONGEST.subsec_nanos().into() };
        // Interrupted or refused, it was a short sleep.
        let _ = poll(&mut sources, Some(&limit));
        Some(self.progress_all())
    }
}
