//! Classification of pointers by the driver.

use super::contexts::Contexts;
use crate::driver::{Failure, FailureKind};
use crate::location::{Location, MemoryClass};

/// Asks the driver about an address: for no more than the id of its allocation where that turns out to be known.
pub(super) fn classify(contexts: &Contexts, address: *const u8) -> Location {
    if contexts.is_near_known(address)
        && let Some(location) = contexts.driver.buffer_id(address as u64).and_then(|id| contexts.locate(id))
        && contexts.has_synchronised(location.buffer_id)
    {
        return location;
    }
    ask(contexts, address)
}

/// Asks for all that there is to know.
fn ask(contexts: &Contexts, address: *const u8) -> Location {
    let found = match contexts.driver.attributes(address as u64) {
        Ok(found) => found,
        // The driver is not initialised, or the process is ending: no device memory exists.
        Err(Failure { kind: FailureKind::NotInitialised | FailureKind::Deinitialised, .. }) => return Location::HOST,
        Err(failure) => return unknown(contexts, address, failure),
    };
    let (class, device, buffer_id) = (found.class, found.device, found.buffer_id);
    if matches!(class, MemoryClass::Host | MemoryClass::Pinned) {
        return Location { class, ..Location::HOST };
    }
    let context = match found.context {
        Some(handle) => contexts.see_allocation(handle, buffer_id).unwrap_or(0),
        // Pools and VMM name none. Where the device's primary context is not active, which happens to programs that
        // make contexts of their own, only the caller's thread knows which one the memory is used in.
        None => match device.and_then(|device| contexts.active_primary(device)) {
            Some(_) => 0,
            None => contexts.current().map_or(0, |queue| queue.workspace.context.id),
        },
    };
    let location = Location { class, device, context, buffer_id };
    // Of other memory the context may be another one next time, or the device.
    if found.context.is_some() && class == MemoryClass::Device && context != 0 {
        contexts.remember(address, &location);
        // On an H200 (driver 580) memory of pools accepts the attribute, but fills of it still return early.
        contexts.synchronise(address, &location, found.synchronous);
    }
    location
}

/// Returns the context that page-locked memory belongs to, as the location of its device's memory there. Returns `None`
/// unless one registration, or one allocation, has the first and the last byte: the driver refuses copies across borders.
pub(super) fn page_locked_in(contexts: &Contexts, address: *const u8, len: usize) -> Option<Location> {
    let found = contexts.driver.attributes(address as u64).ok()?;
    let (device, handle) = (found.device?, found.context?);
    let last = (address as u64).checked_add(len.checked_sub(1)? as u64)?;
    let whole = match found.buffer_id {
        // AMD's driver numbers device memory only.
        0 => contexts.driver.attributes(last).is_ok_and(|last| last.class == found.class),
        id => contexts.driver.buffer_id(last) == Some(id),
    };
    if found.class != MemoryClass::Pinned || !whole {
        return None;
    }
    let context = contexts.see_allocation(handle, found.buffer_id).ok()?;
    Some(Location { class: MemoryClass::Device, device: Some(device), context, buffer_id: 0 })
}

/// An address about which the driver fails to answer, as it does once a kernel has crashed: not to be touched by the
/// CPU unless the CPU can.
fn unknown(contexts: &Contexts, address: *const u8, failure: Failure) -> Location {
    cableway_base::warn_once(&format!("device/classify/{}", failure.code), || {
        format!("the device driver cannot classify memory: {}", contexts.driver.reason(failure))
    });
    if readable_by_cpu(address) {
        return Location::HOST;
    }
    Location { class: MemoryClass::Device, device: None, context: 0, buffer_id: 0 }
}

/// Checks whether a byte can be read without a fault. The kernel tries to read it.
fn readable_by_cpu(address: *const u8) -> bool {
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: 1 };
    // SAFETY: reads at most one byte into `byte`; a bad remote address is an error, not a fault.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    // Refused for another reason than the address (seccomp): as the class of nearly every buffer.
    read == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}
