//! What follows a panic.
//!
//! Nothing is known of the engine's state then. It is never called again, so nothing that is under way would ever end.
//! Every request of the host therefore ends with an internal error here, and calls that wait return one.
//!
//! That is safe only if nobody works on a request or its buffer any more. Otherwise the process aborts, and with it the
//! job. Somebody may if
//! - threads share the engine (`MPI_THREAD_MULTIPLE`), because another one may be inside;
//! - the panic came out of a completion callback, because the engine is further up the stack and goes on;
//! - a transfer has begun, because a peer, a network card or a device may read or write the buffer.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::panic::resume_unwind;

use cableway_pml::{Request, Status};
use parking_lot::Mutex;

use crate::boundary::{Code, shim_completed, shim_is_completing};
use crate::state;
use crate::state::among_threads;

/// The requests that the shim has made, by address. They change when the shim's list of free requests grows and as MPI
/// ends, not with each operation.
static MADE: Mutex<BTreeMap<usize, Made>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy)]
struct Made {
    request: *const Request,
    owner: *mut c_void,
}

// SAFETY: only used where no other thread is in MPI.
unsafe impl Send for Made {}

/// A request exists, and is part of the shim's `owner`.
pub(crate) fn note_made(request: *const Request, owner: *mut c_void) {
    MADE.lock().insert(request.addr(), Made { request, owner });
}

/// The request is about to be destroyed.
pub(crate) fn note_destroyed(request: *const Request) {
    MADE.lock().remove(&request.addr());
}

/// Ends what is under way after a panic, but for the operation that was about to start on `starting`: its call returns an
/// error, as if it had not begun.
///
/// # Safety
/// `starting` is null or a request of the shim's.
pub(crate) unsafe fn poison(starting: *const Request) {
    if !state::disable() {
        // There is none yet, or another panic came before: nothing is under way.
        return;
    }
    log::error!("an internal error stopped message passing in this process");
    if among_threads() {
        abort("other threads may be inside");
    }
    // SAFETY: asks for a flag.
    if unsafe { shim_is_completing() } {
        abort("it happened while a completion was reported");
    }
    let made: Vec<Made> = MADE.lock().values().copied().collect();
    for Made { request, .. } in &made {
        // SAFETY: the shim has not destroyed it.
        abort_if_exposed(unsafe { &**request });
    }
    // SAFETY: the caller's promise. The engine is never called again, and no other thread is in it.
    unsafe { starting.as_ref().map(|starting| starting.abandon()) };
    for Made { request, owner } in made {
        // SAFETY: requests are destroyed when MPI ends, not by what is called on a completion. For the rest, as above.
        if unsafe { (*request).abandon() } {
            let Status { source, tag, len, cancelled } = Status::EMPTY;
            // SAFETY: the shim said that this is the owner, and its operation is over.
            unsafe { shim_completed(owner, source, tag, len, cancelled, Code::Internal as i32) };
        }
    }
}

/// A call that has a request in its own frame unwinds, and the request's operation is not over.
#[cold]
pub(crate) fn leave(request: &Request) {
    if among_threads() {
        abort("other threads may be inside");
    }
    abort_if_exposed(request);
}

/// Unwinds if the engine was stopped by a call that this one made.
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
    log::error!("the job is aborted, because operations cannot be ended with an error: {reason}");
    std::process::abort();
}
