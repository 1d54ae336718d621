//! The memory of windows that `MPI_Win_allocate` creates, of the kind that the info key `cableway_memory_kind` asks for.
//!
//! The key `mpi_memory_alloc_kinds` of MPI 4.1 does not serve for that: it does not affect what MPI allocates.

use std::ffi::{CStr, c_char, c_void};

use cableway_common_cuda::{BufferKind, DeviceBuffer, Vendor};

use crate::guard::guarded;
use crate::state;

/// The memory of a window. Dropping it frees it.
enum Memory {
    Host(Vec<Line>),
    Device(DeviceBuffer),
}

/// Host memory begins at a cache line.
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

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
/// As [`kind_of`]. `address` is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_window_allocate(kind: *const c_char, len: u64, address: *mut *mut c_void) -> *mut Memory {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let memory = unsafe { kind_of(kind) }.and_then(|kind| match kind {
            Some(kind) => on_device(kind, len).map(Memory::Device),
            None => on_host(len).map(Memory::Host),
        });
        match memory {
            Ok(mut memory) => {
                let first = match &mut memory {
                    Memory::Host(lines) => lines.as_mut_ptr().cast(),
                    Memory::Device(buffer) => buffer.as_device_ptr().cast(),
                };
                // SAFETY: the caller's promise.
                unsafe { *address = first };
                Box::into_raw(Box::new(memory))
            }
            Err(error) => {
                log::error!("cannot allocate {len} bytes of a window: {error}");
                std::ptr::null_mut()
            }
        }
    })
}

/// Allocates memory whose content is undefined. The vector stays empty.
fn on_host(len: u64) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    let count = usize::try_from(len.div_ceil(64)).map_err(|error| error.to_string())?;
    lines.try_reserve_exact(count).map_err(|error| error.to_string())?;
    Ok(lines)
}

/// Allocates on the device of the calling thread's current context, in its primary context, as CUDA's runtime does.
fn on_device(kind: Kind, len: u64) -> Result<DeviceBuffer, String> {
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
unsafe extern "C" fn cableway_window_deallocate(memory: *mut Memory) {
    // SAFETY: the caller's promise.
    guarded((), || drop(unsafe { Box::from_raw(memory) }));
}
