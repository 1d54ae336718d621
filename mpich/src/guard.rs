//! Catches panics in the functions that C calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a function has panicked. The engine is not used after that.
static POISONED: AtomicBool = AtomicBool::new(false);

/// Returns whether a function of this library has panicked.
pub(crate) fn is_poisoned() -> bool {
    POISONED.load(Ordering::Acquire)
}

/// Runs the body of a boundary function. After a panic, returns `otherwise`.
#[inline]
pub(crate) fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    // Nothing observes broken invariants, because the engine is not used again.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        POISONED.store(true, Ordering::Release);
        otherwise
    })
}
