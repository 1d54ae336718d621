//! Device memory for the accelerator framework of Open MPI 5.0, which its convertor and MPI-IO use.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{LazyLock, OnceLock};

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceError, DeviceIndex, Devices, MemoryClass};
use parking_lot::Mutex;

use crate::boundary::Code;
use crate::guard::guarded;
use crate::state;

/// Device memory that Open MPI allocated, by address.
static ALLOCATED: LazyLock<Mutex<HashMap<usize, DeviceBuffer>>> = LazyLock::new(Mutex::default);

/// Returns the engine's devices. Open MPI also calls the accelerator before the engine starts, and with another PML.
fn devices() -> &'static Devices {
    static OWN: OnceLock<Devices> = OnceLock::new();
    match state::engine() {
        Some(engine) => engine.devices(),
        None => OWN.get_or_init(|| Devices::open(&state::parameters().unwrap_or_default())),
    }
}

fn code_of(result: Result<(), DeviceError>) -> c_int {
    match result {
        Ok(()) => Code::Ok as c_int,
        Err(error) => {
            log::warn!("{error}");
            Code::Device as c_int
        }
    }
}

/// Returns whether this process may use device memory.
#[unsafe(no_mangle)]
extern "C" fn cableway_accelerator_start() -> bool {
    guarded(false, || {
        state::start_log(0);
        devices().expected()
    })
}

/// Returns 0 for host memory, 1 for device memory and 2 for managed memory.
///
/// # Safety
/// `device` is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_accelerator_check(address: *const c_void, device: *mut c_int) -> c_int {
    guarded(0, || {
        let location = devices().classify(address.cast(), 1);
        if let Some(DeviceIndex(index)) = location.device {
            // SAFETY: the caller's promise.
            unsafe { *device = index as c_int };
        }
        match location.class {
            MemoryClass::Host | MemoryClass::Pinned => 0,
            MemoryClass::Device => 1,
            MemoryClass::Managed => 2,
        }
    })
}

/// Returns the driver's id of an allocation, or 0 if it has none.
#[unsafe(no_mangle)]
extern "C" fn cableway_accelerator_buffer_id(address: *const c_void) -> u64 {
    guarded(0, || devices().classify(address.cast(), 1).buffer_id)
}

/// Copies between host and device memory in any direction and waits for the copy. The ranges may overlap.
///
/// # Safety
/// Both addresses are valid for `len` bytes, which no other thread accesses during the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_accelerator_copy(to: *mut c_void, from: *const c_void, len: usize) -> c_int {
    guarded(Code::Internal as c_int, || {
        let (to, from) = (to.cast::<u8>(), from.cast::<u8>());
        if len == 0 {
            return Code::Ok as c_int;
        }
        if (to as usize).abs_diff(from as usize) >= len {
            // SAFETY: the caller's promise; the ranges do not overlap.
            return code_of(unsafe { devices().copy(to, from, len) });
        }
        let mut bounce = Vec::<u8>::new();
        if bounce.try_reserve_exact(len).is_err() {
            return Code::Device as c_int;
        }
        let bounce = bounce.as_mut_ptr();
        // SAFETY: as above; the bounce buffer has room for `len` bytes, which the first copy writes.
        code_of(unsafe { devices().copy(bounce, from, len).and_then(|()| devices().copy(to, bounce, len)) })
    })
}

/// Allocates device memory. Returns null on failure.
#[unsafe(no_mangle)]
extern "C" fn cableway_accelerator_allocate(device: c_int, len: usize) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        let device = DeviceIndex(u32::try_from(device).unwrap_or(0));
        match DeviceBuffer::new(devices(), device, BufferKind::Device, len) {
            Ok(buffer) => {
                let address = buffer.as_device_ptr();
                ALLOCATED.lock().insert(address as usize, buffer);
                address.cast()
            }
            Err(error) => {
                log::warn!("{error}");
                std::ptr::null_mut()
            }
        }
    })
}

/// Frees memory from [`cableway_accelerator_allocate`]. Returns false for any other address.
#[unsafe(no_mangle)]
extern "C" fn cableway_accelerator_release(address: *mut c_void) -> bool {
    guarded(false, || {
        let buffer = ALLOCATED.lock().remove(&(address as usize));
        buffer.is_some()
    })
}
