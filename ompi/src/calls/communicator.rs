//! Communicators.

use std::sync::Arc;

use cableway_pml::Communicator;

use crate::boundary::guarded;
use crate::state;

/// # Safety
/// `group` holds `size` ranks.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_communicator_add(
    context: u32,
    group: *const u32,
    size: usize,
    rank: u32,
) -> *const Communicator {
    guarded(std::ptr::null(), || {
        let Some(engine) = state::engine() else { return std::ptr::null() };
        let group = if size == 0 {
            Vec::new()
        } else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(group, size) }.to_vec()
        };
        engine.add_communicator(context, group, rank).map_or_else(
            |error| {
                state::report(&error);
                std::ptr::null()
            },
            Arc::into_raw,
        )
    })
}

/// # Safety
/// From [`cableway_communicator_add`], once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_communicator_remove(communicator: *const Communicator) {
    guarded((), || {
        // SAFETY: the caller's promise.
        let communicator = unsafe { Arc::from_raw(communicator) };
        if let Some(engine) = state::engine() {
            engine.remove_communicator(&communicator);
        }
    });
}

/// # Safety
/// From [`cableway_communicator_add`], not removed.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_communicator_revoke(communicator: *const Communicator) {
    guarded((), || {
        if let Some(engine) = state::engine() {
            // SAFETY: the caller's promise.
            engine.remove_communicator(unsafe { &*communicator });
        }
    });
}
