//! Memory of devices for `MPI_Win_allocate`, as the info key `cableway_memory_kind` asks for it.
//!
//! The key `mpi_memory_alloc_kinds` of MPI 4.1 does not serve for that: it does not affect what MPI allocates.

use std::ffi::{CStr, c_char, c_void};

use cableway_common_cuda::{BufferKind, DeviceBuffer, Vendor};

use crate::guard::guarded;
use crate::state;

/// A kind of memory that a device's driver allocates.
#[derive(Clone, Copy, Debug)]
struct Kind {
    vendor: Vendor,
    buffer: BufferKind,
}

/// Returns the kind that a value names, in the words that MPI's definitions of memory kinds use. Returns `None` for host
/// memory, which is also what an empty value means.
fn parse(value: &str) -> Result<Option<Kind>, String> {
    let (vendor, memory) = match value.split_once(':').unwrap_or((value, "device")) {
        ("" | "system", _) => return Ok(None),
        ("cuda", memory) => (Vendor::Nvidia, memory),
        ("rocm", memory) => (Vendor::Amd, memory),
        _ => return Err(unknown(value)),
    };
    let buffer = match memory {
        "device" => BufferKind::Device,
        "managed" => BufferKind::Managed,
        "host" => BufferKind::Pinned,
        _ => return Err(unknown(value)),
    };
    Ok(Some(Kind { vendor, buffer }))
}

fn unknown(value: &str) -> String {
    format!(
        "the info key cableway_memory_kind has the value '{value}'; use cuda:device, cuda:managed, cuda:host, the same \
         with rocm, or system"
    )
}

/// # Safety
/// `kind` is a C string.
unsafe fn kind_of(kind: *const c_char) -> Result<Option<Kind>, String> {
    // SAFETY: the caller's promise.
    parse(&unsafe { CStr::from_ptr(kind) }.to_string_lossy())
}

/// # Safety
/// As [`kind_of`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_window_asks_for_device(kind: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    guarded(false, || !matches!(unsafe { kind_of(kind) }, Ok(None)))
}

/// # Safety
/// As [`kind_of`], and the kind is not host memory. `address` is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_window_allocate(
    kind: *const c_char,
    len: u64,
    address: *mut *mut c_void,
) -> *mut DeviceBuffer {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let kind = unsafe { kind_of(kind) }.and_then(|kind| kind.ok_or_else(|| unknown("system")));
        match kind.and_then(|kind| allocate(kind, len)) {
            Ok(memory) => {
                // SAFETY: the caller's promise.
                unsafe { *address = memory.as_device_ptr().cast() };
                Box::into_raw(Box::new(memory))
            }
            Err(error) => {
                log::error!("cannot allocate {len} bytes of a window on a device: {error}");
                std::ptr::null_mut()
            }
        }
    })
}

/// Allocates on the device of the calling thread's current context, in its primary context, as CUDA's runtime does.
fn allocate(kind: Kind, len: u64) -> Result<DeviceBuffer, String> {
    let engine = state::engine().ok_or("the engine has stopped")?;
    let device = engine.devices().current_device(kind.vendor).ok_or(
        "this thread has no current device of that vendor; choose one and use it before, for example by cudaSetDevice and \
         cudaFree(0)",
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
