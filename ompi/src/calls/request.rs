//! Requests: construction, completion and blocking waits.

use std::ffi::{c_int, c_void};

use cableway_pml::{Engine, Error, Outcome, Request, Status};

use crate::boundary::{Code, shim_completed, shim_host_progress};
use crate::deferred::{self, Owner};
use crate::fault::{self, Point};
use crate::guard::guarded;
use crate::state::is_multithreaded;
use crate::waiting::{POLLS_PER_HOST_PROGRESS, StackRequest, WaitedRequest};
use crate::{poison, state};

/// # Safety
/// `request` points to `CABLEWAY_REQUEST_BYTES` of memory, aligned to 64. `owner` is the shim's request that contains
/// it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_request_construct(request: *mut Request, owner: *mut c_void) {
    // SAFETY: `boundary` asserts size and alignment; nothing else uses the request yet.
    unsafe {
        request.write(Request::new());
        (*request).set_hook(Some((completed, owner)));
    }
    guarded((), || poison::register_request(request, owner));
}

/// # Safety
/// The request is constructed and not active.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_request_destruct(request: *mut Request) {
    guarded((), || {
        poison::unregister_request(request);
        // SAFETY: the caller's promise.
        unsafe { request.drop_in_place() };
    });
}

/// # Safety
/// The request was started.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_cancel(request: *mut Request) {
    guarded((), || {
        if let Some(engine) = state::engine() {
            // SAFETY: the caller's promise.
            unsafe { engine.cancel(request) };
        }
    });
}

/// The completion hook of the shim's requests.
///
/// # Safety
/// `owner` is the shim's request that contains `request`. Both may be freed when this returns.
unsafe fn completed(request: *const Request, owner: *mut c_void) {
    // SAFETY: the request is complete, and valid until the call of `shim_completed`.
    let (status, error) = unsafe { ((*request).status(), (*request).error()) };
    if let Some(error) = error {
        return failed(status, error, owner);
    }
    report(owner, status, Code::Ok);
}

/// Reports a completion to the shim.
#[inline]
fn report(owner: *mut c_void, status: Status, code: Code) {
    let owner = Owner::new(owner);
    deferred::in_program(move || {
        let Status { source, tag, len, cancelled } = status;
        // SAFETY: the owner of a request that is complete; Open MPI keeps it until then.
        unsafe { shim_completed(owner.get(), source, tag, len, cancelled, code as c_int) };
    });
}

#[cold]
fn failed(status: Status, error: &Error, owner: *mut c_void) {
    if !matches!(error, Error::Truncated { .. }) {
        state::report(error);
    }
    report(owner, status, Code::from(error));
}

/// Progresses the engine, and less often all of Open MPI, until `request` is complete.
#[inline]
pub(super) fn wait_for(engine: &Engine, request: &StackRequest) {
    let mut polls: u32 = 0;
    while !request.is_complete() {
        fault::point(Point::Wait);
        if engine.progress() == 0 {
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS_PER_HOST_PROGRESS) {
                // SAFETY: Open MPI is initialized while it calls this component.
                unsafe { shim_host_progress() };
                poison::unwind_if_stopped();
            }
        }
    }
}

/// Starts an operation on a request on the stack, waits until it is complete, and returns its result.
pub(super) fn run(
    engine: &Engine,
    start: impl FnOnce(*const Request) -> Result<Outcome, Error>,
) -> Result<Status, Error> {
    if is_multithreaded() {
        let waited = WaitedRequest::new();
        return match start(waited.request())? {
            Outcome::Complete => Ok(Status::EMPTY),
            Outcome::Started => waited.wait(engine).result(),
        };
    }
    let request = StackRequest::new();
    match start(&raw const *request)? {
        Outcome::Complete => Ok(Status::EMPTY),
        Outcome::Started => {
            wait_for(engine, &request);
            request.result()
        }
    }
}

/// Logs an error, and returns its negated code.
#[cold]
pub(super) fn report_error(error: &Error) -> c_int {
    state::report(error);
    Code::from(error).negative()
}
