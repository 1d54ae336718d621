//! A gate: lets any thread use a value until the gate is closed, and tells when the last of them has left.
//!
//! Users count themselves in a shard of their thread, so that threads share no cache line. They enter by one atomic
//! read-modify-write, which also orders it before the look at whether the gate is open. Whoever closes the gate stores
//! that first, and sums the shards then. So the closer sees a user, or the user sees that the gate is closed:
//!
//! ```text
//! user                              closer
//! users += 1        (SeqCst)        open = false          (SeqCst)
//! open?             (SeqCst)        sum of all users = 0? (SeqCst)
//! ```
//!
//! Invariant: a thread touches the value only while it is counted and has seen the gate open, or if it holds the lock
//! of closers, the gate is closed and nobody is counted.

use std::ops::Deref;

use platform::{AtomicBool, AtomicUsize, Mutex, Ordering, UnsafeCell, shard};

/// The number of shards. Threads beyond it share them.
#[cfg(not(all(test, loom)))]
const SHARDS: usize = 16;
#[cfg(all(test, loom))]
const SHARDS: usize = 2;

/// See the module. A new gate is closed and has no value.
pub struct Gate<T> {
    shards: [Shard; SHARDS],
    open: AtomicBool,
    /// Whoever opens the gate or takes the value holds it.
    closers: Mutex<()>,
    value: UnsafeCell<Option<T>>,
}

/// Users of some threads, on a pair of cache lines of their own: processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Shard(AtomicUsize);

// SAFETY: users on several threads share the value, and any thread may take it.
unsafe impl<T: Send + Sync> Sync for Gate<T> {}
// SAFETY: the owner of the gate owns the value.
unsafe impl<T: Send> Send for Gate<T> {}

impl<T> Default for Gate<T> {
    fn default() -> Self {
        Gate {
            shards: std::array::from_fn(|_| Shard::default()),
            open: AtomicBool::new(false),
            closers: Mutex::new(()),
            value: UnsafeCell::new(None),
        }
    }
}

impl<T> Gate<T> {
    /// Opens the gate to a value.
    ///
    /// # Errors
    /// The gate has a value, or a user that was late knocks. Gives the value back.
    pub fn open(&self, value: T) -> Result<(), T> {
        let _alone = lock(&self.closers);
        if !self.is_idle() || self.with(|value| value.is_some()) {
            return Err(value);
        }
        self.with(|place| *place = Some(value));
        self.open.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Admits no more users. Those inside stay until they leave.
    pub fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
        platform::order();
    }

    /// Drops the value of a closed gate, unless a user is inside. Returns whether the gate is closed and has no value.
    pub fn is_over(&self) -> bool {
        let taken = {
            let _alone = lock(&self.closers);
            if !self.is_idle() {
                return false;
            }
            self.with(Option::take)
        };
        drop(taken);
        true
    }

    /// Enters if the gate is open. Otherwise whoever closed it may have seen this attempt as a user inside, so
    /// [`is_over`](Self::is_over) must be asked again.
    #[inline]
    pub fn enter(&self) -> Option<Inside<'_, T>> {
        let shard = &self.shards[shard() % SHARDS];
        shard.0.fetch_add(1, Ordering::SeqCst);
        platform::order();
        let inside = Inside { gate: self, shard };
        // The drop of the value leaves again.
        self.open.load(Ordering::SeqCst).then_some(inside)
    }

    /// Returns whether the gate is closed and nobody is inside. The caller holds the lock of closers.
    fn is_idle(&self) -> bool {
        !self.open.load(Ordering::SeqCst) && self.shards.iter().all(|shard| shard.0.load(Ordering::SeqCst) == 0)
    }

    /// Accesses the value. The gate is idle, and the caller holds the lock of closers.
    fn with<R>(&self, act: impl FnOnce(&mut Option<T>) -> R) -> R {
        // SAFETY: nobody is inside, and whoever enters meanwhile finds the gate closed. Other closers wait.
        unsafe { platform::with_mut(&self.value, act) }
    }
}

