//! Sends and receives of contiguous bytes in the standard mode, for `shim/common/fast_path.c`. Rare cases are not
//! inlined, which keeps the fast path short.

use std::ffi::c_int;

use cableway_pml::{Buffer, Communicator, Engine, FastPath, Outcome, Request, SendMode, Status};

use super::request::{report_error, run, wait_for};
use super::send::{report, send_and_wait};
use crate::boundary::{Code, LocationDescription, StatusReport};
use crate::guard::{guarded, guarded_start};
use crate::state;
use crate::state::is_multithreaded;
use crate::waiting::StackRequest;

/// # Safety
/// The communicator is live; `address` is valid for reads of `len` bytes, and `location` for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send_bytes_now(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    address: *const u8,
    len: u64,
    location: *mut LocationDescription,
) -> c_int {
    guarded(Code::Internal.negative(), || {
        let Some(engine) = state::engine() else { return Code::Internal.negative() };
        // SAFETY: the caller's promise.
        match unsafe { engine.send_now(&*communicator, dest, tag, Buffer::bytes(address, len)) } {
            // SAFETY: the caller's promise.
            Ok(outcome) => unsafe { report(outcome, location) },
            Err(error) => report_error(&error),
        }
    })
}

/// # Safety
/// The communicator is live; `address` is valid for reads of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send_bytes(
    communicator: *const Communicator,
    dest: c_int,
    tag: c_int,
    address: *const u8,
    len: u64,
) -> c_int {
    guarded(Code::Internal.negative(), || {
        let Some(engine) = state::engine() else { return Code::Internal.negative() };
        // SAFETY: the caller's promise, here and below.
        let communicator = unsafe { &*communicator };
        let buffer = Buffer::bytes(address, len);
        // SAFETY: as above.
        match unsafe { engine.send_now(communicator, dest, tag, buffer) } {
            Ok(FastPath::Sent) => Code::Ok as c_int,
            // SAFETY: as above; the location was found in this call.
            Ok(FastPath::NotTaken(location)) => unsafe {
                send_and_wait(engine, communicator, (dest, tag), (buffer, location), &SendMode::Standard)
            },
            Err(error) => report_error(&error),
        }
    })
}

/// # Safety
/// The communicator is live; `len` bytes at `address` and the request stay valid until the request completes.
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
        let Some(engine) = state::engine() else { return Code::Internal.negative() };
        // SAFETY: the caller's promise; the request is not active before this.
        match unsafe { engine.irecv(&*communicator, source, tag, Buffer::bytes(address, len), request) } {
            Ok(()) => Code::Ok as c_int,
            Err(error) => report_error(&error),
        }
    };
    // SAFETY: the caller's promise.
    unsafe { guarded_start(request, start) }
}

/// # Safety
/// The communicator is live; `address` is valid for writes of `len` bytes; `status` is valid or null.
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
        if is_multithreaded() {
            // SAFETY: the caller's promise.
            return report(unsafe { recv_multithreaded(engine, &*communicator, (source, tag), buffer) });
        }
        let request = StackRequest::new();
        // SAFETY: the caller's promise; the request lives until it is complete.
        if let Err(error) = unsafe { engine.irecv(&*communicator, source, tag, buffer, &raw const *request) } {
            return report(StatusReport::of(Err(error)));
        }
        wait_for(engine, &request);
        if request.error().is_some() {
            return report(StatusReport::of(request.result()));
        }
        let received = report(StatusReport::new(request.status(), Code::Ok));
        // A request that succeeded owns nothing, so dropping it would only cost time.
        std::mem::forget(request);
        received
    })
}

/// # Safety
/// The buffer is valid for writes.
#[inline(never)]
unsafe fn recv_multithreaded(
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
