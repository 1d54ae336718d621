//! Lets one of several waiting threads poll for all of them.
//!
//! A polling thread occupies a processor that another thread may need, perhaps the thread whose message has arrived.
//! Therefore only the first waiting thread becomes the poller: it polls until its own event. Threads that arrive later
//! sleep until their event, or until they become the poller. A poller that stops wakes one sleeper to replace it. Until
//! that sleeper runs, a newly arriving thread may become the poller. So a thread that soon waits again need not change
//! places with a thread that has nothing to do.
//!
//! A thread that wakes another one accesses its [`Sleeper`] for the last time before that thread can continue.

use std::cell::UnsafeCell;
use std::ptr::NonNull;

#[cfg(not(all(test, loom)))]
use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*},
    thread::{self, Thread},
};

#[cfg(all(test, loom))]
use loom::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*},
    thread::{self, Thread},
};

const AWAKE: u32 = 0;
/// The thread's handle is stored. The thread that ends the wait must wake it.
const ASLEEP: u32 = 1;
const DONE: u32 = 2;

/// One wait of one thread. It must not move, and must live until it [is done](Self::is_done) or until no thread can
/// [`wake`](Self::wake) it.
pub struct Sleeper {
    state: AtomicU32,
    /// The sleeper was woken to become the poller. Written under the lock.
    called: AtomicBool,
    /// Written before `state` becomes `ASLEEP`.
    thread: UnsafeCell<Option<Thread>>,
}

// SAFETY: the waiting thread writes the handle before others read it: before it releases the lock, and before `state`
// becomes `ASLEEP`.
unsafe impl Sync for Sleeper {}

impl Default for Sleeper {
    fn default() -> Self {
        Self::new()
    }
}

impl Sleeper {
    /// Makes the state of a wait that is about to begin.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Self {
        Sleeper { state: AtomicU32::new(AWAKE), called: AtomicBool::new(false), thread: UnsafeCell::new(None) }
    }

    #[cfg(all(test, loom))]
    fn new() -> Self {
        Sleeper { state: AtomicU32::new(AWAKE), called: AtomicBool::new(false), thread: UnsafeCell::new(None) }
    }

    /// Returns whether the event has happened.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.state.load(Acquire) == DONE
    }

    /// Ends the wait because the event has happened. Returns whether a thread had to be woken.
    ///
    /// # Safety
    /// `this` must stay valid until this call marks it as done. Call this once.
    #[inline]
    pub unsafe fn wake(this: NonNull<Sleeper>) -> bool {
        // SAFETY: the caller's promise. This borrow is not used after the state becomes `DONE`.
        let sleeper = unsafe { this.as_ref() };
        if sleeper.state.compare_exchange(AWAKE, DONE, AcqRel, Acquire).is_ok() {
            return false;
        }
        // SAFETY: the thread sleeps, so the handle is stored, and no thread writes it.
        let thread = unsafe { (*sleeper.thread.get()).clone() };
        sleeper.state.store(DONE, Release);
        if let Some(thread) = thread {
            thread.unpark();
        }
        true
    }
}

/// The threads that wait for one source of events.
pub struct Watch {
    waiters: Mutex<Waiters>,
    /// The number of sleeping threads.
    sleeping: AtomicUsize,
}

struct Waiters {
    /// The thread that polls.
    poller: Option<ThreadName>,
    /// A sleeper was called to become the poller, and has not run yet.
    called: bool,
    /// The sleepers, in the order of arrival. Each is valid while it is in the list, because it removes itself.
    asleep: Vec<NonNull<Sleeper>>,
}

// SAFETY: any thread may access a sleeper.
unsafe impl Send for Waiters {}

