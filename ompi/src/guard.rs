//! Stops panics at the functions that C calls.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cableway_pml::Request;

use crate::boundary::Code;
use crate::fault::{self, Point};
use crate::poison;

/// Runs the body of a boundary function. A panic poisons the engine and yields `otherwise`.
#[inline]
pub(crate) fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    // The engine is never used again after a panic, so that broken invariants cannot be observed.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        // SAFETY: null.
        unsafe { poison::poison(std::ptr::null()) };
        otherwise
    })
}

/// As [`guarded`], of a call that starts an operation on `request`. After a panic the operation has not begun.
///
/// # Safety
/// `request` is one of the shim's.
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
        Code::Internal.refused()
    })
}

/// As [`guarded`], of a function that only reads, so that a panic breaks nothing. MPI_T calls those from any thread, at any
/// time.
#[inline]
pub(crate) fn contained<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}
