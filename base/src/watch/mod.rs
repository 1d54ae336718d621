//! Threads that wait, of which one polls for all.
//!
//! A thread that polls keeps its processor from those that have work, perhaps from the very one whose message is there.
//! So the first thread that comes to wait has the watch: it polls until what it waits for is done. Whoever comes meanwhile
//! sleeps, until what it waits for is done or the watch is its own: who leaves it wakes one of them to take it. Until that
//! one runs, the next to come may have the watch, so that a thread that soon waits again need not change places with one
//! that has nothing to do.
//!
//! Who is woken owes nothing to who woke it: a [`Sleeper`] is touched for the last time before its thread can go on.

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
/// The thread's handle is there; who ends the wait must wake it.
const ASLEEP: u32 = 1;
const DONE: u32 = 2;

/// One wait of one thread. It lies still, and lives until it [is done](Self::is_done), or until nobody can
/// [`wake`](Self::wake) it any more.
pub struct Sleeper {
    state: AtomicU32,
    /// It was woken to take the watch. Written under the crew's lock.
    called: AtomicBool,
    /// Written before `state` becomes `ASLEEP`.
    thread: UnsafeCell<Option<Thread>>,
}

// SAFETY: the handle is written by the waiting thread before others look at it: under the crew's lock, and before the
// state says so.
unsafe impl Sync for Sleeper {}

impl Default for Sleeper {
    fn default() -> Self {
        Self::new()
    }
}

impl Sleeper {
    /// Of a wait that is about to begin.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Self {
        Sleeper { state: AtomicU32::new(AWAKE), called: AtomicBool::new(false), thread: UnsafeCell::new(None) }
    }

    #[cfg(all(test, loom))]
    fn new() -> Self {
        Sleeper { state: AtomicU32::new(AWAKE), called: AtomicBool::new(false), thread: UnsafeCell::new(None) }
    }

    /// Whether what it waits for is done.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.state.load(Acquire) == DONE
    }

    /// Ends the wait: what it was for is done. Answers whether a thread had to be woken.
    ///
    /// # Safety
    /// `this` is valid until this call makes it done. Called once.
    #[inline]
    pub unsafe fn wake(this: NonNull<Sleeper>) -> bool {
        // SAFETY: the caller's promise; this borrow is not used once the state says that it is done.
        let sleeper = unsafe { this.as_ref() };
        if sleeper.state.compare_exchange(AWAKE, DONE, AcqRel, Acquire).is_ok() {
            return false;
        }
        // SAFETY: it sleeps, so the handle is there and nobody writes it.
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
    crew: Mutex<Crew>,
    /// How many sleep.
    sleeping: AtomicUsize,
}

struct Crew {
    /// Who polls.
    watch: Option<Name>,
    /// One of the sleepers was called, and has not come yet.
    called: bool,
    /// Who sleeps, the first to come first. Each is valid while it is in here: it takes itself out.
    asleep: Vec<NonNull<Sleeper>>,
}

// SAFETY: sleepers may be looked at by any thread.
unsafe impl Send for Crew {}