impl Watch {
    /// Makes a watch without waiting threads.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Self {
        Watch {
            waiters: Mutex::new(Waiters { poller: None, called: false, asleep: Vec::new() }),
            sleeping: AtomicUsize::new(0),
        }
    }

    #[cfg(all(test, loom))]
    fn new() -> Self {
        Watch {
            waiters: Mutex::new(Waiters { poller: None, called: false, asleep: Vec::new() }),
            sleeping: AtomicUsize::new(0),
        }
    }

    /// Returns whether other threads sleep while the poller polls for them.
    #[inline]
    pub fn others_sleep(&self) -> bool {
        self.sleeping.load(Relaxed) != 0
    }

    /// Waits until the sleeper is done or `enough` returns true. [`rouse`](Self::rouse) makes every waiting thread call
    /// `enough` again. The poller calls `poll` repeatedly. A thread that waits within its own `poll` is the poller
    /// already, and polls.
    pub fn wait(&self, sleeper: &Sleeper, enough: impl Fn() -> bool, mut poll: impl FnMut()) {
        let over = || sleeper.is_done() || enough();
        if over() {
            return;
        }
        match self.join(sleeper) {
            Role::Poll => {}
            Role::Nested => {
                while !over() {
                    poll();
                }
                return;
            }
            Role::Sleep => loop {
                if over() {
                    self.withdraw(sleeper);
                    return;
                }
                if !sleeper.called.load(Acquire) {
                    thread::park();
                } else if self.take_over(sleeper) {
                    break;
                }
            },
        }
        let _leave = OnDrop(|| self.leave());
        while !over() {
            poll();
        }
    }

    /// Makes all waiting threads call their `enough` again.
    pub fn rouse(&self) {
        for sleeper in &self.waiters.lock().asleep {
            // SAFETY: a sleeper in the list is valid, and its handle was written before it entered the list.
            if let Some(thread) = unsafe { &*sleeper.as_ref().thread.get() } {
                thread.unpark();
            }
        }
    }

    fn join(&self, sleeper: &Sleeper) -> Role {
        let here = here();
        let mut waiters = self.waiters.lock();
        match waiters.poller {
            None => {
                waiters.poller = Some(here);
                Role::Poll
            }
            Some(poller) if poller == here => Role::Nested,
            Some(_) => {
                // SAFETY: the sleeper belongs to this thread, and no other thread reads the handle yet.
                unsafe { *sleeper.thread.get() = Some(thread::current()) };
                waiters.asleep.push(NonNull::from(sleeper));
                self.sleeping.store(waiters.asleep.len(), Relaxed);
                drop(waiters);
                // This fails if the sleeper is done, which is final.
                let _ = sleeper.state.compare_exchange(AWAKE, ASLEEP, AcqRel, Acquire);
                Role::Sleep
            }
        }
    }

    /// Makes a called sleeper the poller. Returns false, and lets it sleep on, if another thread is the poller already.
    fn take_over(&self, sleeper: &Sleeper) -> bool {
        let mut waiters = self.waiters.lock();
        sleeper.called.store(false, Relaxed);
        waiters.called = false;
        if waiters.poller.is_some() {
            return false;
        }
        waiters.poller = Some(here());
        self.remove(&mut waiters, sleeper);
        true
    }

    /// Removes a sleeper whose wait is over.
    fn withdraw(&self, sleeper: &Sleeper) {
        let mut waiters = self.waiters.lock();
        self.remove(&mut waiters, sleeper);
        if sleeper.called.load(Relaxed) {
            waiters.called = false;
            if waiters.poller.is_none() {
                Self::call(&mut waiters);
            }
        }
    }

    /// Ends this thread's role as the poller.
    fn leave(&self) {
        let mut waiters = self.waiters.lock();
        waiters.poller = None;
        Self::call(&mut waiters);
    }

    /// Wakes the longest sleeper to become the poller, unless another one was called already.
    fn call(waiters: &mut Waiters) {
        if waiters.called {
            return;
        }
        // SAFETY: sleepers in the list are valid, and their handles were written before they entered the list.
        let sleepers =
            waiters.asleep.iter().map(|sleeper| unsafe { (sleeper.as_ref(), &*sleeper.as_ref().thread.get()) });
        let next = sleepers.into_iter().find(|(sleeper, _)| !sleeper.is_done());
        if let Some((sleeper, Some(thread))) = next {
            sleeper.called.store(true, Release);
            thread.unpark();
            waiters.called = true;
        }
    }

    fn remove(&self, waiters: &mut Waiters, sleeper: &Sleeper) {
        waiters.asleep.retain(|other| !std::ptr::eq(other.as_ptr(), sleeper));
        self.sleeping.store(waiters.asleep.len(), Relaxed);
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

enum Role {
    Poll,
    Sleep,
    /// This thread polls already, in an outer call.
    Nested,
}

/// Identifies a thread.
#[cfg(not(all(test, loom)))]
type ThreadName = usize;

#[cfg(not(all(test, loom)))]
fn here() -> ThreadName {
    crate::lock::this_thread()
}

#[cfg(all(test, loom))]
type ThreadName = thread::ThreadId;

#[cfg(all(test, loom))]
fn here() -> ThreadName {
    thread::current().id()
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(not(all(test, loom)))]
use parking_lot::Mutex;

/// Has the interface of `parking_lot::Mutex`.
#[cfg(all(test, loom))]
struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(all(test, loom))]
impl<T> Mutex<T> {
    fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
