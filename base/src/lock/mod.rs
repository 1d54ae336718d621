//! Locks that cost next to nothing to a program that calls from one thread.
//!
//! A lock is made *real* or *elided*, once and for all. A real one is biased towards the first thread that takes it (see
//! `bias`). An elided one belongs to whoever comes, which is right only where calls never overlap, as the maker
//! promised; that it is taken twice at once is noticed.

mod bias;

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::lock_api::{RawMutex as _, RawRwLock as _};
use parking_lot::{RawMutex, RawRwLock};

use bias::{Bias, Owner, Passage};

#[cfg(not(all(test, loom)))]
pub(crate) use bias::this_thread;

/// Whether locks exclude other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locking {
    elided: bool,
}

impl Locking {
    /// They do.
    pub const REAL: Locking = Locking { elided: false };

    /// They do not.
    ///
    /// # Safety
    /// Whatever is locked so is never used by two threads at the same time, and each use happens before the next.
    pub const unsafe fn elided() -> Locking {
        Locking { elided: true }
    }
}

/// A mutual exclusion lock around `T`.
pub struct Lock<T> {
    bias: Bias,
    raw: RawMutex,
    value: UnsafeCell<T>,
}

// SAFETY: a real lock excludes other threads; of an elided one the maker promised that uses do not overlap.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: owning the lock is owning the value.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    /// A free one.
    pub const fn new(locking: Locking, value: T) -> Self {
        Lock { bias: Bias::new(locking), raw: RawMutex::INIT, value: UnsafeCell::new(value) }
    }

    /// Waits until nobody holds it.
    ///
    /// # Panics
    /// This thread holds it, and no other has come yet.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.bias.pass() {
            Passage::Inside => Guard { lock: self, by_owner: true },
            Passage::Again => taken_twice(),
            Passage::Refused => self.lock_raw(),
        }
    }

    #[inline(never)]
    fn lock_raw(&self) -> Guard<'_, T> {
        self.raw.lock();
        self.bias.revoke_and_wait();
        Guard { lock: self, by_owner: false }
    }

    /// None if somebody holds it, this thread included.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.bias.pass() {
            Passage::Inside => Some(Guard { lock: self, by_owner: true }),
            Passage::Again => None,
            Passage::Refused => self.try_lock_raw(),
        }
    }

    #[inline(never)]
    fn try_lock_raw(&self) -> Option<Guard<'_, T>> {
        if !self.raw.try_lock() {
            return None;
        }
        // Locked, so that it is made in any case: it is dropped again if the owner is inside for a last time.
        let guard = Guard { lock: self, by_owner: false };
        self.bias.revoke().then_some(guard)
    }

    /// # Safety
    /// It was locked, by whom the bias did not let in.
    #[inline(never)]
    unsafe fn unlock_raw(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.raw.unlock() };
    }
}

/// Access to what a lock guards.
pub struct Guard<'l, T> {
    lock: &'l Lock<T>,
    by_owner: bool,
}

#[cold]
fn taken_twice() -> ! {
    panic!("a lock is taken twice: by one thread, or by calls that were not to overlap");
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard is exclusive.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is exclusive.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.by_owner {
            self.lock.bias.leave();
        } else {
            // SAFETY: this guard holds the lock.
            unsafe { self.lock.unlock_raw() };
        }
    }
}

/// A lock around `T` that many may read at once.
pub struct Shared<T> {
    bias: Bias,
    raw: RawRwLock,
    value: UnsafeCell<T>,
}

// SAFETY: as for `Lock`; readers share the value.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}
// SAFETY: owning the lock is owning the value.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// A free one.
    pub const fn new(locking: Locking, value: T) -> Self {
        Shared { bias: Bias::new(locking), raw: RawRwLock::INIT, value: UnsafeCell::new(value) }
    }

    /// Runs `act` with the value, as one of many. It must not come here again.
    #[inline(always)]
    pub fn read<R>(&self, act: impl FnOnce(&T) -> R) -> R {
        let by_owner = self.pass();
        if !by_owner {
            self.lock_shared();
        }
        let _leave = OnDrop(|| {
            if by_owner {
                self.bias.leave();
            } else {
                // SAFETY: locked above.
                unsafe { self.unlock_shared() };
            }
        });
        // SAFETY: no writer is inside, and `act` does not come here again.
        act(unsafe { &*self.value.get() })
    }

    /// Runs `act` with the value, alone. It must not come here again.
    pub fn write<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        let by_owner = self.pass();
        if !by_owner {
            self.raw.lock_exclusive();
            self.bias.revoke_and_wait();
        }
        let _leave = OnDrop(|| {
            if by_owner {
                self.bias.leave();
            } else {
                // SAFETY: locked above.
                unsafe { self.raw.unlock_exclusive() };
            }
        });
        // SAFETY: nobody else is inside, as in `read`.
        act(unsafe { &mut *self.value.get() })
    }

    #[inline(never)]
    fn lock_shared(&self) {
        self.raw.lock_shared();
        self.bias.revoke_and_wait();
    }

    /// # Safety
    /// After `lock_shared`.
    #[inline(never)]
    unsafe fn unlock_shared(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.raw.unlock_shared() };
    }

    /// Whether this thread is inside as the owner; otherwise it is to take the ordinary lock.
    #[inline(always)]
    fn pass(&self) -> bool {
        match self.bias.pass() {
            Passage::Inside => true,
            Passage::Again => taken_twice(),
            Passage::Refused => false,
        }
    }
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    #[inline(always)]
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A sum that many threads add to, the first of them without waiting for the others.
pub struct Sum {
    /// What its owner added, and all if calls never overlap.
    owners: AtomicU64,
    others: AtomicU64,
    owner: Owner,
}

