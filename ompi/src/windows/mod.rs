//! Windows in device memory, for the shim: `shim/exposed/exposed.h`.

mod access;
mod host;
mod memory;
mod synchronize;

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cableway_pml::{Communicator, Error, Exposed, Refusal, Window, WindowThen};

use crate::boundary::Code;
use crate::deferred::{self, Owner};
use crate::guard::guarded;
use crate::state;
use access::AccessDescription;
pub(crate) use host::Host;

/// `enum cableway_window_code`
mod code {
    use std::ffi::c_int;

    pub(super) const RANGE: c_int = 100;
    pub(super) const EPOCH: c_int = 101;
    pub(super) const ATTACH: c_int = 102;
    pub(super) const OPERATION: c_int = 103;
}

unsafe extern "C" {
    fn shim_window_completed(owner: *mut c_void, code: c_int);
}

/// Logs an error, and returns its code.
fn report(error: &Error) -> c_int {
    state::report(error);
    match error {
        Error::RefusedByWindow { refusal: Refusal::OutOfRange, .. } => code::RANGE,
        Error::RefusedByWindow { refusal: Refusal::Reduction, .. } => code::OPERATION,
        Error::RefusedByWindow { refusal: Refusal::NoMemory, .. } => Code::NoMemory as c_int,
        Error::RefusedByWindow { refusal: Refusal::Device, .. } => Code::Device as c_int,
        Error::OutOfEpoch { .. } => code::EPOCH,
        Error::BadAttachment { .. } => code::ATTACH,
        Error::UnequalBuffers { .. } | Error::TooManyBlocks { .. } => Code::BadArgument as c_int,
        other => Code::from(other) as c_int,
    }
}

/// Runs a call on a window. After a panic anywhere in the engine nothing is called any more.
///
/// # Safety
/// `window` is from [`cableway_exposed_new`], and not freed.
unsafe fn with(window: *const Window, call: impl FnOnce(&Window) -> Result<(), Error>) -> c_int {
    guarded(Code::Internal as c_int, || {
        if state::engine().is_none() {
            return Code::Internal as c_int;
        }
        // SAFETY: the caller's promise.
        let result = call(unsafe { &*window });
        match result {
            _ if state::engine().is_none() => Code::Internal as c_int,
            Ok(()) => Code::Ok as c_int,
            Err(error) => report(&error),
        }
    })
}

/// # Safety
/// `communicator` is from `cableway_communicator_add`, is removed after the window is freed, and carries nothing else but
/// collectives. The program keeps the memory until then.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_new(
    communicator: *const Communicator,
    address: *mut c_void,
    len: u64,
    unit: u32,
    dynamic: bool,
) -> *mut Window {
    guarded(std::ptr::null_mut(), || {
        let Some(engine) = state::engine().and_then(|engine| engine.handle()) else { return std::ptr::null_mut() };
        // SAFETY: the caller's promise.
        let communicator = unsafe {
            Arc::increment_strong_count(communicator);
            Arc::from_raw(communicator)
        };
        let exposed = if dynamic { Exposed::Attached } else { Exposed::Memory { address: address.cast(), len, unit } };
        // SAFETY: the caller's promise.
        match unsafe { Window::new(&engine, communicator, exposed, Arc::new(Host)) } {
            Ok(window) => Box::into_raw(Box::new(window)),
            Err(error) => {
                state::report(&error);
                std::ptr::null_mut()
            }
        }
    })
}

/// # Safety
/// `window` is from [`cableway_exposed_new`], and freed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_free(window: *mut Window) {
    guarded((), || {
        // SAFETY: the caller's promise.
        let window = unsafe { Box::from_raw(window) };
        if state::engine().is_some() {
            window.close();
        }
    });
}

/// # Safety
/// As [`with`]. The description and its memory are valid as MPI asks of the program, and `owner` is null or of the shim.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_start(
    window: *const Window,
    access: *const AccessDescription,
    owner: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(window, |window| {
            let then = (!owner.is_null()).then(|| completing(owner));
            window.start(&(*access).access(), then)
        })
    }
}

/// Returns a function that completes a request of the shim.
fn completing(owner: *mut c_void) -> WindowThen {
    let owner = Owner::new(owner);
    Box::new(move |result: Result<(), Error>| {
        let code = result.map_or_else(|error| report(&error), |()| Code::Ok as c_int);
        // SAFETY: the owner of an operation that has completed.
        deferred::in_program(move || unsafe { shim_window_completed(owner.get(), code) });
    })
}

/// # Safety
/// As [`with`]. The program keeps the memory until it is detached.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_attach(window: *const Window, address: *mut c_void, len: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, |window| window.attach(address.cast(), len)) }
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_detach(window: *const Window, address: *const c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, |window| window.detach(address.cast())) }
}
