//! A lock with many readers or one writer.

use std::cell::UnsafeCell;

use super::bias::{Bias, Passage};
use super::platform::RawRwLock;
use super::{Locking, taken_twice};

/// A lock around `T` with many readers or one writer.
pub struct Shared<T> {
    bias: Bias,
    raw: RawRwLock,
    value: UnsafeCell<T>,
}

// SAFETY: as for `Lock`. Readers share the value.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}
// SAFETY: the owner of the lock owns the value.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// Makes a free lock.
    pub fn new(locking: Locking, value: T) -> Self {
        Shared { bias: Bias::new(locking), raw: RawRwLock::new(), value: UnsafeCell::new(value) }
    }

    /// Runs `act` with the value, beside other readers. `act` must not use this lock.
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
        // SAFETY: no writer is inside, and `act` does not use this lock.
        act(unsafe { &*self.value.get() })
    }

    /// Runs `act` with the value, alone. `act` must not use this lock.
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
        // SAFETY: no other thread is inside, and `act` does not use this lock.
        act(unsafe { &mut *self.value.get() })
    }

    #[inline(never)]
    fn lock_shared(&self) {
        self.raw.lock_shared();
        self.bias.revoke_and_wait();
    }

    /// # Safety
    /// The calling thread has called `lock_shared`.
    #[inline(never)]
    unsafe fn unlock_shared(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.raw.unlock_shared() };
    }

    /// Returns whether this thread is inside as the owner. Otherwise it must take the ordinary lock.
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
