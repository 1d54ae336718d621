//! The library and its devices.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::{Out, Text};
use crate::current::{self, begin, is_active, note, peek_error, set_device, take_error};
use crate::device::{self, cuDeviceGetAttribute, cuDeviceGetCount, cuDeviceGetP2PAttribute, cuDeviceGetPCIBusId};
use crate::entry::{hip_api, through};
use crate::error::{Error, describe};
use crate::release;

/// `hipDeviceAttribute_t` and CUDA's attribute with the same meaning.
const ATTRIBUTES: [(c_int, c_int); 5] = [(23, 75), (58, 11), (61, 76), (63, 16), (87, 10)];
/// `hipDeviceAttributeCanUseStreamWaitValue`
const STREAM_VALUES: c_int = 10013;

/// Sizes of `hipDeviceProp_t` before 6.0 and since, and the offsets of `gcnArchName`.
const OLD: (usize, usize) = (792, 396);
const NEW: (usize, usize) = (1472, 1160);

fn properties(into: Out<u8>, ordinal: c_int, (size, arch): (usize, usize)) -> crate::error::Outcome {
    begin()?;
    device::get(ordinal)?;
    let mut bytes = vec![0_u8; size];
    let mut put = |at: usize, text: &str| bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, "simulated device");
    put(arch, &format!("{}:sramecc+:xnack-", release::architecture()));
    into.cast::<c_char>().set_bytes(bytes.into_iter())
}

hip_api! {
    fn hipInit(flags: c_uint) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        begin()
    }

    fn hipRuntimeGetVersion(version: Out<c_int>) {
        version.set(release::version())
    }

    fn hipDriverGetVersion(version: Out<c_int>) {
        version.set(release::version())
    }

    fn hipGetDeviceCount(count: Out<c_int>) {
        begin()?;
        // SAFETY: the caller's place.
        current::below(unsafe { cuDeviceGetCount(count) })
    }

    fn hipGetDevice(device: Out<c_int>) {
        device.set(current::device()?)
    }

    fn hipSetDevice(device: c_int) {
        set_device(device)
    }

    fn hipDeviceReset() {
        let device = current::device()?;
        // SAFETY: takes a number.
        current::below(unsafe { crate::context_calls::cuDevicePrimaryCtxReset_v2(device) })
    }

    fn hipDeviceSynchronize() {
        through!(crate::context_calls::cuCtxSynchronize)
    }

    fn hipDeviceGetName(name: Out<c_char>, len: c_int, device: c_int) {
        begin()?;
        // SAFETY: the caller's place.
        current::below(unsafe { device::cuDeviceGetName(name, len, device) })
    }

    fn hipDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) {
        begin()?;
        uuid.set(device::get(device)?.uuid())
    }

    fn hipDeviceTotalMem(bytes: Out<usize>, device: c_int) {
        begin()?;
        // SAFETY: the caller's place.
        current::below(unsafe { device::cuDeviceTotalMem_v2(bytes, device) })
    }

    fn hipDeviceGetPCIBusId(id: Out<c_char>, len: c_int, device: c_int) {
        begin()?;
        // SAFETY: the caller's place.
        current::below(unsafe { cuDeviceGetPCIBusId(id, len, device) })
    }

    fn hipDeviceGetByPCIBusId(device: Out<c_int>, id: Text) {
        begin()?;
        // SAFETY: the caller's text and place.
        current::below(unsafe { device::cuDeviceGetByPCIBusId(device, id) })
    }

    fn hipDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        begin()?;
        device::get(device)?;
        if attribute == STREAM_VALUES {
            return value.set(1);
        }
        let row = ATTRIBUTES.iter().find(|row| row.0 == attribute).ok_or(Error::INVALID_VALUE)?;
        // SAFETY: the caller's place.
        current::below(unsafe { cuDeviceGetAttribute(value, row.1, device) })
    }

    fn hipDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, source: c_int, destination: c_int) {
        begin()?;
        // CUDA's numbers count from 1.
        // SAFETY: the caller's place.
        current::below(unsafe { cuDeviceGetP2PAttribute(value, attribute + 1, source, destination) })
    }

    fn hipGetDeviceProperties(into: Out<u8>, device: c_int) {
        properties(into, device, OLD)
    }

    fn hipGetDevicePropertiesR0600(into: Out<u8>, device: c_int) {
        if release::major() < 6 { Err(Error::NOT_SUPPORTED) } else { properties(into, device, NEW) }
    }

    fn hipDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        flags.set_if_asked(0);
        active.set(is_active(device)?.into())
    }
}

/// Returns and clears the thread's last error.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's own name")]
extern "C" fn hipGetLastError() -> c_int {
    take_error()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's own name")]
extern "C" fn hipPeekAtLastError() -> c_int {
    peek_error()
}

/// The names are CUDA's.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's own name")]
extern "C" fn hipGetErrorName(code: c_int) -> *const c_char {
    let _ = note;
    describe(code).map_or(std::ptr::null(), |(name, _)| name.as_ptr())
}
