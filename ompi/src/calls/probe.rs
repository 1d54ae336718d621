//! Probes.

use std::ffi::c_int;
use std::sync::Arc;

use cableway_pml::{Communicator, Message};

use super::request::report_error;
use crate::boundary::{Code, StatusReport};
use crate::guard::guarded;
use crate::state;

/// # Safety
/// The communicator is live; `status` is valid; `message` is valid or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iprobe(
    communicator: *const Communicator,
    source: c_int,
    tag: c_int,
    status: *mut StatusReport,
    message: *mut *mut Message,
) -> c_int {
    guarded(Code::Internal.negative(), || {
        let Some(engine) = state::engine() else { return Code::Internal.negative() };
        let found = if message.is_null() {
            // SAFETY: the caller's promise.
            engine.iprobe(unsafe { &*communicator }, source, tag)
        } else {
            // SAFETY: the pointer is from `Arc::into_raw`, and the communicator is live.
            let communicator = unsafe {
                Arc::increment_strong_count(communicator);
                Arc::from_raw(communicator)
            };
            engine.improbe(&communicator, source, tag).map(|taken| {
                taken.map(|taken| {
                    let seen = taken.status();
                    // SAFETY: not null, valid by the caller's promise.
                    unsafe { *message = Box::into_raw(Box::new(taken)) };
                    seen
                })
            })
        };
        match found {
            Ok(Some(seen)) => {
                // SAFETY: the caller's promise.
                unsafe { *status = StatusReport::new(seen, Code::Ok) };
                1
            }
            Ok(None) => 0,
            Err(error) => report_error(&error),
        }
    })
}
