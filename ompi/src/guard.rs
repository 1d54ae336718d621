//! Catches panics in the functions that C calls.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cableway_pml::Request;

use crate::boundary::Code;
use crate::fault::{self, Point};
use crate::poison;

/// Runs the body of a boundary function. After a panic, poisons the engine and returns `otherwise`.
#[inline]
pub(crate) fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    // The engine is never used again after a panic, so nothing observes broken invariants.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        // SAFETY: null.
        unsafe { poison::poison(std::ptr::null()) };
        otherwise
    })
}

/// Runs the body of a function that starts an operation on `request`, as [`guarded`] does. After a panic, returns an
/// error as if the operation had not started.
///
/// # Safety
/// `request` is one of the shim's requests.
#[inline]
pub(crate) unsafe fn guarded_start(request: *const Request, body: impl FnOnce() -> c_int) -> c_int {
    let body = || {
        let code = body();
        fault::point(Point::Start);
        code
    };
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        // SAFETY: the caller's promise.
        unsafe { poison::poison(request) };
        Code::Internal.negative()
    })
}

/// Runs the body of a function that only reads. A panic does not poison the engine. MPI_T calls such functions from any
/// thread at any time.
#[inline]
pub(crate) fn guarded_read<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}
