//! Waits by polling, and adapts to other users of the processor.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use super::engine::Engine;
use super::reach::{is_due, look_around};
use super::request::Request;
use crate::core;
use crate::error::Error;
use crate::status::Status;

/// Polls without an event before a waiting call tells the processor that it spins.
const EAGER_POLLS: u64 = 64;

/// Sleeps without an event between two checks of the peers that receives wait for.
const LOOK_AROUND_EVERY: u64 = 64;

impl Engine {
    /// Makes progress until every request is complete. Polls `pml_spin` times without an event, then yields the
    /// processor between polls; at once where ranks on this node outnumber the cores. After `pml_sleep_after` such
    /// polls it sleeps until an event comes, if all transports in use allow that. Inactive requests count as complete.
    pub fn wait(&self, requests: &[&Request]) {
        let mut first = 0;
        self.wait_until(|| {
            while requests.get(first).is_some_and(|request| !request.is_active()) {
                first += 1;
            }
            first == requests.len()
        });
        if self.is_forked() {
            self.end_in_child(requests);
        }
    }

    /// Makes progress until one of the requests is complete, and returns its index. Returns `None` if none is active or
    /// complete.
    pub fn wait_any(&self, requests: &[&Request]) -> Option<usize> {
        let mut found = None;
        self.wait_until(|| {
            found = requests.iter().position(|request| request.is_complete());
            found.is_some() || !requests.iter().any(|request| request.is_active())
        });
        found
    }

    /// Notes rounds without an event, for a host whose own calls wait and poll [`progress`](Self::progress). From time
    /// to time it checks the peers that receives wait for, as this engine's own waiting calls do.
    #[inline]
    pub fn waited(&self, rounds: u64) {
        if is_due(rounds) {
            look_around(self);
        }
    }

    /// Returns whether a call that has polled this often without an event, and has no other work, may sleep.
    #[inline]
    pub fn may_sleep(&self, polls: u64) -> bool {
        let after = self.core().parameters.pml_sleep_after as u64;
        after != 0 && polls >= after
    }

    /// Sleeps briefly until an event comes or `over` returns true. Returns the number of events, or `None` if something
    /// must be polled or a transport in use cannot wake the caller.
    #[cold]
    pub fn sleep(&self, over: impl FnOnce() -> bool) -> Option<usize> {
        let idle = self.tasks.is_empty() && self.services.are_idle() && self.temporary.are_idle();
        if idle { core::sleep(self, over) } else { None }
    }

    /// Makes progress until `done` returns true. In a forked child it does not wait.
    #[inline]
    pub fn wait_until(&self, mut done: impl FnMut() -> bool) {
        let mut idle = 0;
        let mut rounds = 0;
        let mut naps: u64 = 0;
        while !done() {
            if self.progress() != 0 {
                idle = 0;
            } else if self.is_forked() {
                return;
            } else if idle < self.core().spin {
                idle += 1;
                // The hint pauses some processors for as long as a small message takes.
                if idle > EAGER_POLLS {
                    std::hint::spin_loop();
                }
                continue;
            } else {
                idle += 1;
                let slept = if self.may_sleep(idle) { self.sleep(&mut done) } else { None };
                match slept {
                    None => std::thread::yield_now(),
                    Some(0) => {
                        if naps.is_multiple_of(LOOK_AROUND_EVERY) {
                            look_around(self);
                        }
                        naps += 1;
                    }
                    Some(_) => idle = 0,
                }
            }
            rounds += 1;
            if is_due(rounds) {
                look_around(self);
            }
        }
    }
}

/// A request on the stack of a call that waits for it. If a hook panics, memory that the engine or a peer still writes
/// to must not be freed.
pub(crate) struct AbortUnlessComplete {
    request: Request,
    used: std::cell::Cell<bool>,
}

impl AbortUnlessComplete {
    pub(crate) fn new() -> Self {
        AbortUnlessComplete { request: Request::new(), used: std::cell::Cell::new(false) }
    }

    /// Returns the request, for the call that starts it.
    pub(crate) fn started(&self) -> &Request {
        self.used.set(true);
        &self.request
    }

    /// Returns the status or error of the operation, which is complete.
    #[inline(always)]
    pub(crate) fn into_result(self) -> Result<Status, Error> {
        debug_assert!(self.is_complete());
        // A complete request that is not persistent owns nothing but its error.
        let this = ManuallyDrop::new(self);
        // SAFETY: the request is complete, so this value owns it alone.
        unsafe { this.request.take_result() }
    }

    /// Discards the request, which was not started.
    pub(crate) fn unused(&self) {
        self.used.set(false);
    }
}

impl Deref for AbortUnlessComplete {
    type Target = Request;
    fn deref(&self) -> &Request {
        &self.request
    }
}

impl Drop for AbortUnlessComplete {
    fn drop(&mut self) {
        if self.used.get() && self.request.is_active() {
            log::error!("a waiting call unwound while its message was under way");
            std::process::abort();
        }
    }
}
