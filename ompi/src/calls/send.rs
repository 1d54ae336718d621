//! Sends.

use std::ffi::c_int;

use cableway_common_cuda::Location;
use cableway_pml::{Buffer, Communicator, Engine, FastPath, Outcome, Request, SendMode};

use super::request::{report_error, run};
use crate::boundary::{BufferDescription, Code, LocationDescription};
use crate::buffer::buffer_of;
use crate::guard::{guarded, guarded_start};
use crate::state;

/// # Safety
/// The communicator is live; the buffer is valid for reads, and `location` for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send_now(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    location: *mut LocationDescription,
) -> c_int {
    guarded(Code::Internal.negative(), || {
        let Some(engine) = state::engine() else { return Code::Internal.negative() };
        // SAFETY: the caller's promise.
        match unsafe { engine.send_now(&*communicator, dest, tag, buffer_of(buffer)) } {
            // SAFETY: the caller's promise.
            Ok(outcome) => unsafe { report(outcome, location) },
            Err(error) => report_error(&error),
        }
    })
}

/// Returns the result of a call that tries to send at once, and writes the buffer's location if it could not.
///
/// # Safety
/// `out` is valid for writes.
#[inline]
pub(super) unsafe fn report(outcome: FastPath, out: *mut LocationDescription) -> c_int {
    match outcome {
        FastPath::Sent => 1,
        FastPath::NotTaken(location) => {
            // SAFETY: the caller's promise.
            unsafe { out.write(location.into()) };
            0
        }
    }
}

/// # Safety
/// The communicator is live; buffer and request stay valid until the request completes. `location` is null, or was
/// written for this buffer in the same MPI call.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_isend(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    location: *const LocationDescription,
    mode: c_int,
    request: *mut Request,
) -> c_int {
    let start = || {
        let Some(engine) = state::engine() else { return Code::Internal.negative() };
        // SAFETY: the caller's promise; the request is not active before this.
        let outcome = unsafe {
            let (communicator, buffer, mode) = (&*communicator, buffer_of(buffer), mode_of(mode));
            let location = location.as_ref().and_then(|location| Option::from(*location));
            engine.isend_after(communicator, dest, tag, (buffer, location), &mode, request)
        };
        match outcome {
            Ok(Outcome::Complete) => 1,
            Ok(Outcome::Started) => 0,
            Err(error) => report_error(&error),
        }
    };
    // SAFETY: the caller's promise.
    unsafe { guarded_start(request, start) }
}

/// # Safety
/// The communicator is live, and the buffer is valid for reads.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    mode: c_int,
) -> c_int {
    guarded(Code::Internal.negative(), || {
        let Some(engine) = state::engine() else { return Code::Internal.negative() };
        // SAFETY: the caller's promise.
        unsafe { send_and_wait(engine, &*communicator, (dest, tag), (buffer_of(buffer), None), &mode_of(mode)) }
    })
}

/// Sends and waits. `location` is the buffer's location if an attempt to send at once has found it out.
///
/// # Safety
/// The buffer is valid for reads, and its location was found in the same MPI call.
#[inline(never)]
pub(super) unsafe fn send_and_wait(
    engine: &Engine,
    communicator: &Communicator,
    (dest, tag): (c_int, c_int),
    (buffer, location): (Buffer<'_>, Option<Location>),
    mode: &SendMode,
) -> c_int {
    // SAFETY: the caller's promise; the request lives until it is complete.
    let result = run(engine, |request| unsafe {
        engine.isend_after(communicator, dest, tag, (buffer, location), mode, request)
    });
    result.map_or_else(|error| report_error(&error), |_| Code::Ok as c_int)
}

fn mode_of(mode: c_int) -> SendMode {
    match mode {
        1 => SendMode::Synchronous,
        2 => SendMode::Ready,
        _ => SendMode::Standard,
    }
}
