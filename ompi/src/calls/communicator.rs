//! Communicators.

use std::sync::Arc;

use cableway_pml::Communicator;

use crate::guard::guarded;
use crate::state;

/// # Safety
/// `group` holds `size` process names.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_communicator_add(
    context: u32,
    group: *const u64,
    size: usize,
    rank: u32,
) -> *const Communicator {
    guarded(std::ptr::null(), || {
        let Some(engine) = state::engine() else { return std::ptr::null() };
        let mut ranks = Vec::with_capacity(size);
        for index in 0..size {
            // SAFETY: the caller's promise.
            let name = unsafe { *group.add(index) };
            let Some(rank) = state::rank_of(name) else {
                log::error!(
                    "cannot communicate with process {name:#x}: the limit of processes of other jobs is reached; \
                     use another pml"
                );
                return std::ptr::null();
            };
            ranks.push(rank);
        }
        engine.add_communicator(context, ranks, rank).map_or_else(
            |error| {
                state::report(&error);
                std::ptr::null()
            },
            Arc::into_raw,
        )
    })
}

/// # Safety
/// `communicator` is from [`cableway_communicator_add`], and removed only once.
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
/// `communicator` is from [`cableway_communicator_add`], and not removed.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_communicator_revoke(communicator: *const Communicator) {
    guarded((), || {
        if let Some(engine) = state::engine() {
            // SAFETY: the caller's promise.
            engine.remove_communicator(unsafe { &*communicator });
        }
    });
}
