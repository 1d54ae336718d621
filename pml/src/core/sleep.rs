//! Sleeps after long polling without an event, if all transports in use can wake the caller.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::host::Host;
use super::progress::{has_work, turn_all};

/// Longest delay before the sleeper notices what no descriptor reports: another thread completed the operation, or a
/// peer began to use a transport that cannot wake anybody.
const LONGEST: Duration = Duration::from_millis(10);
/// Longest wait while another thread sleeps on the transports.
const NAP: Duration = Duration::from_millis(1);

/// Sleeps briefly until an event comes or `over` returns true. Returns the number of events, or `None` if something
/// must be polled or a transport in use cannot wake the caller.
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
    // Events that came before the transports were armed wake nobody.
    let before = turn_all(host);
    if before != 0 || has_work(host) || over() {
        return Some(before);
    }
    let mut sources: Vec<_> = wakers.iter().map(|waker| PollFd::new(waker, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: 0, tv_nsec: LONGEST.subsec_nanos().into() };
    // An interruption or an error only shortens the sleep.
    let _ = poll(&mut sources, Some(&limit));
    Some(turn_all(host))
}
