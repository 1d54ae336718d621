//! Requests: memory of the host, state of the engine.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::matching::PostKey;
use crate::core::{Active, Completion, Done};
use crate::error::Error;
use crate::protocol::ReceiveBuffer;
use crate::status::{ANY, PROC_NULL, Status};

/// Called when a request completes, from within whichever call of the engine completed it and with no lock held, so
/// that it may call straight back in. From the call on the request is the host's again and may be freed inside it.
pub type Hook = unsafe fn(request: *const Request, user: *mut c_void);

/// One operation. The memory is the host's and stays where it is from the start of an operation to its completion;
/// embed it first in a larger structure where that is handy. One request may be used again and again.
///
/// The engine writes to it from any thread while it is active; the host only asks
/// [`is_complete`](Self::is_complete) then.
#[repr(C)]
pub struct Request {
    /// First, so that its address is the request's.
    completion: Completion,
    /// Where the matcher keeps this receive while it is posted, and its number there; written and read under the
    /// matching lock.
    posted: (AtomicU32, AtomicU64),
    context: AtomicU32,
    inner: UnsafeCell<Inner>,
}

const _: () = assert!(std::mem::offset_of!(Request, completion) == 0);

/// What matching keeps in a request.
struct Inner {
    /// The buffer of a receive until it is matched; a send's is with its transfer.
    buffer: ReceiveBuffer,
    /// What a persistent request does at each start, known to whoever described it.
    persistent: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the host promises (at each start) to leave an active request alone but for its atomics; the engine hands a
// request from thread to thread only under its locks.
unsafe impl Send for Request {}
// SAFETY: as above; the accessors that the host has check the phase.
unsafe impl Sync for Request {}

impl Default for Request {
    fn default() -> Self {
        Self::new()
    }
}

impl Request {
    /// An inactive request.
    pub const fn new() -> Self {
        Request {
            completion: Completion::new(),
            posted: (AtomicU32::new(0), AtomicU64::new(0)),
            context: AtomicU32::new(0),
            inner: UnsafeCell::new(Inner { buffer: ReceiveBuffer::None, persistent: None }),
        }
    }

    /// Has `hook` called with `user` at each completion from now on.
    ///
    /// # Safety
    /// The request is not active. `hook` may be called with `user` from any thread that calls the engine.
    pub unsafe fn set_hook(&self, hook: Option<(Hook, *mut c_void)>) {
        type Inner = unsafe fn(*const Completion, *mut c_void);
        let hook = hook.map(|(hook, user)| {
            // SAFETY: pointers to sized types are passed alike; the hook is called with the completion's address, which is
            // the request's.
            (unsafe { std::mem::transmute::<Hook, Inner>(hook) }, user)
        });
        // SAFETY: the caller's promise.
        unsafe { self.completion.set_hook(hook) }
    }

    /// Whether the operation is over: status and error can be read. A request with a hook is not to be freed before
    /// the hook was called.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.completion.is_complete()
    }

