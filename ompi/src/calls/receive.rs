//! Receives, of what comes and of messages that a probe took.

use std::ffi::c_int;

use cableway_pml::{Communicator, Message, Outcome, Request, Status};

use super::request::{refused, run};
use crate::boundary::{BufferDescription, Code, StatusReport};
use crate::buffer::buffer_of;
use crate::guard::{guarded, guarded_start};
use crate::state;

/// # Safety
/// A live communicator; buffer and request stay valid until the request completes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_irecv(
    communicator: *const Communicator,
    source: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    request: *mut Request,
) -> c_int {
    let start = || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise; the request is not active before this.
        let started = unsafe { engine.irecv(&*communicator, source, tag, buffer_of(buffer), request) };
        started.map_or_else(|error| refused(&error), |()| 0)
    };
    // SAFETY: the caller's promise.
    unsafe { guarded_start(request, start) }
}

/// # Safety
/// A live communicator, a valid buffer and status.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_recv(
    communicator: *const Communicator,
    source: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    status: *mut StatusReport,
) {
    // SAFETY: the caller's promise, here and below.
    unsafe { *status = StatusReport::new(Status::EMPTY, Code::Internal) };
    guarded((), || {
        let Some(engine) = state::engine() else { return };
        // SAFETY: the request lives until it is complete.
        let result = run(engine, |request| unsafe {
            engine.irecv(&*communicator, source, tag, buffer_of(buffer), request).map(|()| Outcome::Started)
        });
        // SAFETY: as above.
        unsafe { *status = StatusReport::of(result) };
    });
}

/// # Safety
/// A message from `cableway_iprobe`, once; buffer and request stay valid until the request completes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_imrecv(
    message: *mut Message,
    buffer: *const BufferDescription,
    request: *mut Request,
) -> c_int {
    let start = || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise.
        unsafe { engine.imrecv(*Box::from_raw(message), buffer_of(buffer), request) };
        0
    };
    // SAFETY: the caller's promise.
    unsafe { guarded_start(request, start) }
}

/// # Safety
/// A message from `cableway_iprobe`, once; a valid buffer and status.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mrecv(
    message: *mut Message,
    buffer: *const BufferDescription,
    status: *mut StatusReport,
) {
    // SAFETY: the caller's promise, here and below.
    unsafe { *status = StatusReport::new(Status::EMPTY, Code::Internal) };
    guarded((), || {
        let Some(engine) = state::engine() else { return };
        // SAFETY: the request lives until it is complete.
        let result = run(engine, |request| unsafe {
            engine.imrecv(*Box::from_raw(message), buffer_of(buffer), request);
            Ok(Outcome::Started)
        });
        // SAFETY: as above.
        unsafe { *status = StatusReport::of(result) };
    });
}
