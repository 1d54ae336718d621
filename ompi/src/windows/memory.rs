//! Memory of devices for `MPI_Win_allocate`, as the info key `mpi_memory_alloc_kinds` asks for it.

use std::ffi::{CStr, c_char, c_void};

use cableway_common_cuda::{BufferKind, DeviceBuffer, Vendor};

use crate::guard::guarded;
use crate::state;

/// A kind of memory that a device's driver allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    vendor: Vendor,
    buffer: BufferKind,
}

/// Returns the first kind of a list that is known, if a driver allocates it. The list is written as MPI 4.1 and the
/// definitions of memory kinds for CUDA and ROCm have it: `kind:restrictor,kind`. A kind without a restrictor of memory is
/// device memory.
fn first_kind(kinds: &str) -> Option<Kind> {
    for kind in kinds.split(',') {
        let mut words = kind.trim().split(':');
        let vendor = match words.next() {
            Some("cuda") => Vendor::Nvidia,
            Some("rocm") => Vendor::Amd,
            // Host memory, which Open MPI's components allocate.
            Some("system" | "mpi") => return None,
            _ => continue,
        };
        let buffer = match words.next() {
            None | Some("device") => BufferKind::Device,
            Some("managed") => BufferKind::Managed,
            Some("host") => BufferKind::Pinned,
            Some(_) => continue,
        };
        return Some(Kind { vendor, buffer });
    }
    None
}

/// # Safety
/// `kinds` is a C string.
unsafe fn kind_of(kinds: *const c_char) -> Option<Kind> {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(kinds) }.to_str().ok().and_then(first_kind)
}

/// # Safety
/// As [`kind_of`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_window_asks_for_device(kinds: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    guarded(false, || unsafe { kind_of(kinds) }.is_some())
}

/// # Safety
/// As [`kind_of`], and the kinds ask for a device. `address` is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_window_allocate(
    kinds: *const c_char,
    len: u64,
    address: *mut *mut c_void,
) -> *mut DeviceBuffer {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        match unsafe { kind_of(kinds) }.map(|kind| allocate(kind, len)) {
            Some(Ok(memory)) => {
                // SAFETY: the caller's promise.
                unsafe { *address = memory.as_device_ptr().cast() };
                Box::into_raw(Box::new(memory))
            }
            Some(Err(error)) => {
                log::error!("cannot allocate {len} bytes of a window on a device: {error}");
                std::ptr::null_mut()
            }
            None => std::ptr::null_mut(),
        }
    })
}

/// Allocates on the device of the calling thread's current context, which is how programs choose a device.
fn allocate(kind: Kind, len: u64) -> Result<DeviceBuffer, String> {
    let engine = state::engine().ok_or("MPI is finalized")?;
    let device = engine.devices().current_device(kind.vendor).ok_or(
        "this thread has no current device; choose one and use it before, for example by cudaSetDevice and cudaFree(0)",
    )?;
    let len = usize::try_from(len).map_err(|_| "the length does not fit in an address")?;
    DeviceBuffer::new(engine.devices(), device, kind.buffer, len).map_err(|error| error.to_string())
}

/// # Safety
/// `memory` is from [`cableway_window_allocate`], and freed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_window_deallocate(memory: *mut DeviceBuffer) {
    // SAFETY: the caller's promise.
    guarded((), || drop(unsafe { Box::from_raw(memory) }));
}
