//! Locks that cost very little in a program with one calling thread.
//!
//! A lock is *real* or *elided*. A real lock is biased towards the first thread that takes it (see
//! `bias`). An elided lock excludes no thread: its maker promises that calls never overlap. Overlapping calls cause a
//! panic. A process that starts a thread of its own later ends elision first ([`end_elision`]): from then on all locks
//! are real.

mod bias;
mod elision;
#[cfg(all(test, loom))]
#[path = "model.rs"]
mod platform;
#[cfg(not(all(test, loom)))]
mod platform;
mod shared;
mod sum;

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bias::{Bias, Passage};
use platform::RawMutex;

pub use elision::end_elision;
pub use shared::Shared;
pub use sum::Sum;

#[cfg(not(all(test, loom)))]
pub(crate) use platform::this_thread;

/// Selects whether locks exclude other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locking {
    elided: bool,
}

impl Locking {
    /// Locks exclude other threads.
    pub const REAL: Locking = Locking { elided: false };

    /// Locks exclude no threads.
    ///
    /// # Safety
    /// Two threads must never use the locked value at the same time, and each use must happen before the next.
    pub const unsafe fn elided() -> Locking {
        Locking { elided: true }
    }

    /// Returns whether such locks exclude other threads now.
    pub fn is_real(self) -> bool {
        !self.elided || elision::has_ended()
    }
}

/// A mutual exclusion lock around `T`.
pub struct Lock<T> {
    bias: Bias,
    raw: RawMutex,
    value: UnsafeCell<T>,
}

// SAFETY: a real lock excludes other threads. For an elided lock, the maker promised that uses do not overlap.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the owner of the lock owns the value.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    /// Makes a free lock.
    pub fn new(locking: Locking, value: T) -> Self {
        Lock { bias: Bias::new(locking), raw: RawMutex::new(), value: UnsafeCell::new(value) }
    }

    /// Waits until the lock is free and takes it.
    ///
    /// # Panics
    /// Panics if this thread holds the lock and no other thread has ever taken it.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.bias.pass() {
            Passage::Inside => Guard::new(self, true),
            Passage::Again => taken_twice(),
            Passage::Refused => self.lock_raw(),
        }
    }

    #[inline(never)]
    fn lock_raw(&self) -> Guard<'_, T> {
        self.raw.lock();
        self.bias.revoke_and_wait();
        Guard::new(self, false)
    }

    /// Takes the lock if it is free. Returns `None` if any thread holds it, including this one.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.bias.pass() {
            Passage::Inside => Some(Guard::new(self, true)),
            Passage::Again => None,
            Passage::Refused => self.try_lock_raw(),
        }
    }

    #[inline(never)]
    fn try_lock_raw(&self) -> Option<Guard<'_, T>> {
        if !self.raw.try_lock() {
            return None;
        }
        // Make the guard in any case: it unlocks again if the owner is still inside.
        let guard = Guard::new(self, false);
        self.bias.revoke().then_some(guard)
    }

    /// # Safety
    /// The calling thread holds `raw`.
    #[inline(never)]
    unsafe fn unlock_raw(&self) {
        // SAFETY: the caller holds it.
        unsafe { self.raw.unlock() };
    }
}

/// Gives access to the locked value.
///
/// A guard stays with the thread that took the lock, because the owner of a biased lock leaves it by a plain store:
///
/// ```compile_fail,E0277
/// # use cableway_base::lock::{Lock, Locking};
/// let lock = Lock::new(Locking::REAL, 7);
/// let guard = lock.lock();
/// std::thread::scope(|scope| {
///     scope.spawn(move || drop(guard));
/// });
/// ```
///
/// Threads may share a guard only where they may share the value:
///
/// ```
/// # use cableway_base::lock::{Lock, Locking};
/// let lock = Lock::new(Locking::REAL, 7);
/// let guard = lock.lock();
/// std::thread::scope(|scope| {
///     scope.spawn(|| assert_eq!(*guard, 7));
/// });
/// ```
///
/// ```compile_fail,E0277
/// # use cableway_base::lock::{Lock, Locking};
/// let lock = Lock::new(Locking::REAL, std::cell::Cell::new(7));
/// let guard = lock.lock();
/// std::thread::scope(|scope| {
///     scope.spawn(|| assert_eq!(guard.get(), 7));
/// });
/// ```
pub struct Guard<'l, T> {
    lock: &'l Lock<T>,
    by_owner: bool,
    /// Removes `Send` and `Sync`; the next impl restores `Sync`.
    _stays: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives only shared access to the value.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<'l, T> Guard<'l, T> {
    #[inline(always)]
    fn new(lock: &'l Lock<T>, by_owner: bool) -> Self {
        Guard { lock, by_owner, _stays: PhantomData }
    }
}

#[cold]
fn taken_twice() -> ! {
    panic!("a lock is taken twice: by one thread, or by calls that must not overlap");
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

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
