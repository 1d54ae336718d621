//! Completion of operations: a flag, an outcome, and a hook of the host.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::marker::PhantomPinned;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

use crate::error::Error;
use crate::status::Status;

/// Called with the completion's address when its operation completes, with no lock held.
pub(crate) type Hook = unsafe fn(completion: *const Completion, user: *mut c_void);

const INACTIVE: u32 = 0;
const ACTIVE: u32 = 1;
const COMPLETE: u32 = 2;
/// Active, and its transfer has begun.
const TRANSFERRING: u32 = 3;

/// The part that all requests share. It is the first field of a request, so both have the same address.
#[repr(C)]
pub(crate) struct Completion {
    phase: AtomicU32,
    hook: UnsafeCell<Option<(Hook, *mut c_void)>>,
    outcome: UnsafeCell<Outcome>,
    _pinned: PhantomPinned,
}

/// How an operation ended.
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) error: Option<Box<Error>>,
}

// SAFETY: the host touches nothing but the phase of an active request. The engine passes a request between threads only
// under its locks.
unsafe impl Send for Completion {}
// SAFETY: as above; the accessors of the outcome check the phase.
unsafe impl Sync for Completion {}

impl Completion {
    pub(crate) const fn new() -> Self {
        Completion {
            phase: AtomicU32::new(INACTIVE),
            hook: UnsafeCell::new(None),
            outcome: UnsafeCell::new(Outcome { status: Status::EMPTY, error: None }),
            _pinned: PhantomPinned,
        }
    }

    /// # Safety
    /// The operation is not active. `hook` may be called with its argument from any thread that calls the engine.
    pub(crate) unsafe fn set_hook(&self, hook: Option<(Hook, *mut c_void)>) {
        // SAFETY: the caller promises that the operation is inactive, so nothing else uses the hook.
        unsafe { *self.hook.get() = hook }
    }

    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.phase.load(Ordering::Acquire) == COMPLETE
    }

    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.phase.load(Ordering::Acquire), ACTIVE | TRANSFERRING)
    }

    #[inline]
    pub(crate) fn is_transferring(&self) -> bool {
        self.phase.load(Ordering::Acquire) == TRANSFERRING
    }

    /// # Safety
    /// The operation is active, and its [`Active`] does not exist and will not be created.
    pub(crate) unsafe fn abandon(&self) {
        self.phase.store(INACTIVE, Ordering::Relaxed);
    }

    /// Returns how the operation ended, or `None` while it is not complete.
    #[inline]
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        // SAFETY: the outcome of a complete operation does not change until the host starts it again. The host must end
        // this borrow first.
        self.is_complete().then(|| unsafe { &*self.outcome.get() })
    }

    /// # Safety
    /// The caller has exclusive use of the outcome: it starts or completes the operation, or it is the host of a
    /// complete one.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "exclusive by the engine's protocol")]
    pub(crate) unsafe fn outcome_mut(&self) -> &mut Outcome {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.outcome.get() }
    }

    /// Marks the operation complete. Without a hook, its memory may be freed right after this call.
    #[inline]
    fn finish(&self) {
        self.phase.store(COMPLETE, Ordering::Release);
    }
}

/// An active operation that the engine owns. Exactly one value exists for each; its owner may complete the operation.
pub(crate) struct Active(NonNull<Completion>);

// SAFETY: the host does not touch an active request; see `Completion`.
unsafe impl Send for Active {}

impl Active {
    /// Marks the operation active.
    ///
    /// # Safety
    /// The operation is inactive or complete, and stays valid until it is completed.
    #[inline]
    pub(crate) unsafe fn new(completion: NonNull<Completion>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { completion.as_ref() }.phase.store(ACTIVE, Ordering::Relaxed);
        Active(completion)
    }

    /// Returns the address of the operation's request.
    #[inline]
    pub(crate) fn address(&self) -> NonNull<Completion> {
        self.0
    }

    #[inline]
    fn completion(&self) -> &Completion {
        // SAFETY: valid until completed, which consumes `self`.
        unsafe { self.0.as_ref() }
    }

    /// Marks the operation as transferring: a peer, a NIC or a device may now access the buffer on its own.
    #[inline]
    pub(crate) fn begin_transfer(&self) {
        self.completion().phase.store(TRANSFERRING, Ordering::Relaxed);
    }

    /// Makes the operation inactive again, as if it had never begun.
    pub(crate) fn retract(self) {
        self.completion().phase.store(INACTIVE, Ordering::Relaxed);
    }

    /// Completes the operation without an error.
    #[inline(always)]
    pub(crate) fn succeed(self, status: Status, done: &mut Done) {
        // SAFETY: `self` is the only handle of this operation, and the host does not touch it.
        let outcome = unsafe { self.completion().outcome_mut() };
        // Store field by field: a copy of the whole struct would read padding back before it is written.
        outcome.status.source = status.source;
        outcome.status.tag = status.tag;
        outcome.status.len = status.len;
        outcome.status.cancelled = status.cancelled;
        outcome.error = None;
        self.finish(done);
    }

    /// Completes the operation.
    pub(crate) fn complete(self, status: Status, error: Option<Error>, done: &mut Done) {
        self.end(status, error.map(Box::new), done);
    }

    /// Completes the operation with an error that is boxed already.
    #[inline]
    pub(crate) fn end(self, status: Status, error: Option<Box<Error>>, done: &mut Done) {
        // SAFETY: as in `succeed`.
        *unsafe { self.completion().outcome_mut() } = Outcome { status, error };
        self.finish(done);
    }

    #[inline(always)]
    fn finish(self, done: &mut Done) {
        // SAFETY: a hook is set only while the operation is inactive.
        match unsafe { *self.completion().hook.get() } {
            None => self.completion().finish(),
            Some((hook, user)) => done.hooks.push(Called { request: self.0, hook, user }),
        }
    }
}

struct Called {
    request: NonNull<Completion>,
    hook: Hook,
    user: *mut c_void,
}

/// Completed requests whose hooks run once no lock is held. A request without a hook is complete as soon as its flag is
/// set and is not listed here.
#[derive(Default)]
pub(crate) struct Done {
    hooks: SmallVec<[Called; 4]>,
    /// Control messages may gather. The turn of progress that created this value sends them.
    pub(crate) gathers: bool,
}

impl Done {
    /// Creates the list for a part of a turn of progress: a poll of a transport, or the steps after copies.
    #[inline]
    pub(crate) fn gathering() -> Self {
        Done { gathers: true, ..Done::default() }
    }

    /// Calls the hooks. No lock may be held.
    #[inline]
    pub(crate) fn run(mut self) {
        self.run_now();
    }

    /// Calls the hooks as [`run`](Self::run) does, and empties the list.
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
            // SAFETY: the caller of `set_hook` allowed this call.
            unsafe { hook(request.as_ptr(), user) };
        }
    }
}
