//! Sends and receives of plain bytes, in the standard mode: the calls of `shim/common/shortcut.c`. What cannot be done at
//! once is done out of line, so that the way that nearly every message goes stays short.

use std::ffi::c_int;

use cableway_pml::{Buffer, Communicator, Engine, Outcome, Request, SendMode, Short, Status};

use super::request::{refused, run, wait_for};
use super::send::{report, send_and_wait};
use crate::boundary::{Code, Place, StatusReport};
use crate::guard::{guarded, guarded_start};
use crate::state;
use crate::state::among_threads;
use crate::waiting::OwnRequest;

/// # Safety
/// A live communicator, `len` bytes to read; somewhere to write the place to.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send_bytes_now(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    address: *const u8,
    len: u64,
    place: *mut Place,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise.
        match unsafe { engine.send_now(&*communicator, dest, tag, Buffer::bytes(address, len)) } {
            // SAFETY: the caller's promise.
            Ok(tried) => unsafe { report(tried, place) },
            Err(error) => refused(&error),
        }
    })
}

/// # Safety
/// A live communicator, `len` bytes to read.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send_bytes(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    address: *const u8,
    len: u64,
) -> c_int {
    guarded(Code::Internal.refused(), || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise, here and below.
        let communicator = unsafe { &*communicator };
        let buffer = Buffer::bytes(address, len);
        // SAFETY: as above.
        match unsafe { engine.send_now(communicator, dest, tag, buffer) } {
            Ok(Short::Left) => Code::Ok as c_int,
            // SAFETY: as above; the program has not run since.
            Ok(Short::Not(location)) => unsafe {
                send_and_wait(engine, communicator, (dest, tag), (buffer, location), &SendMode::Standard)
            },
            Err(error) => refused(&error),
        }
    })
}

/// # Safety
/// A live communicator; `len` bytes to write to and the request stay valid until it completes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_irecv_bytes(
    communicator: *const Communicator,
    source: c_int,
    tag: c_int,
    address: *mut u8,
    len: u64,
    request: *mut Request,
) -> c_int {
    let start = || {
        let Some(engine) = state::engine() else { return Code::Internal.refused() };
        // SAFETY: the caller's promise; the request is not active before this.
        match unsafe { engine.irecv(&*communicator, source, tag, Buffer::bytes(address, len), request) } {
            Ok(()) => Code::Ok as c_int,
            Err(error) => refused(&error),
        }
    };
    // SAFETY: the caller's promise.
    unsafe { guarded_start(request, start) }
}

/// # Safety
/// A live communicator, `len` bytes to write to; `status` is valid or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_recv_bytes(
    communicator: *const Communicator,
    source: c_int,
    tag: c_int,
    address: *mut u8,
    len: u64,
    status: *mut StatusReport,
) -> c_int {
    let report = |report: StatusReport| {
        // SAFETY: the caller's promise.
        if let Some(status) = unsafe { status.as_mut() } {
            *status = report;
        }
        report.code
    };
    guarded(Code::Internal as c_int, || {
        let Some(engine) = state::engine() else { return report(StatusReport::new(Status::EMPTY, Code::Internal)) };
        let buffer = Buffer::bytes(address, len);
        if among_threads() {
            // SAFETY: the caller's promise.
            return report(unsafe { recv_among_threads(engine, &*communicator, (source, tag), buffer) });
        }
        let request = OwnRequest::new();
        // SAFETY: the caller's promise; the request lives until it is complete.
        if let Err(error) = unsafe { engine.irecv(&*communicator, source, tag, buffer, &raw const *request) } {
            return report(StatusReport::of(Err(error)));
        }
        wait_for(engine, &request);
        if request.error().is_some() {
            return report(StatusReport::of(request.result()));
        }
        let received = report(StatusReport::new(request.status(), Code::Ok));
        // It succeeded, so it holds nothing: neither an error nor the buffer's description.
        std::mem::forget(request);
        received
    })
}

/// # Safety
/// The buffer is valid for writes.
#[inline(never)]
unsafe fn recv_among_threads(
    engine: &Engine,
    communicator: &Communicator,
    (source, tag): (c_int, c_int),
    buffer: Buffer<'_>,
) -> StatusReport {
    // SAFETY: the caller's promise; the request lives until it is complete.
    let start =
        |request| unsafe { engine.irecv(communicator, source, tag, buffer, request).map(|()| Outcome::Started) };
    StatusReport::of(run(engine, start))
}
