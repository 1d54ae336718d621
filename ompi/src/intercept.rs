//! Redirects MPI calls that Open MPI passes to no component: `shim/intercept.h`.

use std::ffi::c_void;

use cableway_ompi_intercept::calls;
use cableway_ompi_intercept::patch::{Changed, Error, Redirection};
use cableway_ompi_intercept::staging::{self, Component};
use parking_lot::Mutex;

use crate::guard::guarded;
use crate::state;

/// The active redirection.
static REDIRECTION: Mutex<Option<Redirection>> = Mutex::new(None);

/// # Safety
/// `component` is valid as long as the process runs; `code` is the address of a function of the MPI library.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_intercept_begin(component: *const Component, code: *const c_void) {
    guarded((), || {
        let has_devices = cfg!(any(feature = "cuda", feature = "rocm"));
        let wanted = has_devices && state::parameters().is_ok_and(|parameters| parameters.intercept);
        let redirection = &mut *REDIRECTION.lock();
        // SAFETY: the caller's promise.
        if !wanted || redirection.is_some() || !unsafe { staging::attach(component) } {
            return;
        }
        // SAFETY: this object depends on Open MPI's library and is never unloaded, so that library is not either. Its
        // functions have MPI's signatures.
        let begun = unsafe { Redirection::new(code, calls::all()) }.and_then(|found| {
            let changed = found.begin()?;
            Ok((found, changed))
        });
        match begun {
            Ok((begun, changed)) => {
                report(&changed);
                *redirection = Some(begun);
            }
            Err(error) => warn(&error),
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn cableway_intercept_end() {
    guarded((), || {
        if let Some(Err(error)) = REDIRECTION.lock().take().map(|redirection| redirection.end()) {
            warn(&error);
        }
    });
}

fn report(changed: &Changed) {
    let Changed { symbols, slots, failure } = changed;
    log::info!("redirected MPI calls that Open MPI passes to no component: {symbols} symbols, {slots} references");
    if let Some((address, error)) = failure {
        log::warn!("cannot redirect the call at {address:#x}: {error}; some of {CONSEQUENCE}");
    }
}

fn warn(error: &Error) {
    log::warn!("cannot redirect MPI calls: {error}; {CONSEQUENCE}");
}

const CONSEQUENCE: &str = "MPI_Pack, MPI_File_read and similar calls will crash on device memory; preload \
                           libcableway_mpi.so to avoid this";
