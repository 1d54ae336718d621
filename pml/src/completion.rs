//! Requests on their way to completion.

use std::ffi::c_void;
use std::ptr::NonNull;

use smallvec::SmallVec;

use crate::error::Error;
use crate::request::{Hook, Inner, Request, Status};
use crate::room::Room;

/// An active request in the engine's hands. There is one at a time per request: whoever has it may complete it.
pub(crate) struct Active(NonNull<Request>);

// SAFETY: the host leaves an active request alone; see `Request`.
unsafe impl Send for Active {}

impl Active {
    /// Marks the request active.
    ///
    /// # Safety
    /// The request is inactive or complete, and stays valid until it is completed.
    #[inline]
    pub(crate) unsafe fn new(request: NonNull<Request>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { request.as_ref() }.activate();
        Active(request)
    }

    #[inline]
    pub(crate) fn request(&self) -> &Request {
        // SAFETY: valid until completed, which consumes `self`.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn inner(&mut self) -> &mut Inner {
        // SAFETY: `self` is the only one of this request, and the host leaves it alone.
        unsafe { self.request().inner() }
    }

    /// Makes the request inactive again, as if the operation had never begun.
    pub(crate) fn retract(self) {
        self.request().deactivate();
    }

    /// Ends the operation well.
    #[inline(always)]
    pub(crate) fn succeed(mut self, status: Status, done: &mut Done) {
        let inner = self.inner();
        // Field by field: copied whole, the padding would be read back before it is written.
        inner.status.source = status.source;
        inner.status.tag = status.tag;
        inner.status.len = status.len;
        inner.status.cancelled = status.cancelled;
        inner.error = None;
        self.finish(done);
    }

    /// Ends the operation.
    pub(crate) fn complete(self, status: Status, error: Option<Error>, done: &mut Done) {
        self.end(status, error.map(Box::new), done);
    }

    /// The same, of a transfer.
    #[inline]
    pub(crate) fn end(mut self, status: Status, error: Option<Box<Error>>, done: &mut Done) {
        let inner = self.inner();
        inner.status = status;
        inner.error = error;
        self.finish(done);
    }

    #[inline(always)]
    fn finish(mut self, done: &mut Done) {
        self.inner().room = Room::None;
        // SAFETY: as in `inner`.
        match unsafe { self.request().hook() } {
            None => self.request().finish(),
            Some((hook, user)) => done.hooks.push(Called { request: self.0, hook, user }),
        }
    }

    /// Ends the operation with an error and nothing received.
    pub(crate) fn fail(self, error: Error, done: &mut Done) {
        self.complete(Status::EMPTY, Some(error), done);
    }
}

struct Called {
    request: NonNull<Request>,
    hook: Hook,
    user: *mut c_void,
}

/// Completed requests whose hooks are to be called once no lock is held. A request without a hook is complete as soon
/// as its flag is set and never gets here.
#[derive(Default)]
pub(crate) struct Done {
    hooks: SmallVec<[Called; 4]>,
    /// Answers to peers may wait for others: whoever made this sends them.
    pub(crate) gathers: bool,
}

impl Done {
    /// For one call of a transport's `progress`.
    #[inline]
    pub(crate) fn gathering() -> Self {
        Done { gathers: true, ..Done::default() }
    }

    /// Calls the hooks. No lock may be held.
    #[inline]
    pub(crate) fn run(mut self) {
        self.run_now();
    }

    /// As [`run`](Self::run), and leaves none behind.
    #[inline]
    pub(crate) fn run_now(&mut self) {
        if !self.hooks.is_empty() {
            self.call();
        }
    }

    fn call(&mut self) {
        for Called { request, hook, user } in self.hooks.drain(..) {
            // SAFETY: a request with a hook stays valid until the hook is called.
            unsafe { request.as_ref() }.finish();
            // SAFETY: whoever set the hook said that it may be called so.
            unsafe { hook(request.as_ptr(), user) };
        }
    }
}
