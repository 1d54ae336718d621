//! Memory for requests of the engine, which outlives the operations.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use cableway_pml::{Engine, Request};

use crate::error::Operation;

thread_local! {
    /// Requests that this thread reuses, so that a message needs no allocation.
    static FREE: RefCell<Vec<Allocation>> = const { RefCell::new(Vec::new()) };
}

/// Requests that a thread keeps for reuse.
const KEPT: usize = 256;

/// Time that a panicking thread waits for transfers from and to memory that its unwinding would free.
pub(crate) const PANIC_TIMEOUT: Duration = Duration::from_secs(10);

/// A request and its engine. Dropping an active request waits until the engine no longer uses the request's memory and
/// buffers.
pub(crate) struct InFlight<'e> {
    engine: &'e Engine,
    /// Owned as an [`Allocation`] is.
    memory: NonNull<Memory>,
}

/// A request, and its description and neighbours while it is in a [`RequestList`].
struct Memory {
    request: Request,
    operation: Cell<Operation>,
    /// Neighbours in the [`RequestList`].
    before: Cell<Option<NonNull<Memory>>>,
    after: Cell<Option<NonNull<Memory>>>,
}

// SAFETY: a request may be used from any thread, and this is its only owner.
unsafe impl Send for InFlight<'_> {}

/// An allocated request. Held by pointer instead of by box, because the engine holds the address, too.
struct Allocation(NonNull<Memory>);

impl<'e> InFlight<'e> {
    /// Makes an inactive request.
    #[inline]
    pub(crate) fn new(engine: &'e Engine) -> Self {
        let kept = FREE.with_borrow_mut(Vec::pop);
        InFlight { engine, memory: kept.map_or_else(Memory::new, Allocation::into_inner) }
    }

    /// Waits until the operation completes, if one is under way.
    #[inline]
    pub(crate) fn wait(&self) {
        if self.is_active() {
            self.engine.wait(&[self]);
        }
    }

    /// Cancels the operation if it is a receive that no message has matched. Returns whether it was cancelled.
    pub(crate) fn cancel(&self) -> bool {
        // SAFETY: the request is valid, and was started on this engine only.
        unsafe { self.engine.cancel(&raw const **self) }
    }

    /// Waits until the operation ends, also while the thread panics.
    pub(crate) fn end(&self) {
        if self.is_active() && std::thread::panicking() {
            self.end_in_panic();
        }
        self.wait();
    }

    /// Cancels the operation, or waits for it, while a panic unwinds: unwinding must not free its buffers. Aborts if it
    /// does not end in time.
    fn end_in_panic(&self) {
        self.cancel();
        let end = Instant::now() + PANIC_TIMEOUT;
        self.engine.wait_until(|| !self.is_active() || Instant::now() > end);
        if self.is_active() {
            log::error!("aborting: a thread panicked while a peer reads or writes its memory");
            std::process::abort();
        }
    }
}

impl Deref for InFlight<'_> {
    type Target = Request;

    #[inline]
    fn deref(&self) -> &Request {
        // SAFETY: `new` allocated it, and only `drop` frees it.
        unsafe { &self.memory.as_ref().request }
    }
}

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_active() {
            self.end();
        }
        // Do not keep persistent requests: they hold their communicator.
        let reusable = !self.is_persistent();
        let allocation = Allocation(self.memory);
        // A thread that is ending keeps no requests.
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

/// A list of one thread's operations under way, each named by an [`Entry`]. Dropping the list waits for the operations
/// still in it.
pub(crate) struct RequestList<'e> {
    engine: &'e Engine,
    last: Cell<Option<NonNull<Memory>>>,
}

/// Names an operation in a [`RequestList`] until it is taken out. An entry is not copied, and is used with its list only.
pub(crate) struct Entry(NonNull<Memory>);

impl<'e> RequestList<'e> {
    pub(crate) fn new(engine: &'e Engine) -> Self {
        RequestList { engine, last: Cell::new(None) }
    }

    /// Adds `one`, an operation on the list's engine, until it is taken out.
    #[inline]
    pub(crate) fn push(&self, one: InFlight<'e>, operation: Operation) -> Entry {
        debug_assert!(std::ptr::eq(one.engine, self.engine));
        let pointer = std::mem::ManuallyDrop::new(one).memory;
        // SAFETY: nobody else has the allocation; the list owns it from here on.
        let memory = unsafe { pointer.as_ref() };
        let before = self.last.replace(Some(pointer));
        memory.operation.set(operation);
        memory.before.set(before);
        memory.after.set(None);
        if let Some(before) = before {
            // SAFETY: listed requests are allocated.
            unsafe { before.as_ref() }.after.set(Some(pointer));
        }
        Entry(pointer)
    }

    /// Returns the request and the description of an entry.
    ///
    /// # Safety
    /// The entry is in this list.
    #[inline]
    pub(crate) unsafe fn get(&self, entry: &Entry) -> (&Request, Operation) {
        // SAFETY: the caller promises that it is listed, and listed requests are allocated. `take` consumes the entry.
        let memory = unsafe { entry.0.as_ref() };
        (&memory.request, memory.operation.get())
    }

    /// Takes an entry out. The request still waits when dropped.
    ///
    /// # Safety
    /// The entry is in this list.
    #[inline]
    pub(crate) unsafe fn take(&self, entry: Entry) -> (InFlight<'e>, Operation) {
        let Entry(pointer) = entry;
        // SAFETY: as in `get`.
        let memory = unsafe { pointer.as_ref() };
        let (before, after) = (memory.before.get(), memory.after.get());
        match after {
            None => self.last.set(before),
            // SAFETY: listed requests are allocated.
            Some(after) => unsafe { after.as_ref() }.before.set(before),
        }
        if let Some(before) = before {
            // SAFETY: as above.
            unsafe { before.as_ref() }.after.set(after);
        }
        (InFlight { engine: self.engine, memory: pointer }, memory.operation.get())
    }

    /// Takes out the last entry.
    ///
    /// # Safety
    /// No entry of the list is used after this.
    unsafe fn take_last(&self) -> Option<(InFlight<'e>, Operation)> {
        // SAFETY: it is in this list, and the caller promises that no other entry names it.
        Some(unsafe { self.take(Entry(self.last.get()?)) })
    }
}

impl Drop for RequestList<'_> {
    fn drop(&mut self) {
        // SAFETY: using an entry needs a borrow of the list, and none is left.
        while let Some((one, operation)) = unsafe { self.take_last() } {
            one.end();
            if let Some(error) = one.error() {
                log::warn!("{operation} failed and was not waited for: {error}");
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
        // SAFETY: `InFlight::new` made it from a box, and the drop of `InFlight` has waited for the operation.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
