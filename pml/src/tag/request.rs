//! Requests: the host owns their memory, the engine their state.

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

/// Called when a request completes, with no lock held, by the call that completed it. It may call the engine. The host
/// owns the request again from this call on, and may free it inside.
pub type Hook = unsafe fn(request: *const Request, user: *mut c_void);

/// One operation. The host owns the memory, which must not move from the start of an operation to its completion. It
/// may be the first field of a larger structure. A request can be reused.
///
/// The engine writes to it from any thread while it is active. The host may only call
/// [`is_complete`](Self::is_complete) meanwhile.
#[repr(C)]
pub struct Request {
    /// The first field, so that both have the same address.
    completion: Completion,
    /// The matcher's key of this receive while it is posted. Accessed under the matching lock.
    posted: (AtomicU32, AtomicU64),
    context: AtomicU32,
    inner: UnsafeCell<Inner>,
}

const _: () = assert!(std::mem::offset_of!(Request, completion) == 0);

/// The matching state in a request.
struct Inner {
    /// The buffer of a receive until it is matched. A send's buffer is in its transfer.
    buffer: ReceiveBuffer,
    /// The operation of a persistent request. Only the call that describes it writes it.
    persistent: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the host promises at each start to touch only the atomics of an active request. The engine passes a request
// between threads only under its locks.
unsafe impl Send for Request {}
// SAFETY: as above; the host's accessors check the phase.
unsafe impl Sync for Request {}

impl Default for Request {
    fn default() -> Self {
        Self::new()
    }
}

impl Request {
    /// Creates an inactive request.
    pub const fn new() -> Self {
        Request {
            completion: Completion::new(),
            posted: (AtomicU32::new(0), AtomicU64::new(0)),
            context: AtomicU32::new(0),
            inner: UnsafeCell::new(Inner { buffer: ReceiveBuffer::None, persistent: None }),
        }
    }

    /// Sets the hook, which is called with `user` at each completion from now on.
    ///
    /// # Safety
    /// The request is not active. `hook` may be called with `user` from any thread that calls the engine.
    pub unsafe fn set_hook(&self, hook: Option<(Hook, *mut c_void)>) {
        type Inner = unsafe fn(*const Completion, *mut c_void);
        let hook = hook.map(|(hook, user)| {
            // SAFETY: pointers to sized types have one ABI. The hook is called with the completion's address, which is
            // the request's.
            (unsafe { std::mem::transmute::<Hook, Inner>(hook) }, user)
        });
        // SAFETY: the caller's promise.
        unsafe { self.completion.set_hook(hook) }
    }

    /// Returns whether the operation is complete, so that status and error can be read. A request with a hook must not
    /// be freed before the hook was called.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.completion.is_complete()
    }

    /// Returns whether an operation is under way.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.completion.is_active()
    }

    /// Returns whether an operation is under way and a peer, a NIC or a device may access its buffer on its own.
    pub fn is_transferring(&self) -> bool {
        self.completion.is_transferring()
    }

    /// Ends an active operation of an engine that is never called again, without calling a hook. Returns whether there
    /// was one.
    ///
    /// # Safety
    /// No thread is in a call of the engine, and no later call is made.
    pub unsafe fn abandon(&self) -> bool {
        let active = self.is_active();
        if active {
            // SAFETY: the caller's promise.
            unsafe { self.completion.abandon() };
        }
        active
    }

    /// Returns the status, or [`Status::EMPTY`] while the operation is not complete.
    #[inline]
    pub fn status(&self) -> Status {
        self.completion.outcome().map_or(Status::EMPTY, |outcome| outcome.status)
    }

    /// Returns why the operation failed, or `None` while it is not complete.
    #[inline]
    pub fn error(&self) -> Option<&Error> {
        self.completion.outcome()?.error.as_deref()
    }

    /// Turns a receive whose sender was gone before a match into a cancelled one. Returns false for any other request.
    pub(crate) fn forgive_absence(&self) -> bool {
        let absent = matches!(self.error(), Some(Error::PeerLeft { .. } | Error::Unreachable { .. }));
        // A send's status names no source, a matched receive's names a tag.
        if !absent || self.status().source == PROC_NULL || self.status().tag != ANY {
            return false;
        }
        // SAFETY: the request is complete, so the host owns it and lends it to this call.
        let outcome = unsafe { self.completion.outcome_mut() };
        (outcome.status, outcome.error) = (Status { cancelled: true, ..Status::EMPTY }, None);
        true
    }

    /// Returns the status or error of a complete request.
    ///
    /// # Errors
    /// Those of the operation. [`status`](Self::status) returns the status of a truncated receive.
    pub fn result(&self) -> Result<Status, Error> {
        self.error().map_or_else(|| Ok(self.status()), |error| Err(error.clone()))
    }

    /// Returns the same as [`result`](Self::result), and takes the error out.
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

    /// Returns whether `start` accepts the request.
    pub fn is_persistent(&self) -> bool {
        // SAFETY: only `send_init` and `recv_init` write `persistent`, and only on a request that nothing else uses.
        unsafe { (*self.inner.get()).persistent.is_some() }
    }

    /// Returns the operation of a persistent request.
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

    /// Returns the context of the communicator that the receive is posted in.
    pub(super) fn context(&self) -> &AtomicU32 {
        &self.context
    }

    /// Marks the request active, for a send.
    ///
    /// # Safety
    /// The request is inactive or complete, and stays valid until it is completed.
    pub(super) unsafe fn activate(request: NonNull<Request>) -> Active {
        // SAFETY: the caller's promise; the completion comes first.
        unsafe { Active::new(request.cast()) }
    }
}

/// An active receive that the engine owns.
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
        // SAFETY: the completion belongs to a request, which stays valid until it is completed, which consumes `self`.
        unsafe { self.0.address().cast::<Request>().as_ref() }
    }

    /// Returns the buffer.
    #[inline]
    pub(super) fn buffer(&mut self) -> &mut ReceiveBuffer {
        // SAFETY: `self` is the only handle of this request, and the host does not touch it.
        unsafe { &mut (*self.request().inner.get()).buffer }
    }

    /// Takes the buffer of a receive that has been matched.
    #[inline]
    pub(super) fn into_parts(mut self) -> (Active, ReceiveBuffer) {
        let buffer = std::mem::replace(self.buffer(), ReceiveBuffer::None);
        (self.0, buffer)
    }

    /// Completes the receive after its message was copied into one run of host memory.
    #[inline(always)]
    pub(super) fn succeed(self, status: Status, done: &mut Done) {
        self.0.succeed(status, done);
    }

    /// Completes the receive.
    pub(super) fn complete(self, status: Status, error: Option<Error>, done: &mut Done) {
        self.into_parts().0.complete(status, error, done);
    }

    /// Completes the receive with an error and without data.
    pub(super) fn fail(self, error: Error, done: &mut Done) {
        self.complete(Status::EMPTY, Some(error), done);
    }

    /// Makes the request inactive again, as if the receive had never begun.
    pub(super) fn retract(self) {
        self.into_parts().0.retract();
    }
}
