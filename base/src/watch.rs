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
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Events that threads wait for come in any order, while whoever has the watch looks for them.
    #[test]
    fn everybody_is_woken_whoever_polls() {
        const THREADS: usize = 6;
        const ROUNDS: usize = 500;
        let watch = Watch::new();
        let waiting: [parking_lot::Mutex<Option<usize>>; THREADS] = std::array::from_fn(|_| Default::default());
        let polls = AtomicUsize::new(0);
        let poll = || {
            let turn = polls.fetch_add(1, Relaxed);
            let woken = waiting[turn * 5 % THREADS].lock().take();
            if let Some(sleeper) = woken.and_then(|address| NonNull::new(address as *mut Sleeper)) {
                // SAFETY: its thread waits for this, which happens once.
                unsafe { Sleeper::wake(sleeper) };
            }
        };
        std::thread::scope(|scope| {
            for place in &waiting {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let sleeper = Sleeper::new();
                        *place.lock() = Some(std::ptr::from_ref(&sleeper) as usize);
                        watch.wait(&sleeper, || false, poll);
                        assert!(sleeper.is_done());
                    }
                });
            }
        });
        assert!(!watch.others_sleep());
    }

    #[test]
    fn who_is_roused_may_leave_and_the_watch_goes_on() {
        let watch = Watch::new();
        let (enough, polling) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sleeper = Sleeper::new();
                watch.wait(&sleeper, || enough.load(Acquire), || polling.store(true, Release));
                assert!(!sleeper.is_done());
            });
            while !polling.load(Acquire) {
                std::thread::yield_now();
            }
            scope.spawn(|| watch.wait(&Sleeper::new(), || enough.load(Acquire), || ()));
            while !watch.others_sleep() {
                std::thread::yield_now();
            }
            enough.store(true, Release);
            watch.rouse();
        });
        let mut polls = 0;
        let sleeper = Sleeper::new();
        watch.wait(
            &sleeper,
            || false,
            || {
                polls += 1;
                // SAFETY: it is valid, and this happens once.
                assert!(!unsafe { Sleeper::wake(NonNull::from(&sleeper)) }, "who has the watch is awake");
            },
        );
        assert_eq!(polls, 1);
    }

    #[test]
    fn who_waits_while_it_polls_polls() {
        let watch = Watch::new();
        let (outer, inner) = (Sleeper::new(), Sleeper::new());
        watch.wait(
            &outer,
            || false,
            || {
                // SAFETY: both are valid, and each is woken once.
                watch.wait(
                    &inner,
                    || false,
                    || unsafe {
                        Sleeper::wake(NonNull::from(&inner));
                    },
                );
                // SAFETY: as above.
                unsafe { Sleeper::wake(NonNull::from(&outer)) };
            },
        );
        assert!(outer.is_done() && inner.is_done());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    /// A request: nothing, or whom to wake, or done.
    #[derive(Default)]
    struct Event(AtomicUsize);

    impl Event {
        const DONE: usize = 1;

        /// In a poll: another thread may be about to say that it is done.
        fn found(&self) {
            self.happen();
            thread::yield_now();
        }

        fn happen(&self) {
            if let Some(sleeper) = NonNull::new((self.0.swap(Self::DONE, AcqRel) & !Self::DONE) as *mut Sleeper) {
                // SAFETY: its thread waits for this.
                unsafe { Sleeper::wake(sleeper) };
            }
        }

        fn await_on(&self, watch: &Watch, poll: impl FnMut()) {
            let sleeper = Sleeper::new();
            let address = std::ptr::from_ref(&sleeper) as usize;
            if self.0.compare_exchange(0, address, AcqRel, Acquire).is_ok() {
                watch.wait(&sleeper, || false, poll);
                assert!(sleeper.is_done());
            }
        }
    }

    fn model(scenario: impl Fn() + Send + Sync + 'static) {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(2);
        bounded.check(scenario);
    }

    /// Each thread finds its own event when it polls, and no other: who sleeps depends on being called.
    #[test]
    fn loom_who_leaves_calls_the_next() {
        model(|| {
            let shared = Arc::new((Watch::new(), Event::default(), Event::default()));
            let second = thread::spawn({
                let shared = shared.clone();
                move || shared.2.await_on(&shared.0, || shared.2.found())
            });
            shared.1.await_on(&shared.0, || shared.1.found());
            second.join().unwrap();
            assert!(!shared.0.others_sleep());
        });
    }

    /// Who polls finds the other's event, too, before or after its own.
    #[test]
    fn loom_who_polls_wakes_the_others() {
        for other_first in [true, false] {
            model(move || {
                let shared = Arc::new((Watch::new(), Event::default(), Event::default()));
                let both = move |own: &Event, foreign: &Event| {
                    let (first, second) = if other_first { (foreign, own) } else { (own, foreign) };
                    first.happen();
                    second.found();
                };
                let second = thread::spawn({
                    let shared = shared.clone();
                    move || shared.2.await_on(&shared.0, || both(&shared.2, &shared.1))
                });
                shared.1.await_on(&shared.0, || both(&shared.1, &shared.2));
                second.join().unwrap();
            });
        }
    }

    /// Who was called, but is done already, calls another one that sleeps.
    #[test]
    fn loom_a_call_in_vain_is_passed_on() {
        model(|| {
            let shared = Arc::new((Watch::new(), Event::default(), Event::default(), Event::default()));
            let done_by_another = thread::spawn({
                let shared = shared.clone();
                move || shared.2.await_on(&shared.0, || shared.2.found())
            });
            let alone = thread::spawn({
                let shared = shared.clone();
                move || shared.3.await_on(&shared.0, || shared.3.found())
            });
            shared.1.await_on(&shared.0, || shared.1.found());
            shared.2.happen();
            done_by_another.join().unwrap();
            alone.join().unwrap();
        });
    }
}
