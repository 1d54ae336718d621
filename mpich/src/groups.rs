//! Communicators that Cableway serves.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cableway_coll::Group;
use cableway_pml::Communicator;

use crate::boundary::{CardDescription, slice};
use crate::guard::guarded;
use crate::process::{self, Started};

/// A communicator of the engine, with the same ranks as the program's.
pub(crate) struct Members {
    pub(crate) group: Group,
    pub(crate) on: Arc<Communicator>,
    started: &'static Started,
}

impl Drop for Members {
    fn drop(&mut self) {
        self.started.engine.remove_communicator(&self.on);
    }
}

/// # Safety
/// `card` is valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_start(card: *mut CardDescription) {
    let mine = guarded(None, || {
        let started = process::start()?;
        Some((started.card.len() as u64, u64::from(started.new_context())))
    });
    let (length, context) = mine.unwrap_or_default();
    // SAFETY: the caller's promise.
    unsafe { card.write(CardDescription { ready: u64::from(mine.is_some()), device: 0, length, context }) }
}

#[unsafe(no_mangle)]
extern "C" fn cableway_addresses() -> *const c_void {
    guarded(std::ptr::null(), || process::started().map_or(std::ptr::null(), |started| started.card.as_ptr().cast()))
}

/// # Safety
/// `addresses` holds `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_meet(process: c_int, addresses: *const c_void, length: usize) -> bool {
    guarded(false, || {
        let (Some(started), Ok(process)) = (process::started(), u32::try_from(process)) else { return false };
        // SAFETY: the caller's promise.
        started.modex.meet(process, unsafe { slice(addresses.cast(), length) })
    })
}

/// # Safety
/// `processes` holds `size` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_group_new(
    context: u64,
    processes: *const c_int,
    size: c_int,
    rank: c_int,
) -> *const Members {
    guarded(std::ptr::null(), || {
        let (Some(started), Ok(size)) = (process::started(), usize::try_from(size)) else { return std::ptr::null() };
        // SAFETY: the caller's promise.
        let processes = unsafe { slice(processes, size) };
        let group: Result<Vec<u32>, _> = processes.iter().map(|&process| u32::try_from(process)).collect();
        let (Ok(group), Ok(context), Ok(rank)) = (group, u32::try_from(context), u32::try_from(rank)) else {
            return std::ptr::null();
        };
        match started.engine.add_communicator(context, group, rank) {
            Ok(on) => {
                let group = Group::new(started.collectives.clone(), on.clone());
                group.expect_devices(true);
                Box::into_raw(Box::new(Members { group, on, started }))
            }
            Err(error) => {
                log::warn!("collectives of a communicator of {size} go through host copies: {error}");
                std::ptr::null()
            }
        }
    })
}

/// # Safety
/// `members` is from [`cableway_group_new`], is freed only once, and no call is under way.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_group_free(members: *mut Members) {
    // SAFETY: the caller's promise.
    guarded((), || drop(unsafe { Box::from_raw(members) }));
}

#[unsafe(no_mangle)]
extern "C" fn cableway_took_over(size: c_int, shared: bool) {
    guarded((), || {
        let Some(process) = process::process() else { return };
        let limit = process.parameters.coll_shared_limit;
        let small =
            if shared { format!(", but for calls below {limit} bytes: ranks share a device") } else { String::new() };
        log::info!("from now on performs the blocking collectives of a communicator of {size} ranks{small}");
    });
}