/// A user inside a gate. The drop leaves.
pub struct Inside<'g, T> {
    gate: &'g Gate<T>,
    shard: &'g Shard,
}

impl<T> Inside<'_, T> {
    /// Leaves. Returns whether the gate was closed meanwhile: whoever closed it may have seen this user inside, so
    /// [`is_over`](Gate::is_over) must be asked again.
    #[inline]
    #[must_use]
    pub fn leave(self) -> bool {
        let gate = self.gate;
        drop(self);
        !gate.open.load(Ordering::SeqCst)
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.shard.0.fetch_sub(1, Ordering::SeqCst);
        platform::order();
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this user is counted and has seen the gate open, so the value is there and nobody changes it.
        unsafe { platform::shared(&self.gate.value) }
    }
}

/// A sum to which threads add without sharing a cache line.
#[derive(Default)]
pub struct Spread {
    shards: [Shard; SHARDS],
}

impl Spread {
    /// Adds `n`. Returns how much the calling thread, and others that share its shard, have added.
    #[inline]
    pub fn add(&self, n: usize) -> usize {
        self.shards[shard() % SHARDS].0.fetch_add(n, Ordering::Relaxed).wrapping_add(n)
    }

    /// Returns the sum, which may miss additions that are made meanwhile.
    pub fn get(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.load(Ordering::Relaxed) as u64).sum()
    }
}

fn lock(mutex: &Mutex<()>) -> platform::Guard<'_> {
    platform::lock(mutex)
}

#[cfg(not(all(test, loom)))]
mod platform {
    use std::cell::Cell;
    pub(super) use std::cell::UnsafeCell;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    pub(super) use parking_lot::Mutex;
    pub(super) type Guard<'m> = parking_lot::MutexGuard<'m, ()>;

    pub(super) fn lock(mutex: &Mutex<()>) -> Guard<'_> {
        mutex.lock()
    }

    /// Orders the access before it and the one after it, which both are sequentially consistent, so that nothing is left
    /// to do.
    #[inline(always)]
    pub(super) fn order() {}

    /// Returns a number of the calling thread: the threads count from 0 in the order in which they first ask.
    #[inline]
    pub(super) fn shard() -> usize {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        const UNKNOWN: usize = usize::MAX;
        thread_local!(static MINE: Cell<usize> = const { Cell::new(UNKNOWN) });
        MINE.with(|mine| {
            if mine.get() == UNKNOWN {
                mine.set(THREADS.fetch_add(1, Ordering::Relaxed));
            }
            mine.get()
        })
    }

    /// # Safety
    /// Nobody else accesses the value.
    pub(super) unsafe fn with_mut<T, R>(cell: &UnsafeCell<Option<T>>, act: impl FnOnce(&mut Option<T>) -> R) -> R {
        // SAFETY: the caller's promise.
        act(unsafe { &mut *cell.get() })
    }

    /// # Safety
    /// The value is there, and nobody changes it while the reference lives.
    #[inline]
    pub(super) unsafe fn shared<T>(cell: &UnsafeCell<Option<T>>) -> &T {
        // SAFETY: the caller's promise.
        unsafe { (*cell.get()).as_ref().unwrap_unchecked() }
    }
}

#[cfg(all(test, loom))]
mod platform {
    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(super) type Guard<'m> = loom::sync::MutexGuard<'m, ()>;

