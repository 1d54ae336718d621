//! Sends.

use std::ffi::c_int;

use cableway_common_cuda::Location;
use cableway_pml::{Buffer, Communicator, Engine, Outcome, Request, SendMode, Short};

use super::request::{refused, run};
use crate::boundary::{BufferDescription, Code, Place};
use crate::buffer::buffer_of;
use crate::guard::{guarded, guarded_start};
use crate::state;

/// # Safety
/// A live communicator, a valid buffer; somewhere to write the place to.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send_now(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    place: *mut Place,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise.
        match unsafe { engine.send_now(&*communicator, dest, tag, buffer_of(buffer)) } {
            // SAFETY: the caller's promise.
            Ok(tried) => unsafe { report(tried, place) },
            Err(error) => refused(&error),
        }
    })
}

/// What a call that tries to send at once answers.
///
/// # Safety
/// `place` can be written.
#[inline]
pub(super) unsafe fn report(tried: Short, place: *mut Place) -> c_int {
    match tried {
        Short::Left => 1,
        Short::Not(location) => {
            // SAFETY: the caller's promise.
            unsafe { place.write(location.into()) };
            0
        }
    }
}

/// # Safety
/// A live communicator; buffer and request stay valid until the request completes. The place is null, or was filled in
/// for this buffer, and the program has not run since.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_isend(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    place: *const Place,
    mode: c_int,
    request: *mut Request,
) -> c_int {
    let start = || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise; the request is not active before this.
        let outcome = unsafe {
            let (communicator, buffer, mode) = (&*communicator, buffer_of(buffer), mode_of(mode));
            let location = place.as_ref().and_then(|place| Option::from(*place));
            engine.isend_after(communicator, dest, tag, (buffer, location), &mode, request)
        };
        match outcome {
            Ok(Outcome::Complete) => 1,
            Ok(Outcome::Started) => 0,
            Err(error) => refused(&error),
        }
    };
    // SAFETY: the caller's promise.
    unsafe { guarded_start(request, start) }
}

/// # Safety
/// A live communicator, a valid buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    mode: c_int,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise.
        unsafe { send_and_wait(engine, &*communicator, (dest, tag), (buffer_of(buffer), None), &mode_of(mode)) }
    })
}

/// With the buffer's location, if the short way has found it out.
///
/// # Safety
/// The buffer is valid for reads; the program has not run since its location was found.
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
    result.map_or_else(|error| refused(&error), |_| Code::Ok as c_int)
}

fn mode_of(mode: c_int) -> SendMode {
    match mode {
        1 => SendMode::Synchronous,
        2 => SendMode::Ready,
        _ => SendMode::Standard,
    }
}
