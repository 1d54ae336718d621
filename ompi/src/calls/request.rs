//! Requests: the shim's memory that the engine works in, and how they end.

use std::ffi::{c_int, c_void};

use cableway_pml::{Engine, Error, Outcome, Request, Status};

use crate::boundary::{Code, shim_completed, shim_host_progress};
use crate::fault::{self, Point};
use crate::guard::guarded;
use crate::state::among_threads;
use crate::waiting::{OwnRequest, POLLS_PER_HOST_PROGRESS, Waited};
use crate::{poison, state};

/// # Safety
/// `CABLEWAY_REQUEST_BYTES` of memory, aligned to 64; `owner` is the shim's request that it is part of.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_request_construct(request: *mut Request, owner: *mut c_void) {
    // SAFETY: room and alignment are asserted in `boundary`; nobody else knows the request yet.
    unsafe {
        request.write(Request::new());
        (*request).set_hook(Some((completed, owner)));
    }
    guarded((), || poison::note_made(request, owner));
}

/// # Safety
/// Constructed, and not active.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_request_destruct(request: *mut Request) {
    guarded((), || {
        poison::note_destroyed(request);
        // SAFETY: the caller's promise.
        unsafe { request.drop_in_place() };
    });
}

/// # Safety
/// A request that was started.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_cancel(request: *mut Request) {
    guarded((), || {
        if let Some(engine) = state::engine() {
            // SAFETY: the caller's promise.
            unsafe { engine.cancel(request) };
        }
    });
}

/// The hook of every request of the shim's.
///
/// # Safety
/// `owner` is the shim's request that `request` is part of; both may be gone when this returns.
unsafe fn completed(request: *const Request, owner: *mut c_void) {
    // SAFETY: the request is complete, and alive until the shim is told.
    let (status, error) = unsafe { ((*request).status(), (*request).error()) };
    if let Some(error) = error {
        // SAFETY: as the caller promised.
        return unsafe { failed(status, error, owner) };
    }
    // SAFETY: `owner` is what the shim gave with the request.
    unsafe { shim_completed(owner, status.source, status.tag, status.len, status.cancelled, Code::Ok as c_int) };
}

/// # Safety
/// As [`completed`].
#[cold]
unsafe fn failed(status: Status, error: &Error, owner: *mut c_void) {
    if !matches!(error, Error::Truncated { .. }) {
        state::report(error);
    }
    let code = Code::from(error) as c_int;
    // SAFETY: the caller's promise.
    unsafe { shim_completed(owner, status.source, status.tag, status.len, status.cancelled, code) };
}

/// Progresses until `request` is complete: mostly the engine alone, now and then all of Open MPI.
#[inline]
pub(super) fn wait_for(engine: &Engine, request: &OwnRequest) {
    let mut polls: u32 = 0;
    while !request.is_complete() {
        fault::point(Point::Wait);
        if engine.progress() == 0 {
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_HOST_PROGRESS) {
                // SAFETY: Open MPI is initialised while it calls this component.
                unsafe { shim_host_progress() };
                poison::unwind_if_stopped();
            }
        }
    }
}

/// Starts an operation on a request of this frame's, waits for its end, and answers how it ended.
pub(super) fn run(
    engine: &Engine,
    start: impl FnOnce(*const Request) -> Result<Outcome, Error>,
) -> Result<Status, Error> {
    if among_threads() {
        let waited = Waited::new();
        return match start(waited.ready())? {
            Outcome::Complete => Ok(Status::EMPTY),
            Outcome::Started => waited.wait(engine).result(),
        };
    }
    let request = OwnRequest::new();
    match start(&raw const *request)? {
        Outcome::Complete => Ok(Status::EMPTY),
        Outcome::Started => {
            wait_for(engine, &request);
            request.result()
        }
    }
}

/// Says why a call was refused, and answers what it returns then.
#[cold]
pub(super) fn refused(error: &Error) -> c_int {
    state::report(error);
    Code::from(error).refused()
}
