//! Waiting where several threads are in MPI: one of them polls for all, the others sleep.
//!
//! Open MPI's own way to wait does so, too, but there a thread that is woken spins until the one that woke it has run
//! again, for a whole time slice where both share a processor. So the waits that programs make most are ours
//! (`shim/common/waiting.c`).

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::thread::yield_now;

use cableway_base::watch::{Sleeper, Watch};
use cableway_pml::{Engine, Request};

use crate::boundary::shim_host_progress;
use crate::fault::{self, Point};
use crate::guard::guarded;
use crate::{poison, state};

/// Polls of our own between two chances for the rest of Open MPI, in a call that waits.
pub(crate) const POLLS_PER_HOST_PROGRESS: u32 = 64;
/// Polls of each thread before it may have to sleep: so long the other side may take to answer, where it runs at the same
/// time, and to sleep and wake takes longer.
const EAGER_POLLS: u32 = 256;
/// Polls in vain before the one who polls lets others have the processor, where there are others.
const PATIENCE: u32 = 256;
/// Polls, in vain or not, before it lets those have the processor that it woke.
const TURN: u32 = 1024;

/// What `req_complete` of one of Open MPI's requests holds: nobody waits, it is over, or (`CABLEWAY_WAITER`) who of ours
/// waits. Anything else is a wait of Open MPI's own.
const PENDING: usize = 0;
const WAITER: usize = 2;

static WATCH: Watch = Watch::new();
/// Counts requests that failed.
static FAILURES: AtomicU32 = AtomicU32::new(0);

/// Polls since a thread was woken that has not been given the processor yet; 0 if there is none. Threads may miscount.
static SINCE_WOKEN: AtomicU32 = AtomicU32::new(0);

/// A request in the frame of a call that waits for it. While a panic unwinds that frame, nobody may be at the request.
pub(crate) struct OwnRequest(Request);

impl OwnRequest {
    pub(crate) const fn new() -> Self {
        OwnRequest(Request::new())
    }
}

impl Deref for OwnRequest {
    type Target = Request;

    #[inline(always)]
    fn deref(&self) -> &Request {
        &self.0
    }
}

impl Drop for OwnRequest {
    #[inline]
    fn drop(&mut self) {
        if self.0.is_active() {
            poison::leave(&self.0);
        }
    }
}

/// A request of a waiting call's, where several threads may wait. It must not move once it is [made ready](Self::ready).
pub(crate) struct Waited {
    request: OwnRequest,
    sleeper: Sleeper,
}

impl Waited {
    pub(crate) fn new() -> Self {
        Waited { request: OwnRequest::new(), sleeper: Sleeper::new() }
    }

    /// The request, for an operation that is about to start.
    pub(crate) fn ready(&self) -> &Request {
        let sleeper = std::ptr::from_ref(&self.sleeper).cast_mut().cast();
        // SAFETY: it is not active yet, and the sleeper lies beside it.
        unsafe { self.request.set_hook(Some((wake, sleeper))) };
        &self.request
    }

    /// Waits for the operation that was started.
    pub(crate) fn wait(&self, engine: &Engine) -> &Request {
        wait(engine, &self.sleeper, || false);
        &self.request
    }
}

/// The hook of such requests.
///
/// # Safety
/// `sleeper` is one, and valid until it is done.
unsafe fn wake(_request: *const Request, sleeper: *mut c_void) {
    if let Some(sleeper) = NonNull::new(sleeper.cast()) {
        // SAFETY: the caller's promise; a request completes once.
        note_woken(unsafe { Sleeper::wake(sleeper) });
    }
}

fn note_woken(woken: bool) {
    if woken && SINCE_WOKEN.load(Relaxed) == 0 {
        SINCE_WOKEN.store(1, Relaxed);
    }
}

fn wait(engine: &Engine, sleeper: &Sleeper, enough: impl Fn() -> bool) {
    let _unwound = Unwound(sleeper);
    for _ in 0..EAGER_POLLS {
        if sleeper.is_done() || enough() {
            return;
        }
        fault::point(Point::Wait);
        engine.progress();
    }
    let mut idle: u32 = 0;
    WATCH.wait(sleeper, enough, || {
        let since_woken = SINCE_WOKEN.load(Relaxed);
        if since_woken != 0 {
            SINCE_WOKEN.store(since_woken + 1, Relaxed);
        }
        fault::point(Point::Wait);
        if engine.progress() != 0 {
            idle = 0;
        } else {
            idle += 1;
            if idle.is_multiple_of(POLLS_PER_HOST_PROGRESS) {
                // SAFETY: Open MPI is initialised while it calls us.
                unsafe { shim_host_progress() };
            }
        }
        if since_woken >= TURN || (idle >= PATIENCE && (since_woken != 0 || WATCH.others_sleep())) {
            SINCE_WOKEN.store(0, Relaxed);
            yield_now();
        }
    });
}

/// A panic on the way must not free what the engine, or another thread, still writes to.
struct Unwound<'s>(&'s Sleeper);

impl Drop for Unwound<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.0.is_done() {
            poison::abort("a thread that waits may have been woken");
        }
    }
}

/// Waits until one of Open MPI's requests is complete; false if a request failed meanwhile, though this one is not
/// complete yet, and `failures` is not their number any more.
///
/// # Safety
/// `complete` is the `req_complete` of a request of ours, which nobody else waits for.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_await(complete: *const AtomicUsize, failures: u32) -> bool {
    guarded(true, || {
        let Some(engine) = state::engine() else { return true };
        // SAFETY: the caller's promise; it is an atomic for Open MPI, too.
        let complete = unsafe { &*complete };
        let sleeper = Sleeper::new();
        let waiter = std::ptr::from_ref(&sleeper) as usize | WAITER;
        if complete.compare_exchange(PENDING, waiter, AcqRel, Acquire).is_err() {
            return true;
        }
        wait(engine, &sleeper, || FAILURES.load(Acquire) != failures);
        if sleeper.is_done() {
            return true;
        }
        if complete.compare_exchange(waiter, PENDING, AcqRel, Acquire).is_ok() {
            return false;
        }
        // It is complete, and somebody is about to say so.
        while !sleeper.is_done() {
            yield_now();
        }
        true
    })
}

/// Who waits for a request that completed, as found in its `req_complete`.
///
/// # Safety
/// `CABLEWAY_WAITER` is set in it; once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_wake(waiter: *mut c_void) {
    guarded((), || {
        if let Some(sleeper) = NonNull::new(waiter.map_addr(|address| address & !WAITER).cast()) {
            // SAFETY: `cableway_await` put it there, and waits until it is done.
            note_woken(unsafe { Sleeper::wake(sleeper) });
        }
    });
}

/// How many requests have failed.
#[unsafe(no_mangle)]
extern "C" fn cableway_failures() -> u32 {
    FAILURES.load(Acquire)
}

/// One more did, and is complete.
#[unsafe(no_mangle)]
extern "C" fn cableway_note_failure() {
    FAILURES.fetch_add(1, AcqRel);
    guarded((), || {
        fault::point(Point::Completion);
        WATCH.rouse();
    });
}
