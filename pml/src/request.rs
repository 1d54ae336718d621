//! Requests: memory of the host, state of the engine.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::marker::PhantomPinned;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::Error;
use crate::matching::PostKey;
use crate::persistent::Operation;
use crate::room::Room;

/// The sender or tag that matches any; as a tag it matches those of 0 and above.
pub const ANY: i32 = -1;
/// The peer that does not exist: sends to it vanish, receives from it complete at once with nothing.
pub const PROC_NULL: i32 = -2;

/// What is known about a completed receive (or a probed message).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The sender in the communicator's count, or [`PROC_NULL`].
    pub source: i32,
    /// The message's tag; [`ANY`] where there was no message.
    pub tag: i32,
    /// Packed length in bytes of the message **as sent**, also where the receive truncated it.
    pub len: u64,
    /// Whether the receive was cancelled before anything matched it.
    pub cancelled: bool,
}

impl Status {
    /// The status of a send, and of an operation with [`PROC_NULL`].
    pub const EMPTY: Status = Status { source: PROC_NULL, tag: ANY, len: 0, cancelled: false };
}

/// How a call that starts an operation ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation is complete. The request was not used and its hook is not called: reuse or drop it.
    Complete,
    /// The request is active, or completed already; it stays the engine's until [`Request::is_complete`], or, where
    /// it has a hook, until that was called.
    Started,
}

/// Called when a request completes, from within whichever call of the engine completed it and with no lock held, so
/// that it may call straight back in. From the call on the request is the host's again and may be freed inside it.
pub type Hook = unsafe fn(request: *const Request, user: *mut c_void);

const INACTIVE: u32 = 0;
const ACTIVE: u32 = 1;
const COMPLETE: u32 = 2;

/// One operation. The memory is the host's and stays where it is from the start of an operation to its completion;
/// embed it first in a larger structure where that is handy. One request may be used again and again.
///
/// The engine writes to it from any thread while it is active; the host only asks
/// [`is_complete`](Self::is_complete) then.
#[repr(C)]
pub struct Request {
    phase: AtomicU32,
    /// Where the matcher keeps this receive while it is posted, and its number there; written and read under the
    /// matching lock.
    posted: (AtomicU32, AtomicU64),
    context: AtomicU32,
    hook: UnsafeCell<Option<(Hook, *mut c_void)>>,
    inner: UnsafeCell<Inner>,
    _pinned: PhantomPinned,
}

/// What the engine keeps in a request.
pub(crate) struct Inner {
    pub(crate) status: Status,
    pub(crate) error: Option<Box<Error>>,
    /// The buffer of a receive until it is matched; a send's is with its transfer.
    pub(crate) room: Room,
    pub(crate) persistent: Option<Arc<Operation>>,
}

// SAFETY: the host promises (at each start) to leave an active request alone but for its atomics; the engine hands a
// request from thread to thread only under its locks.
unsafe impl Send for Request {}
// SAFETY: as above; the accessors of `inner` that the host has check the phase.
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
            phase: AtomicU32::new(INACTIVE),
            posted: (AtomicU32::new(0), AtomicU64::new(0)),
            context: AtomicU32::new(0),
            hook: UnsafeCell::new(None),
            inner: UnsafeCell::new(Inner { status: Status::EMPTY, error: None, room: Room::None, persistent: None }),
            _pinned: PhantomPinned,
        }
    }

    /// Has `hook` called with `user` at each completion from now on.
    ///
    /// # Safety
    /// The request is not active. `hook` may be called with `user` from any thread that calls the engine.
    pub unsafe fn set_hook(&self, hook: Option<(Hook, *mut c_void)>) {
        // SAFETY: the caller says that nobody else uses the request.
        unsafe { *self.hook.get() = hook }
    }

    /// Whether the operation is over: status and error can be read. A request with a hook is not to be freed before
    /// the hook was called.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.phase.load(Ordering::Acquire) == COMPLETE
    }

    /// Whether an operation is under way.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.phase.load(Ordering::Acquire) == ACTIVE
    }

    /// What was received. [`Status::EMPTY`] unless complete.
    #[inline]
    pub fn status(&self) -> Status {
        if !self.is_complete() {
            return Status::EMPTY;
        }
        // SAFETY: a complete request is written by nobody.
        unsafe { (*self.inner.get()).status }
    }

    /// Why the operation failed; none unless complete.
    #[inline]
    pub fn error(&self) -> Option<&Error> {
        if !self.is_complete() {
            return None;
        }
        // SAFETY: a complete request is written by nobody until the host starts it again, for which it must give up
        // this borrow.
        unsafe { (*self.inner.get()).error.as_deref() }
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
        let inner = unsafe { self.inner() };
        (inner.status, inner.error) = (Status { cancelled: true, ..Status::EMPTY }, None);
        true
    }

    /// Status or error of a complete request.
    ///
    /// # Errors
    /// Those of the operation. A truncated receive's status is had from [`status`](Self::status).
    pub fn result(&self) -> Result<Status, Error> {
        self.error().map_or_else(|| Ok(self.status()), |error| Err(error.clone()))
    }

    /// Whether the request can be given to `start`.
    pub fn is_persistent(&self) -> bool {
        // SAFETY: `persistent` is written only by `send_init` and `recv_init`, on a request that nobody else uses.
        unsafe { (*self.inner.get()).persistent.is_some() }
    }

    /// # Safety
    /// The caller has the request to itself: it is starting it, or it took it out of the matcher or a transfer.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "exclusive by the engine's protocol")]
    pub(crate) unsafe fn inner(&self) -> &mut Inner {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.inner.get() }
    }

    #[inline]
    pub(crate) fn note_posted(&self, key: PostKey) {
        self.posted.0.store(key.node, Ordering::Relaxed);
        self.posted.1.store(key.number, Ordering::Relaxed);
    }

    pub(crate) fn posted(&self) -> PostKey {
        PostKey { node: self.posted.0.load(Ordering::Relaxed), number: self.posted.1.load(Ordering::Relaxed) }
    }

    /// The context of the communicator that the receive is posted in.
    pub(crate) fn context(&self) -> &AtomicU32 {
        &self.context
    }

    #[inline]
    pub(crate) fn activate(&self) {
        self.phase.store(ACTIVE, Ordering::Relaxed);
    }

    pub(crate) fn deactivate(&self) {
        self.phase.store(INACTIVE, Ordering::Relaxed);
    }

    /// # Safety
    /// As [`inner`](Self::inner).
    #[inline]
    pub(crate) unsafe fn hook(&self) -> Option<(Hook, *mut c_void)> {
        // SAFETY: set only while inactive.
        unsafe { *self.hook.get() }
    }

    /// The last that the engine does to a request without a hook: its memory may be gone right after.
    #[inline]
    pub(crate) fn finish(&self) {
        self.phase.store(COMPLETE, Ordering::Release);
    }
}
