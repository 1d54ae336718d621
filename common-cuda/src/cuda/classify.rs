//! What a pointer is, as the driver knows it.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS_enum, CUcontext, CUmemorytype_enum, CUpointer_attribute_enum as Attribute,
};

use super::context::{Context, Contexts};
use super::ipc::buffer_id;
use super::status::Failure;
use crate::location::{DeviceIndex, Location, MemoryClass};

const HOST: c_uint = CUmemorytype_enum::CU_MEMORYTYPE_HOST as c_uint;

/// Asks the driver about an address: for no more than the id of its allocation where that turns out to be known.
pub(super) fn classify(contexts: &Contexts, address: *const u8) -> Location {
    if contexts.is_near_known(address)
        && let Some(location) = buffer_id(contexts.driver, address).and_then(|id| contexts.locate(id))
    {
        return location;
    }
    ask(contexts, address)
}

/// Asks for all that there is to know.
fn ask(contexts: &Contexts, address: *const u8) -> Location {
    let mut attributes = [
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_int,
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT as c_int,
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as c_int,
        Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as c_int,
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_int,
    ];
    let mut memory_type: c_uint = 0;
    let mut context: CUcontext = std::ptr::null_mut();
    let mut managed: c_uint = 0;
    let mut buffer_id: u64 = 0;
    let mut ordinal: c_int = -1;
    let mut places: [*mut c_void; 5] = [
        (&raw mut memory_type).cast(),
        (&raw mut context).cast(),
        (&raw mut managed).cast(),
        (&raw mut buffer_id).cast(),
        (&raw mut ordinal).cast(),
    ];
    // SAFETY: as many places as attributes, each of the attribute's type; any address may be asked about.
    let answer = unsafe {
        contexts.driver.cuPointerGetAttributes(
            attributes.len() as c_uint,
            attributes.as_mut_ptr(),
            places.as_mut_ptr(),
            address as u64,
        )
    };
    match answer {
        Ok(()) => {}
        // Nobody has initialised the driver, or the process is at its end: no device memory exists.
        Err(Failure { code: Failure::NOT_INITIALIZED | Failure::DEINITIALIZED, .. }) => return Location::HOST,
        Err(failure) => return unknown(contexts, address, failure),
    }
    let class = match memory_type {
        _ if managed != 0 => MemoryClass::Managed,
        0 => return Location::HOST,
        HOST => return Location { class: MemoryClass::Pinned, ..Location::HOST },
        _ => MemoryClass::Device,
    };
    let device = u32::try_from(ordinal).ok().map(DeviceIndex);
    let named = !context.is_null();
    let context = match context.is_null() {
        false => contexts.see_allocation(context, buffer_id).unwrap_or(0),
        // Pools and VMM name none. Where the device's primary context is not active, which happens to programs that
        // make contexts of their own, only the caller's thread knows which one the memory is used in.
        true => match device.and_then(|device| contexts.active_primary(device)) {
            Some(_) => 0,
            None => contexts.current().map_or(0, |context| context.id),
        },
    };
    let location = Location { class, device, context, buffer_id };
    // Of other memory the context may be another one next time, or the device.
    if named && class == MemoryClass::Device && context != 0 {
        contexts.remember(address, &location);
    }
    location
}

/// Whether a context's device may read and write what lies at an address.
pub(super) fn is_accessible(context: &Context, address: *const u8) -> bool {
    let mut flags: c_uint = 0;
    let mut attribute = Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS as c_int;
    let mut place: *mut c_void = (&raw mut flags).cast();
    // SAFETY: one place for one attribute of the place's type; any address may be asked about.
    let asked = context.enter().and_then(|_scope| unsafe {
        context.driver.cuPointerGetAttributes(1, &raw mut attribute, &raw mut place, address as u64)
    });
    let all = CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS_enum::CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    asked.is_ok() && flags == all as c_uint
}

/// An address about which the driver fails to answer, as it does once a kernel has crashed: not to be touched by the
/// CPU unless the CPU can.
fn unknown(contexts: &Contexts, address: *const u8, failure: Failure) -> Location {
    cableway_base::warn_once(&format!("cuda/classify/{}", failure.code), || {
        format!("the CUDA driver does not tell what memory is: {}", contexts.driver.reason(failure))
    });
    if readable_by_cpu(address) {
        return Location::HOST;
    }
    Location { class: MemoryClass::Device, device: None, context: 0, buffer_id: 0 }
}

/// Whether a byte can be read without a fault: the kernel tries.
fn readable_by_cpu(address: *const u8) -> bool {
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: 1 };
    // SAFETY: reads at most one byte into `byte`; a bad remote address is an error, not a fault.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    // Refused for another reason than the address (seccomp): as the class of nearly every buffer.
    read == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}
