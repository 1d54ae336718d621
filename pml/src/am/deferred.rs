//! A function that is called later, kept without an allocation if it is small.

use std::mem::MaybeUninit;

/// The room for a function, in words.
const ROOM: usize = 24;

/// Holds a function that is called once. Dropping it drops the function.
pub(super) struct Deferred {
    room: MaybeUninit<[usize; ROOM]>,
    /// `None` while there is no function.
    kind: Option<Kind>,
}

/// How to use the function in the room.
#[derive(Clone, Copy)]
struct Kind {
    call: unsafe fn(*mut u8),
    drop: unsafe fn(*mut u8),
}

// SAFETY: only functions that may move to other threads are kept.
unsafe impl Send for Deferred {}

impl Deferred {
    /// Makes room for a function.
    #[inline]
    pub(super) fn none() -> Self {
        Deferred { room: MaybeUninit::uninit(), kind: None }
    }

    /// Keeps a function. Drops the one before.
    #[inline]
    pub(super) fn set<F: FnOnce() + Send + 'static>(&mut self, function: F) {
        if size_of::<F>() <= size_of::<[usize; ROOM]>() && align_of::<F>() <= align_of::<usize>() {
            self.keep(function);
        } else {
            let function: Box<dyn FnOnce() + Send> = Box::new(function);
            self.keep(function);
        }
    }

    /// Keeps a function that fits into the room.
    #[inline]
    fn keep<F: FnOnce() + Send + 'static>(&mut self, function: F) {
        const { assert!(size_of::<Box<dyn FnOnce()>>() <= size_of::<[usize; ROOM]>()) };
        self.clear();
        // SAFETY: the caller checked that the function fits, and the room is free.
        unsafe { self.room.as_mut_ptr().cast::<F>().write(function) };
        self.kind = Some(Kind { call: call::<F>, drop: drop_in_place::<F> });
    }

    /// Calls the function, if there is one.
    #[inline]
    pub(super) fn call(&mut self) {
        if let Some(kind) = self.kind.take() {
            // SAFETY: the room holds the function of this kind, which is not used again.
            unsafe { (kind.call)(self.room.as_mut_ptr().cast()) };
        }
    }

    fn clear(&mut self) {
        if let Some(kind) = self.kind.take() {
            // SAFETY: as in `call`.
            unsafe { (kind.drop)(self.room.as_mut_ptr().cast()) };
        }
    }
}

impl Drop for Deferred {
    #[inline]
    fn drop(&mut self) {
        self.clear();
    }
}

/// # Safety
/// `at` holds an `F`, which is not used again.
unsafe fn call<F: FnOnce()>(at: *mut u8) {
    // SAFETY: the caller's promise.
    let function = unsafe { at.cast::<F>().read() };
    function();
}

/// # Safety
/// As [`call`].
unsafe fn drop_in_place<F>(at: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<F>().drop_in_place() };
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Checks that a function of this size is called once, and that what it owns is dropped once.
    fn check<const WORDS: usize>() {
        let (owned, calls) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
        let make = |by: usize| {
            let (owned, calls, words) = (owned.clone(), calls.clone(), [by; WORDS]);
            move || {
                calls.fetch_add(words.first().copied().unwrap_or(by), Ordering::Relaxed);
                drop(owned);
            }
        };
        let mut deferred = Deferred::none();
        deferred.call();
        deferred.set(make(1));
        deferred.call();
        deferred.call();
        assert_eq!((calls.load(Ordering::Relaxed), Arc::strong_count(&owned)), (1, 1));
        deferred.set(make(10));
        deferred.set(make(100));
        assert_eq!((calls.load(Ordering::Relaxed), Arc::strong_count(&owned)), (1, 2));
        drop(deferred);
        assert_eq!((calls.load(Ordering::Relaxed), Arc::strong_count(&owned)), (1, 1));
    }

    #[test]
    fn functions_of_every_size_are_called_once_and_dropped_once() {
        check::<0>();
        check::<21>();
        check::<22>();
        check::<100>();
    }

    #[test]
    fn a_panic_of_the_function_drops_it_once() {
        let owned = Arc::new(());
        let kept = owned.clone();
        let mut deferred = Deferred::none();
        deferred.set(move || {
            let _kept = kept;
            panic!("this panic is a part of the test");
        });
        assert!(catch_unwind(AssertUnwindSafe(|| deferred.call())).is_err());
        drop(deferred);
        assert_eq!(Arc::strong_count(&owned), 1);
    }
}
