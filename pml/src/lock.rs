//! Locks that cost nothing where calls never overlap.
//!
//! A lock is made *real* or *elided*, once and for all. An elided one only notes that it is held, which catches an
//! engine that locks twice; that nobody else comes meanwhile is what the caller of
//! [`Engine::new_serialized`](crate::Engine::new_serialized) has promised.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::lock_api::{RawMutex as _, RawRwLock as _};
use parking_lot::{RawMutex, RawRwLock};

/// Whether locks exclude other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locking {
    Real,
    /// Only within an engine whose host serialises its calls.
    Elided,
}

/// A mutual exclusion lock around `T`.
pub(crate) struct Lock<T> {
    raw: RawMutex,
    locking: Locking,
    held: UnsafeCell<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: a real lock excludes other threads; an elided one exists only in an engine whose host promised that calls do
// not overlap and that each happens before the next.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: owning the lock is owning the value.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(locking: Locking, value: T) -> Self {
        Lock { raw: RawMutex::INIT, locking, held: UnsafeCell::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        match self.locking {
            Locking::Real => self.raw.lock(),
            Locking::Elided => {
                // SAFETY: calls do not overlap, so nobody else looks at `held` now.
                let held = unsafe { &mut *self.held.get() };
                assert!(!*held, "a lock is taken twice: calls into a serialized engine overlap");
                *held = true;
            }
        }
        Guard { lock: self }
    }

    /// None if somebody holds it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.locking {
            // A guard that is made and dropped would unlock what somebody else holds.
            Locking::Real => self.raw.try_lock().then(|| Guard { lock: self }),
            Locking::Elided => {
                // SAFETY: as in `lock`.
                let held = unsafe { &mut *self.held.get() };
                (!std::mem::replace(held, true)).then(|| Guard { lock: self })
            }
        }
    }
}

/// Access to what a lock guards.
pub(crate) struct Guard<'l, T> {
    lock: &'l Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is exclusive.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is exclusive.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match self.lock.locking {
            // SAFETY: this guard holds the lock.
            Locking::Real => unsafe { self.lock.raw.unlock() },
            // SAFETY: as in `lock`.
            Locking::Elided => unsafe { *self.lock.held.get() = false },
        }
    }
}

/// A lock around `T` that many may read at once.
pub(crate) struct Shared<T> {
    raw: RawRwLock,
    locking: Locking,
    value: UnsafeCell<T>,
}

// SAFETY: as for `Lock`; readers share the value.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}
// SAFETY: owning the lock is owning the value.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) const fn new(locking: Locking, value: T) -> Self {
        Shared { raw: RawRwLock::INIT, locking, value: UnsafeCell::new(value) }
    }

    /// Runs `act` with the value, as one of many. It must not come here again.
    #[inline]
    pub(crate) fn read<R>(&self, act: impl FnOnce(&T) -> R) -> R {
        let _unlock = match self.locking {
            Locking::Real => {
                self.raw.lock_shared();
                // SAFETY: locked on the line before.
                Some(OnDrop(|| unsafe { self.raw.unlock_shared() }))
            }
            Locking::Elided => None,
        };
        // SAFETY: no writer is inside; an elided lock's callers do not overlap, and `act` does not come here again.
        act(unsafe { &*self.value.get() })
    }

    /// Runs `act` with the value, alone. It must not come here again.
    pub(crate) fn write<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        let _unlock = match self.locking {
            Locking::Real => {
                self.raw.lock_exclusive();
                // SAFETY: locked on the line before.
                Some(OnDrop(|| unsafe { self.raw.unlock_exclusive() }))
            }
            Locking::Elided => None,
        };
        // SAFETY: nobody else is inside, as in `read`.
        act(unsafe { &mut *self.value.get() })
    }
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A sum that many threads add to.
pub(crate) struct Sum {
    value: AtomicU64,
    locking: Locking,
}

impl Sum {
    pub(crate) const fn new(locking: Locking) -> Self {
        Sum { value: AtomicU64::new(0), locking }
    }

    /// Adds and returns the new sum.
    #[inline]
    pub(crate) fn add(&self, n: u64) -> u64 {
        match self.locking {
            Locking::Real => self.value.fetch_add(n, Ordering::Relaxed).wrapping_add(n),
            Locking::Elided => {
                let sum = self.value.load(Ordering::Relaxed).wrapping_add(n);
                self.value.store(sum, Ordering::Relaxed);
                sum
            }
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn sub(&self, n: u64) {
        self.add(n.wrapping_neg());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_turned_away_leaves_the_lock_as_it_is() {
        for locking in [Locking::Real, Locking::Elided] {
            let lock = Lock::new(locking, 0);
            let mut held = lock.try_lock().expect("nobody holds it");
            for _ in 0..3 {
                assert!(lock.try_lock().is_none(), "{locking:?}");
            }
            *held += 1;
            drop(held);
            assert_eq!(lock.try_lock().as_deref(), Some(&1), "{locking:?}");
        }
    }
}
