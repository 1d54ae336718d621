//! Sleeping, once a waiting call has polled in vain for long and all transports that are in use can wake it.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::host::Host;
use super::progress::{has_work, turn_all};

/// What no descriptor tells is found out so much later: that another thread has completed what is waited for, or that a
/// peer begins to use a transport which cannot wake anybody.
const LONGEST: Duration = Duration::from_millis(10);
/// While another thread sleeps for all.
const NAP: Duration = Duration::from_millis(1);

/// Sleeps until something has come, or `over` answers true, for a moment at most; answers how many events there were.
/// None: something is under way that has to be polled, or a transport in use can wake nobody.
#[cold]
pub(crate) fn sleep<H: Host>(host: &H, over: impl FnOnce() -> bool) -> Option<usize> {
    let core = host.core();
    let Some(_alone) = core.sleeping.try_lock() else {
        std::thread::sleep(NAP);
        return Some(0);
    };
    if has_work(host) {
        return None;
    }
    let mut wakers = Vec::new();
    for slot in &core.btls {
        if !slot.btl.arm(&mut wakers) && !slot.is_idle() {
            return None;
        }
    }
    // What came before they were armed wakes nobody.
    let before = turn_all(host);
    if before != 0 || has_work(host) || over() {
        return Some(before);
    }
    let mut sources: Vec<_> = wakers.iter().map(|waker| PollFd::new(waker, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: 0, tv_nsec: LONGEST.subsec_nanos().into() };
    // Interrupted or refused, it was a short sleep.
    let _ = poll(&mut sources, Some(&limit));
    Some(turn_all(host))
}
