//! Ends pending operations after a panic.
//!
//! After a panic the engine's state is unknown, so the engine is never called again and would complete nothing. This
//! module completes every pending request with an internal error, and blocking calls return one.
//!
//! That is safe only if nothing still uses a request or its buffer. Otherwise the process aborts, and with it the job:
//! - under `MPI_THREAD_MULTIPLE`, and once there are streams, because another thread may be in the engine;
//! - if the panic occurred in a completion callback, because the engine is on the stack and continues;
//! - if a transfer has begun, because a peer, a network card or a device may access the buffer.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::panic::resume_unwind;

use cableway_pml::{Request, Status};
use parking_lot::Mutex;

use crate::boundary::{Code, shim_completed, shim_is_completing};
use crate::state;
use crate::state::is_multithreaded;

/// All requests that the shim has constructed, by address. The shim recycles them in a free list, so this map changes
/// only when the list grows, and when MPI is finalized.
static REQUESTS: Mutex<BTreeMap<usize, Registered>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy)]
struct Registered {
    request: *const Request,
    owner: *mut c_void,
}

// SAFETY: only used while no other thread is in MPI.
unsafe impl Send for Registered {}

/// Registers a request that the shim has constructed as part of its request `owner`.
pub(crate) fn register_request(request: *const Request, owner: *mut c_void) {
    REQUESTS.lock().insert(request.addr(), Registered { request, owner });
}

/// Unregisters a request that is about to be destroyed.
pub(crate) fn unregister_request(request: *const Request) {
    REQUESTS.lock().remove(&request.addr());
}

/// Disables the engine and ends all pending operations after a panic. The operation that was being started on
/// `starting` is not reported as completed: its call returns an error, as if it had not started.
///
/// # Safety
/// `starting` is null or one of the shim's requests.
pub(crate) unsafe fn poison(starting: *const Request) {
    if !state::disable() {
        // The engine has not started, or another panic has already disabled it.
        return;
    }
    log::error!("an internal error stopped message passing in this process");
    if is_multithreaded() {
        abort("other threads may be in the engine");
    }
    // SAFETY: only reads a flag.
    if unsafe { shim_is_completing() } {
        abort("it happened in a completion callback");
    }
    let registered: Vec<Registered> = REQUESTS.lock().values().copied().collect();
    for Registered { request, .. } in &registered {
        // SAFETY: the shim has not destroyed it.
        abort_if_exposed(unsafe { &**request });
    }
    // SAFETY: the caller's promise. The engine is never called again, and no other thread is in it.
    unsafe { starting.as_ref().map(|starting| starting.abandon()) };
    for Registered { request, owner } in registered {
        // SAFETY: requests are destroyed when MPI is finalized, not by completion callbacks. The rest is as above.
        if unsafe { (*request).abandon() } {
            let Status { source, tag, len, cancelled } = Status::EMPTY;
            // SAFETY: the shim registered this owner, and its operation has ended.
            unsafe { shim_completed(owner, source, tag, len, cancelled, Code::Internal as i32) };
        }
    }
}

/// Aborts if the stack frame that holds an active request must not be unwound.
#[cold]
pub(crate) fn unwind_past(request: &Request) {
    if is_multithreaded() {
        abort("other threads may be in the engine");
    }
    abort_if_exposed(request);
}

/// Unwinds if a nested call has disabled the engine.
pub(crate) fn unwind_if_stopped() {
    if state::engine().is_none() {
        resume_unwind(Box::new("the engine was stopped"));
    }
}

fn abort_if_exposed(request: &Request) {
    if request.is_transferring() {
        abort("a peer or a device may still use a buffer");
    }
}

pub(crate) fn abort(reason: &str) -> ! {
    log::error!("aborting the job, because operations cannot be ended with an error: {reason}");
    std::process::abort();
}
