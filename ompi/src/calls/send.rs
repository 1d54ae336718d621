//! Sends.

use std::ffi::c_int;

use cableway_pml::{Communicator, Outcome, Request, SendMode, Status};

use super::request::{refusal, wait};
use crate::boundary::{BufferDescription, Code, guarded};
use crate::buffer::buffer_of;
use crate::state;

/// # Safety
/// A live communicator, a valid buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send_now(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise.
        match unsafe { engine.send_now(&*communicator, dest, tag, buffer_of(buffer)) } {
            Ok(sent) => c_int::from(sent),
            Err(error) => refusal(&error).refused(),
        }
    })
}

/// # Safety
/// A live communicator; buffer and request stay valid until the request completes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_isend(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    mode: c_int,
    request: *mut Request,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise; the request is not active before this.
        let outcome = unsafe { engine.isend(&*communicator, dest, tag, buffer_of(buffer), &mode_of(mode), request) };
        match outcome {
            Ok(Outcome::Complete) => 1,
            Ok(Outcome::Started) => 0,
            Err(error) => refusal(&error).refused(),
        }
    })
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
        let request = Request::new();
        // SAFETY: the caller's promise; the request lives until it is complete.
        let outcome =
            unsafe { engine.isend(&*communicator, dest, tag, buffer_of(buffer), &mode_of(mode), &raw const request) };
        let result = match outcome {
            Ok(Outcome::Complete) => Ok(Status::EMPTY),
            Ok(Outcome::Started) => wait(engine, &request),
            Err(error) => Err(error),
        };
        result.map_or_else(|error| refusal(&error).refused(), |_| 0)
    })
}

fn mode_of(mode: c_int) -> SendMode {
    match mode {
        1 => SendMode::Synchronous,
        2 => SendMode::Ready,
        _ => SendMode::Standard,
    }
}
