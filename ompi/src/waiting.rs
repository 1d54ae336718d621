//! Blocking waits under `MPI_THREAD_MULTIPLE`: one thread polls for all, and the others sleep.
//!
//! Open MPI's own wait functions do the same, but there a woken thread spins until the thread that woke it has run
//! again. If both share a processor, that takes a whole time slice. So `shim/common/waiting.c` replaces the common
//! ones.

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
use crate::{deferred, poison, state};

/// The number of idle polls of the engine in a blocking call between two calls of Open MPI's progress.
pub(crate) const POLLS_PER_HOST_PROGRESS: u32 = 64;
/// The number of polls of each thread before it may sleep. A peer that is running usually answers within this time, and
/// sleeping and waking takes longer.
const SPIN_POLLS: u32 = 256;
/// The number of idle polls before the polling thread yields the processor, if other threads wait.
const IDLE_POLLS_BEFORE_YIELD: u32 = 256;
/// The number of polls, idle or not, before the polling thread yields the processor to a thread that it woke.
const POLLS_BEFORE_YIELD: u32 = 1024;

/// Values of a request's `req_complete`: `PENDING` if it is active and no thread waits, or a waiter of this module with
/// the bit `WAITER` set (`CABLEWAY_WAITER`). Other values belong to Open MPI.
const PENDING: usize = 0;
const WAITER: usize = 2;

static WATCH: Watch = Watch::new();
/// The number of requests that have failed.
static FAILURES: AtomicU32 = AtomicU32::new(0);

/// The number of polls since a thread was woken to which the polling thread has not yielded yet, or 0. A lost update
/// only delays a yield.
static SINCE_WOKEN: AtomicU32 = AtomicU32::new(0);

/// A request on the stack of the call that waits for it. If a panic unwinds that frame while something may still use
/// the request, the process aborts.
pub(crate) struct StackRequest(Request);

impl StackRequest {
    pub(crate) const fn new() -> Self {
        StackRequest(Request::new())
    }
}

impl Deref for StackRequest {
    type Target = Request;

    #[inline(always)]
    fn deref(&self) -> &Request {
        &self.0
    }
}

impl Drop for StackRequest {
    #[inline]
    fn drop(&mut self) {
        if self.0.is_active() {
            poison::unwind_past(&self.0);
        }
    }
}

/// A request on the stack of a waiting call under `MPI_THREAD_MULTIPLE`. It must not move after [`Self::request`].
pub(crate) struct WaitedRequest {
    request: StackRequest,
    sleeper: Sleeper,
}

impl WaitedRequest {
    pub(crate) fn new() -> Self {
        WaitedRequest { request: StackRequest::new(), sleeper: Sleeper::new() }
    }

    /// Returns the request, for an operation that is about to start.
    pub(crate) fn request(&self) -> &Request {
        let sleeper = std::ptr::from_ref(&self.sleeper).cast_mut().cast();
        // SAFETY: the request is not active yet, and the sleeper lives as long as the request.
        unsafe { self.request.set_hook(Some((wake, sleeper))) };
        &self.request
    }

    /// Waits for the operation that was started.
    pub(crate) fn wait(&self, engine: &Engine) -> &Request {
        wait(engine, &self.sleeper, || false);
        &self.request
    }
}

/// The completion hook of these requests.
///
/// # Safety
/// `sleeper` points to a [`Sleeper`] that is valid until it is done.
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

fn wait(engine: &Engine, sleeper: &Sleeper, stop: impl Fn() -> bool) {
    let _guard = AbortOnUnwind(sleeper);
    for _ in 0..SPIN_POLLS {
        if sleeper.is_done() || stop() {
            return;
        }
        fault::point(Point::Wait);
        deferred::perform();
        engine.progress();
    }
    let mut idle: u32 = 0;
    WATCH.wait(sleeper, stop, || {
        let since_woken = SINCE_WOKEN.load(Relaxed);
        if since_woken != 0 {
            SINCE_WOKEN.store(since_woken.saturating_add(1), Relaxed);
        }
        fault::point(Point::Wait);
        if deferred::perform() + engine.progress() != 0 {
            idle = 0;
        } else {
            idle = idle.saturating_add(1);
            if idle.is_multiple_of(POLLS_PER_HOST_PROGRESS) {
                // SAFETY: Open MPI is initialized while it calls this component.
                unsafe { shim_host_progress() };
            }
        }
        if since_woken >= POLLS_BEFORE_YIELD
            || (idle >= IDLE_POLLS_BEFORE_YIELD && (since_woken != 0 || WATCH.others_sleep()))
        {
            SINCE_WOKEN.store(0, Relaxed);
            yield_now();
        }
    });
}

/// Aborts if a panic unwinds the frame of a sleeper that the engine or another thread may still write to.
struct AbortOnUnwind<'s>(&'s Sleeper);

impl Drop for AbortOnUnwind<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.0.is_done() {
            poison::abort("another thread may be waking the waiting thread");
        }
    }
}

/// Waits until a request of the shim is complete. Returns false if it is not, but the count of failed requests is no
/// longer
/// `failures`.
///
/// # Safety
/// `complete` is the `req_complete` of one of the shim's requests. No other thread waits for it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_await(complete: *const AtomicUsize, failures: u32) -> bool {
    guarded(true, || {
        let Some(engine) = state::engine() else { return true };
        // SAFETY: the caller's promise; Open MPI also accesses it atomically.
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
        // The request is complete, and the completing thread is about to wake this one.
        while !sleeper.is_done() {
            yield_now();
        }
        true
    })
}

/// Wakes the thread that waits for a request.
///
/// # Safety
/// `waiter` comes from the `req_complete` of a request, with the bit `CABLEWAY_WAITER`, and is passed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_wake(waiter: *mut c_void) {
    guarded((), || {
        if let Some(sleeper) = NonNull::new(waiter.map_addr(|address| address & !WAITER).cast()) {
            // SAFETY: `cableway_await` stored it, and waits until the sleeper is done.
            note_woken(unsafe { Sleeper::wake(sleeper) });
        }
    });
}

/// Returns the number of requests that have failed.
#[unsafe(no_mangle)]
extern "C" fn cableway_failure_count() -> u32 {
    FAILURES.load(Acquire)
}

/// Counts a failed request, which is complete, and wakes the threads that wait for requests that may depend on it.
#[unsafe(no_mangle)]
extern "C" fn cableway_count_failure() {
    FAILURES.fetch_add(1, AcqRel);
    guarded((), || {
        fault::point(Point::Completion);
        WATCH.rouse();
    });
}