impl Sum {
    /// Nothing.
    pub const fn new(locking: Locking) -> Self {
        Sum { owners: AtomicU64::new(0), others: AtomicU64::new(0), owner: Owner::new(locking) }
    }

    /// Adds and returns the new sum. Where threads add at the same time, each may miss what the others add.
    #[inline(always)]
    pub fn add(&self, n: u64) -> u64 {
        if self.owner.is_this_thread() {
            self.owners.store(self.owners.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        } else {
            self.others.fetch_add(n, Ordering::Relaxed);
        }
        self.get()
    }

    /// The sum.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.owners.load(Ordering::Relaxed).wrapping_add(self.others.load(Ordering::Relaxed))
    }

    /// Takes away.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.add(n.wrapping_neg());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads take a lock in turn and at once, again and again, with and without an owner among them.
    #[test]
    fn nobody_comes_in_beside_the_owner() {
        for round in 0..300 {
            let (lock, shared) = (Lock::new(Locking::REAL, [0_u64; 2]), Shared::new(Locking::REAL, [0_u64; 2]));
            let add = |times: u64| {
                for _ in 0..times {
                    let mut value = lock.lock();
                    assert_eq!(value[0], value[1]);
                    value[0] += 1;
                    value[1] += 1;
                    drop(value);
                    shared.read(|value| assert_eq!(value[0], value[1]));
                    shared.write(|value| {
                        value[0] += 1;
                        value[1] += 1;
                    });
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| add(500 + round));
                scope.spawn(|| add(100));
                scope.spawn(|| {
                    let mut left = 50;
                    while left != 0 {
                        if let Some(mut value) = lock.try_lock() {
                            assert_eq!(value[0], value[1]);
                            value[0] += 1;
                            value[1] += 1;
                            left -= 1;
                        }
                    }
                });
            });
            assert_eq!(*lock.lock(), [650 + round; 2]);
            shared.read(|value| assert_eq!(*value, [600 + round; 2]));
        }
    }

    #[test]
    fn an_owner_inside_is_waited_for_and_not_waited_for() {
        let lock = Lock::new(Locking::REAL, 0);
        let mut inside = lock.lock();
        assert!(lock.try_lock().is_none(), "this thread has it");
        let tried = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(lock.try_lock().is_none(), "the owner has it");
                tried.wait();
                *lock.lock()
            });
            tried.wait();
            *inside = 7;
            drop(inside);
            assert_eq!(other.join().unwrap(), 7);
        });
        assert_eq!(*lock.lock(), 7);
    }

    #[test]
    fn who_is_turned_away_leaves_the_lock_as_it_is() {
        // SAFETY: one thread.
        for locking in [Locking::REAL, unsafe { Locking::elided() }] {
            let lock = Lock::new(locking, 0);
            let mut held = lock.try_lock().expect("nobody holds it");
            for _ in 0..3 {
                assert!(lock.try_lock().is_none(), "{locking:?}");
            }
            *held += 1;
            drop(held);
            assert_eq!(lock.try_lock().as_deref(), Some(&1), "{locking:?}");
        }
        let lock = Lock::new(Locking::REAL, 0);
        let held = std::thread::scope(|scope| scope.spawn(|| drop(lock.lock())).join().map(|()| lock.lock())).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|_| assert!(lock.try_lock().is_none(), "held, and no longer biased")));
        });
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_panic_inside_leaves() {
        let shared = Shared::new(Locking::REAL, 1);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            shared.write(|_| std::panic::resume_unwind(Box::new(())));
        }));
        assert!(result.is_err());
        assert_eq!(shared.read(|value| *value), 1);
    }

    #[test]
    #[should_panic(expected = "taken twice")]
    fn a_lock_taken_twice_by_one_thread_is_told() {
        // SAFETY: one thread.
        let lock = Lock::new(unsafe { Locking::elided() }, ());
        let _inside = lock.lock();
        let _again = lock.lock();
    }

    #[test]
    fn nothing_added_is_lost() {
        let sum = Sum::new(Locking::REAL);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    (0..10_000).for_each(|_| {
                        sum.add(1);
                    })
                });
            }
        });
        sum.sub(1);
        assert_eq!(sum.get(), 29_999);
    }
}
