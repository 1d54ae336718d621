//! The program's calls of functions that no component is asked about: `shim/intercept.h`.

use std::ffi::c_void;

use cableway_ompi_intercept::calls;
use cableway_ompi_intercept::patch::{Changed, Error, Redirection};
use cableway_ompi_intercept::staging::{self, Component};
use parking_lot::Mutex;

use crate::guard::guarded;
use crate::state;

/// What is redirected now.
static REDIRECTION: Mutex<Option<Redirection>> = Mutex::new(None);

/// # Safety
/// `component` is valid as long as the process runs; `code` is a function of the library that has MPI's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_intercept_begin(component: *const Component, code: *const c_void) {
    guarded((), || {
        let wanted = cfg!(feature = "cuda") && state::parameters().is_ok_and(|parameters| parameters.intercept);
        let redirection = &mut *REDIRECTION.lock();
        // SAFETY: the caller's promise.
        if !wanted || redirection.is_some() || !unsafe { staging::attach(component) } {
            return;
        }
        // SAFETY: this object needs Open MPI's library and is never unloaded, so neither is that one. Its functions are
        // MPI's.
        let begun = unsafe { Redirection::new(code, calls::all()) }.and_then(|found| {
            let changed = found.begin()?;
            Ok((found, changed))
        });
        match begun {
            Ok((begun, changed)) => {
                report(&changed);
                *redirection = Some(begun);
            }
            Err(error) => refused(&error),
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn cableway_intercept_end() {
    guarded((), || {
        if let Some(Err(error)) = REDIRECTION.lock().take().map(|redirection| redirection.end()) {
            refused(&error);
        }
    });
}

fn report(changed: &Changed) {
    let Changed { symbols, slots, refused } = changed;
    log::info!("redirected MPI calls that no component serves: {symbols} symbols, {slots} references");
    if let Some((address, error)) = refused {
        log::warn!("the word at {address:#x} cannot be changed: {error}; some of {CONSEQUENCE}");
    }
}

fn refused(error: &Error) {
    log::warn!("MPI calls cannot be redirected: {error}; {CONSEQUENCE}");
}

const CONSEQUENCE: &str = "MPI_Pack, MPI_File_read and their like crash on device memory, unless libcableway_mpi.so is \
                           preloaded";
