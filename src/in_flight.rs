//! Memory for requests of the engine, and the promise that it outlives them.

use std::cell::RefCell;
use std::ops::Deref;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use cableway_pml::{Engine, Request};

thread_local! {
    /// Requests that this thread has used before and will use again: no allocation per message.
    static FREE: RefCell<Vec<Allocation>> = const { RefCell::new(Vec::new()) };
}

/// How many requests a thread keeps.
const KEPT: usize = 256;

/// How long a panicking thread waits for transfers from and to memory that its unwinding would free.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request and the engine that may be working on it. Neither its memory nor the buffers that the engine was given
/// with it are let go of before the engine is done: dropping an active one waits.
pub(crate) struct InFlight<'e> {
    engine: &'e Engine,
    /// An [`Allocation`]'s.
    request: NonNull<Request>,
}

// SAFETY: a request may be used from any thread, and this is its only owner.
unsafe impl Send for InFlight<'_> {}

/// A request at an address of its own. Held by pointer, not by box: the engine holds the address, too.
struct Allocation(NonNull<Request>);

impl<'e> InFlight<'e> {
    /// An inactive request.
    pub(crate) fn new(engine: &'e Engine) -> Self {
        let kept = FREE.with_borrow_mut(Vec::pop);
        let request = kept.map_or_else(|| NonNull::from(Box::leak(Box::new(Request::new()))), Allocation::into_inner);
        InFlight { engine, request }
    }

    /// Waits until the operation, if there is one, is over.
    pub(crate) fn wait(&self) {
        if self.is_active() {
            self.engine.wait(&[self]);
        }
    }

    /// Cancels the operation if it is a receive that nothing has matched; returns whether it was.
    pub(crate) fn cancel(&self) -> bool {
        // SAFETY: the request is valid, and was only ever started on this engine.
        unsafe { self.engine.cancel(&raw const **self) }
    }

    /// Waits until the operation is over, whatever else the thread is going through.
    pub(crate) fn end(&self) {
        if self.is_active() && std::thread::panicking() {
            self.end_in_panic();
        }
        self.wait();
    }

    /// Ends the operation as well as can be while a panic unwinds: what may be borrowed by it must not be freed.
    fn end_in_panic(&self) {
        self.cancel();
        let end = Instant::now() + PATIENCE;
        self.engine.wait_until(|| !self.is_active() || Instant::now() > end);
        if self.is_active() {
            log::error!("a thread panicked while a peer reads or writes its memory: the process cannot go on");
            std::process::abort();
        }
    }
}

impl Deref for InFlight<'_> {
    type Target = Request;

    fn deref(&self) -> &Request {
        // SAFETY: allocated by `new`, and nobody frees it before `drop` does.
        unsafe { self.request.as_ref() }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.end();
        // A persistent request holds on to its communicator: it is not kept.
        let reusable = !self.is_persistent();
        let allocation = Allocation(self.request);
        // A thread that is ending keeps nothing.
        let _ = FREE.try_with(|free| {
            if let Ok(mut free) = free.try_borrow_mut()
                && reusable
                && free.len() < KEPT
            {
                free.push(allocation);
            }
        });
    }
}

impl Allocation {
    fn into_inner(self) -> NonNull<Request> {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: made from a box by `InFlight::new`, whose drop has seen the end of the operation.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
