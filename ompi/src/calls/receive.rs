//! Receives, including those of matched messages.

use std::ffi::c_int;

use cableway_pml::{Communicator, Message, Outcome, Request, Status};

use super::request::{report_error, run};
use crate::boundary::{BufferDescription, Code, StatusReport};
use crate::buffer::buffer_of;
use crate::guard::{guarded, guarded_start};
use crate::state;

/// # Safety
/// The communicator is live; buffer and request stay valid until the request completes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_irecv(
    communicator: *const Communicator,
    source: c_int,
    tag: c_int,
    buffer: *const BufferDescription,
    request: *mut Request,
) -> c_int {
    let start = || {
        let Some(engine) = state::engine() else { return Code::Internal.negative() };
        // SAFETY: the caller's promise; the request is not active before this.
        let started = unsafe { engine.irecv(&*communicator, source, tag, buffer_of(buffer), request) };
        started.map_or_else(|error| report_error(&error), |()| 0)
    };
    // SAFETY: the caller's promise.
    unsafe { guarded_start(request, start) }
}

/// # Safety
/// The communicator is live; buffer and status are valid.
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
/// `message` is from `cableway_iprobe` and received only once. Buffer and request stay valid until the request
/// completes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_imrecv(
    message: *mut Message,
    buffer: *const BufferDescription,
    request: *mut Request,
) -> c_int {
    let start = || {
        let Some(engine) = state::engine() else { return Code::Internal.negative() };
        // SAFETY: the caller's promise.
        unsafe { engine.imrecv(*Box::from_raw(message), buffer_of(buffer), request) };
        0
    };
    // SAFETY: the caller's promise.
    unsafe { guarded_start(request, start) }
}

/// # Safety
/// `message` is from `cableway_iprobe` and received only once; buffer and status are valid.
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
