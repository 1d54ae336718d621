//! Memory for requests of the engine, and the promise that it outlives them.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use cableway_pml::{Engine, Request};

use crate::error::Operation;

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
    memory: NonNull<Memory>,
}

/// A request and what is known of it while it is one of many.
struct Memory {
    request: Request,
    operation: Cell<Operation>,
    /// Neighbours in the list of a [`Company`].
    before: Cell<Option<NonNull<Memory>>>,
    after: Cell<Option<NonNull<Memory>>>,
}

// SAFETY: a request may be used from any thread, and this is its only owner.
unsafe impl Send for InFlight<'_> {}

/// A request at an address of its own. Held by pointer, not by box: the engine holds the address, too.
struct Allocation(NonNull<Memory>);

impl<'e> InFlight<'e> {
    /// An inactive request.
    #[inline]
    pub(crate) fn new(engine: &'e Engine) -> Self {
        let kept = FREE.with_borrow_mut(Vec::pop);
        InFlight { engine, memory: kept.map_or_else(Memory::new, Allocation::into_inner) }
    }

    /// Waits until the operation, if there is one, is over.
    #[inline]
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

    #[inline]
    fn deref(&self) -> &Request {
        // SAFETY: allocated by `new`, and nobody frees it before `drop` does.
        unsafe { &self.memory.as_ref().request }
    }
}

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_active() {
            self.end();
        }
        // A persistent request holds on to its communicator: it is not kept.
        let reusable = !self.is_persistent();
        let allocation = Allocation(self.memory);
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

impl Memory {
    #[cold]
    fn new() -> NonNull<Memory> {
        let memory = Memory {
            request: Request::new(),
            operation: Cell::new(Operation::NONE),
            before: Cell::new(None),
            after: Cell::new(None),
        };
        NonNull::from(Box::leak(Box::new(memory)))
    }
}

/// Operations of one thread that are under way together, each found by its [`Member`]. Dropping it waits for those that
/// nobody took out.
pub(crate) struct Company<'e> {
    engine: &'e Engine,
    last: Cell<Option<NonNull<Memory>>>,
}

/// Names an operation in the company that it joined, until it is taken out. Neither copied nor used elsewhere.
pub(crate) struct Member(NonNull<Memory>);

impl<'e> Company<'e> {
    pub(crate) fn new(engine: &'e Engine) -> Self {
        Company { engine, last: Cell::new(None) }
    }

    /// Keeps `one`, an operation on the company's engine, until it is taken out.
    #[inline]
    pub(crate) fn join(&self, one: InFlight<'e>, operation: Operation) -> Member {
        debug_assert!(std::ptr::eq(one.engine, self.engine));
        let pointer = std::mem::ManuallyDrop::new(one).memory;
        // SAFETY: an allocation that nobody else has, from here on the list's.
        let memory = unsafe { pointer.as_ref() };
        let before = self.last.replace(Some(pointer));
        memory.operation.set(operation);
        memory.before.set(before);
        memory.after.set(None);
        if let Some(before) = before {
            // SAFETY: what is listed is allocated.
            unsafe { before.as_ref() }.after.set(Some(pointer));
        }
        Member(pointer)
    }

    /// The request and the description of a member.
    ///
    /// # Safety
    /// It is this company's.
    #[inline]
    pub(crate) unsafe fn get(&self, member: &Member) -> (&Request, Operation) {
        // SAFETY: by the caller's promise it is listed, and what is listed is allocated; `take` needs the member.
        let memory = unsafe { member.0.as_ref() };
        (&memory.request, memory.operation.get())
    }

    /// Takes a member out. It still waits when dropped.
    ///
    /// # Safety
    /// It is this company's.
    #[inline]
    pub(crate) unsafe fn take(&self, member: Member) -> (InFlight<'e>, Operation) {
        let Member(pointer) = member;
        // SAFETY: as in `get`.
        let memory = unsafe { pointer.as_ref() };
        let (before, after) = (memory.before.get(), memory.after.get());
        match after {
            None => self.last.set(before),
            // SAFETY: what is listed is allocated.
            Some(after) => unsafe { after.as_ref() }.before.set(before),
        }
        if let Some(before) = before {
            // SAFETY: as above.
            unsafe { before.as_ref() }.after.set(after);
        }
        (InFlight { engine: self.engine, memory: pointer }, memory.operation.get())
    }

    /// Takes out one that nobody will ask for any more.
    ///
    /// # Safety
    /// No member is used after this.
    unsafe fn take_last(&self) -> Option<(InFlight<'e>, Operation)> {
        // SAFETY: listed here, and named by nobody else.
        Some(unsafe { self.take(Member(self.last.get()?)) })
    }
}

impl Drop for Company<'_> {
    fn drop(&mut self) {
        // SAFETY: who could use a member has lent the company for it.
        while let Some((one, operation)) = unsafe { self.take_last() } {
            one.end();
            if let Some(error) = one.error() {
                log::warn!("{operation}, which nobody waited for, failed: {error}");
            }
        }
    }
}

impl Allocation {
    fn into_inner(self) -> NonNull<Memory> {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: made from a box by `InFlight::new`, whose drop has seen the end of the operation.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