impl Watch {
    /// Nobody waits.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Self {
        Watch {
            crew: Mutex::new(Crew { watch: None, called: false, asleep: Vec::new() }),
            sleeping: AtomicUsize::new(0),
        }
    }

    #[cfg(all(test, loom))]
    fn new() -> Self {
        Watch {
            crew: Mutex::new(Crew { watch: None, called: false, asleep: Vec::new() }),
            sleeping: AtomicUsize::new(0),
        }
    }

    /// Whether threads sleep that the one with the watch polls for.
    #[inline]
    pub fn others_sleep(&self) -> bool {
        self.sleeping.load(Relaxed) != 0
    }

    /// Waits until the sleeper is done, or `enough` answers true, which is asked whenever [`rouse`](Self::rouse) was
    /// called. Whoever has the watch calls `poll` again and again. A thread that comes to wait out of its own `poll` has
    /// the watch already, and polls.
    pub fn wait(&self, sleeper: &Sleeper, enough: impl Fn() -> bool, mut poll: impl FnMut()) {
        let over = || sleeper.is_done() || enough();
        if over() {
            return;
        }
        match self.come(sleeper) {
            Duty::Watch => {}
            Duty::Nested => {
                while !over() {
                    poll();
                }
                return;
            }
            Duty::Sleep => loop {
                if over() {
                    self.rise(sleeper);
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

    /// Has everybody who waits ask whether it is enough.
    pub fn rouse(&self) {
        for sleeper in &self.crew.lock().asleep {
            // SAFETY: it is in the list, so it is valid; its handle was written before it came there, and not since.
            if let Some(thread) = unsafe { &*sleeper.as_ref().thread.get() } {
                thread.unpark();
            }
        }
    }

    fn come(&self, sleeper: &Sleeper) -> Duty {
        let here = here();
        let mut crew = self.crew.lock();
        match crew.watch {
            None => {
                crew.watch = Some(here);
                Duty::Watch
            }
            Some(watch) if watch == here => Duty::Nested,
            Some(_) => {
                // SAFETY: it is this thread's, and nobody looks at the handle yet.
                unsafe { *sleeper.thread.get() = Some(thread::current()) };
                crew.asleep.push(NonNull::from(sleeper));
                self.sleeping.store(crew.asleep.len(), Relaxed);
                drop(crew);
                // If it is done by now, it stays so.
                let _ = sleeper.state.compare_exchange(AWAKE, ASLEEP, AcqRel, Acquire);
                Duty::Sleep
            }
        }
    }

    /// Whether a sleeper that was called has the watch now; it sleeps on if another one came before it.
    fn take_over(&self, sleeper: &Sleeper) -> bool {
        let mut crew = self.crew.lock();
        sleeper.called.store(false, Relaxed);
        crew.called = false;
        if crew.watch.is_some() {
            return false;
        }
        crew.watch = Some(here());
        self.remove(&mut crew, sleeper);
        true
    }

    /// Takes a sleeper out of the list, for which the wait is over.
    fn rise(&self, sleeper: &Sleeper) {
        let mut crew = self.crew.lock();
        self.remove(&mut crew, sleeper);
        if sleeper.called.load(Relaxed) {
            crew.called = false;
            if crew.watch.is_none() {
                Self::call(&mut crew);
            }
        }
    }

    /// Ends this thread's watch.
    fn leave(&self) {
        let mut crew = self.crew.lock();
        crew.watch = None;
        Self::call(&mut crew);
    }

    /// Wakes who sleeps longest to take the watch, if anybody sleeps and none was called already.
    fn call(crew: &mut Crew) {
        if crew.called {
            return;
        }
        // SAFETY: they are in the list, so they are valid; a handle is written before its sleeper comes there, and not since.
        let sleepers = crew.asleep.iter().map(|sleeper| unsafe { (sleeper.as_ref(), &*sleeper.as_ref().thread.get()) });
        let next = sleepers.into_iter().find(|(sleeper, _)| !sleeper.is_done());
        if let Some((sleeper, Some(thread))) = next {
            sleeper.called.store(true, Release);
            thread.unpark();
            crew.called = true;
        }
    }

    fn remove(&self, crew: &mut Crew, sleeper: &Sleeper) {
        crew.asleep.retain(|other| !std::ptr::eq(other.as_ptr(), sleeper));
        self.sleeping.store(crew.asleep.len(), Relaxed);
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

enum Duty {
    Watch,
    Sleep,
    /// This thread polls already, further up.
    Nested,
}

/// What a thread is known by here.
#[cfg(not(all(test, loom)))]
type Name = usize;

#[cfg(not(all(test, loom)))]
fn here() -> Name {
    crate::lock::this_thread()
}

#[cfg(all(test, loom))]
type Name = thread::ThreadId;

#[cfg(all(test, loom))]
fn here() -> Name {
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

/// With the face of the other.
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