    /// Whether an operation is under way.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.completion.is_active()
    }

    /// Whether an operation is under way whose buffer a peer, a network card or a device may use by itself.
    pub fn is_transferring(&self) -> bool {
        self.completion.is_transferring()
    }

    /// Ends an active operation of an engine that is never called again, and calls no hook. Answers whether there was one.
    ///
    /// # Safety
    /// No thread is in a call of the engine, and nobody calls it again.
    pub unsafe fn abandon(&self) -> bool {
        let active = self.is_active();
        if active {
            // SAFETY: the caller's promise.
            unsafe { self.completion.abandon() };
        }
        active
    }

    /// What was received. [`Status::EMPTY`] unless complete.
    #[inline]
    pub fn status(&self) -> Status {
        self.completion.outcome().map_or(Status::EMPTY, |outcome| outcome.status)
    }

    /// Why the operation failed; none unless complete.
    #[inline]
    pub fn error(&self) -> Option<&Error> {
        self.completion.outcome()?.error.as_deref()
    }

    /// Makes a receive that ended because its sender was gone, before anything matched it, a cancelled one; false if it
    /// is no such receive.
    pub(crate) fn forgive_absence(&self) -> bool {
        let absent = matches!(self.error(), Some(Error::PeerLeft { .. } | Error::Unreachable { .. }));
        // A send's status names no source, a matched receive's names a tag.
        if !absent || self.status().source == PROC_NULL || self.status().tag != ANY {
            return false;
        }
        // SAFETY: the request is complete, so it is the host's, which lends it to us.
        let outcome = unsafe { self.completion.outcome_mut() };
        (outcome.status, outcome.error) = (Status { cancelled: true, ..Status::EMPTY }, None);
        true
    }

    /// Status or error of a complete request.
    ///
    /// # Errors
    /// Those of the operation. A truncated receive's status is had from [`status`](Self::status).
    pub fn result(&self) -> Result<Status, Error> {
        self.error().map_or_else(|| Ok(self.status()), |error| Err(error.clone()))
    }

    /// The same, and takes the error out.
    ///
    /// # Safety
    /// The request is complete, and the caller is its host.
    #[inline(always)]
    pub(super) unsafe fn take_result(&self) -> Result<Status, Error> {
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.completion.outcome_mut() };
        match outcome.error.take() {
            None => Ok(outcome.status),
            Some(error) => Err(*error),
        }
    }

    /// Whether the request can be given to `start`.
    pub fn is_persistent(&self) -> bool {
        // SAFETY: `persistent` is written only by `send_init` and `recv_init`, on a request that nobody else uses.
        unsafe { (*self.inner.get()).persistent.is_some() }
    }

    /// What a persistent request does at each start.
    ///
    /// # Safety
    /// The request is not active, and the caller is its host.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub(super) unsafe fn persistent(&self) -> &mut Option<Arc<dyn Any + Send + Sync>> {
        // SAFETY: the caller's promise.
        unsafe { &mut (*self.inner.get()).persistent }
    }

    #[inline]
    pub(super) fn note_posted(&self, key: PostKey) {
        self.posted.0.store(key.node, Ordering::Relaxed);
        self.posted.1.store(key.number, Ordering::Relaxed);
    }

    pub(super) fn posted(&self) -> PostKey {
        PostKey { node: self.posted.0.load(Ordering::Relaxed), number: self.posted.1.load(Ordering::Relaxed) }
    }

    /// The context of the communicator that the receive is posted in.
    pub(super) fn context(&self) -> &AtomicU32 {
        &self.context
    }

    /// Marks the request active, as a send's.
    ///
    /// # Safety
    /// The request is inactive or complete, and stays valid until it is completed.
    pub(super) unsafe fn activate(request: NonNull<Request>) -> Active {
        // SAFETY: the caller's promise; the completion comes first.
        unsafe { Active::new(request.cast()) }
    }
}

/// An active receive in the engine's hands.
pub(crate) struct Receive(Active);

impl Receive {
    /// Marks the request active.
    ///
    /// # Safety
    /// As [`Request::activate`].
    #[inline]
    pub(super) unsafe fn new(request: NonNull<Request>) -> Self {
        // SAFETY: the caller's promise.
        Receive(unsafe { Request::activate(request) })
    }

    #[inline]
    pub(super) fn request(&self) -> &Request {
        // SAFETY: it was made of a request, which stays valid until completed, which consumes `self`.
        unsafe { self.0.address().cast::<Request>().as_ref() }
    }

    /// See [`Active::begin_transfer`].
    pub(super) fn begin_transfer(&self) {
        self.0.begin_transfer();
    }

    /// The buffer.
    #[inline]
    pub(super) fn buffer(&mut self) -> &mut ReceiveBuffer {
        // SAFETY: `self` is the only one of this request, and the host leaves it alone.
        unsafe { &mut (*self.request().inner.get()).buffer }
    }

    /// The receive has been matched.
    #[inline]
    pub(super) fn into_parts(mut self) -> (Active, ReceiveBuffer) {
        let buffer = std::mem::replace(self.buffer(), ReceiveBuffer::None);
        (self.0, buffer)
    }

    /// The message is in the buffer, which is one run of host memory.
    #[inline(always)]
    pub(super) fn succeed(self, status: Status, done: &mut Done) {
        self.0.succeed(status, done);
    }

    /// Ends the receive.
    pub(super) fn complete(self, status: Status, error: Option<Error>, done: &mut Done) {
        self.into_parts().0.complete(status, error, done);
    }

    /// Ends the receive with an error and nothing received.
    pub(super) fn fail(self, error: Error, done: &mut Done) {
        self.complete(Status::EMPTY, Some(error), done);
    }

    /// Makes the request inactive again, as if the receive had never begun.
    pub(super) fn retract(self) {
        self.into_parts().0.retract();
    }
}