    pub(super) fn lock(mutex: &Mutex<()>) -> Guard<'_> {
        mutex.lock().unwrap()
    }

    /// Loom has no total order of sequentially consistent accesses, only of fences.
    pub(super) fn order() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    /// All threads share a shard: then they race most.
    pub(super) fn shard() -> usize {
        0
    }

    /// # Safety
    /// Nobody else accesses the value. Loom checks that.
    pub(super) unsafe fn with_mut<T, R>(cell: &UnsafeCell<Option<T>>, act: impl FnOnce(&mut Option<T>) -> R) -> R {
        // SAFETY: the caller's promise.
        cell.with_mut(|value| act(unsafe { &mut *value }))
    }

    /// # Safety
    /// The value is there, and nobody changes it while the reference lives. Loom sees the access only, not how long the
    /// reference lives.
    pub(super) unsafe fn shared<T>(cell: &UnsafeCell<Option<T>>) -> &T {
        // SAFETY: the caller's promise.
        cell.with(|value| unsafe { (*value).as_ref().unwrap() })
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    /// A number that loom watches, which is 7 until its drop. It counts its drops.
    struct Watched(UnsafeCell<u32>, Arc<AtomicUsize>);

    // SAFETY: loom fails the test if a thread accesses the number while another one writes it.
    unsafe impl Send for Watched {}
    // SAFETY: as above.
    unsafe impl Sync for Watched {}

    impl Drop for Watched {
        fn drop(&mut self) {
            // SAFETY: loom checks that no other thread accesses it.
            self.0.with_mut(|value| unsafe { *value = 0 });
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn watched(drops: &Arc<AtomicUsize>) -> Watched {
        Watched(UnsafeCell::new(7), drops.clone())
    }

    /// Uses the value if the gate is open. Returns whether it learns that the value is over.
    fn visit(gate: &Gate<Watched>) -> bool {
        let Some(inside) = gate.enter() else { return gate.is_over() };
        // SAFETY: loom checks that nobody writes it.
        inside.0.with(|value| assert_eq!(unsafe { *value }, 7));
        inside.leave() && gate.is_over()
    }

    fn model(scenario: impl Fn() + Send + Sync + 'static) {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(3);
        bounded.check(scenario);
    }

    /// However users and the closer interleave, the value is dropped exactly once, while nobody uses it, and one of them
    /// learns of it.
    #[test]
    fn loom_the_value_ends_after_its_last_user() {
        model(|| {
            let drops = Arc::new(AtomicUsize::new(0));
            let gate = Arc::new(Gate::default());
            assert!(gate.open(watched(&drops)).is_ok());
            let users: Vec<_> = (0..2)
                .map(|_| {
                    let gate = gate.clone();
                    thread::spawn(move || visit(&gate))
                })
                .collect();
            gate.close();
            let mut over = gate.is_over();
            for user in users {
                over |= user.join().unwrap();
            }
            assert!(over, "nobody learned that the value is over");
            assert_eq!(drops.load(Ordering::SeqCst), 1);
        });
    }

    /// A gate may be opened again while a late user still knocks.
    #[test]
    fn loom_a_gate_is_opened_again() {
        model(|| {
            let drops = Arc::new(AtomicUsize::new(0));
            let gate = Arc::new(Gate::default());
            assert!(gate.open(watched(&drops)).is_ok());
            let late = gate.clone();
            let user = thread::spawn(move || visit(&late));
            gate.close();
            if gate.is_over() {
                let _ = gate.open(watched(&drops));
            }
            user.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_gate_admits_users_while_it_is_open() {
        let gate = Gate::default();
        assert!(gate.enter().is_none());
        assert!(gate.is_over(), "nobody has opened it");
        let value = Arc::new(5);
        assert!(gate.open(value.clone()).is_ok());
        assert!(gate.open(value.clone()).is_err(), "it has a value");
        let (one, other) = (gate.enter().unwrap(), gate.enter().unwrap());
        assert_eq!(**one, 5);
        assert!(!other.leave());
        gate.close();
        assert!(gate.enter().is_none());
        assert!(!gate.is_over());
        assert!(gate.open(value.clone()).is_err(), "a user is inside");
        assert!(one.leave());
        assert_eq!(Arc::strong_count(&value), 2);
        assert!(gate.is_over() && gate.is_over());
        assert_eq!(Arc::strong_count(&value), 1);
        assert!(gate.open(value).is_ok());
        assert!(gate.enter().is_some());
    }

    #[test]
    fn additions_of_all_threads_count() {
        let sum = Spread::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| (1..=100).for_each(|_| assert!(sum.add(2) >= 2)));
            }
        });
        assert_eq!(sum.get(), 2 * SHARDS as u64 * 200);
    }
}
