//! Parameters, and host memory that streams reach.

use std::ffi::{c_int, c_void};

use super::answer::{Failure, answer};
use super::descriptor::{argument, memory};
use crate::job::lock;

/// `GDS_PARAM_VERSION`
const PARAM_VERSION: c_int = 0;
/// `GDS_API_VERSION`
const VERSION: c_int = 2 << 16 | 2;
/// The driver registers whole pages.
const PAGE: usize = 4096;

/// `gds_mem_desc_t`
#[repr(C)]
struct Memory {
    original: u64,
    device: u64,
    host: *mut c_void,
    bar: *mut c_void,
    flags: c_int,
    size: usize,
    /// The component's registration.
    registration: *mut c_void,
}

/// # Safety
/// As `mp_query_param`, here and below.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_query_param(parameter: c_int, value: *mut c_int) -> c_int {
    answer("gds_query_param", || {
        // SAFETY: the caller's promise.
        let value = unsafe { argument(value, "value") }?;
        if parameter != PARAM_VERSION {
            return Err(Failure::Invalid(format!("there is no parameter {parameter}: use GDS_PARAM_VERSION")));
        }
        *value = VERSION;
        Ok(())
    })
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_alloc_mapped_memory(out: *mut Memory, size: usize, flags: c_int) -> c_int {
    answer("gds_alloc_mapped_memory", || {
        // SAFETY: the caller's promise.
        let out = unsafe { argument(out, "desc") }?;
        match flags {
            memory::HOST => {}
            memory::GPU => {
                return Err(Failure::Unsupported(
                    "the CPU does not map device memory here: use GDS_MEMORY_HOST".to_owned(),
                ));
            }
            other => return Err(Failure::Invalid(format!("flags are {other:#x}: use GDS_MEMORY_HOST"))),
        }
        let len = size.max(1).checked_next_multiple_of(PAGE).filter(|len| *len <= isize::MAX as usize);
        let len = len.ok_or_else(|| Failure::Invalid(format!("size {size} is larger than any memory")))?;
        let mut locked = lock();
        let job = locked.job().map_err(Failure::Failed)?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let host = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if host == libc::MAP_FAILED {
            return Err(Failure::Failed(format!("the system has no {len} bytes: {}", std::io::Error::last_os_error())));
        }
        // SAFETY: mapped until it is released.
        let registration = unsafe { (job.component.memory_register)(host, len as u64) };
        job.registered |= !registration.is_null();
        if !job.reaches(host, len as u64) {
            // SAFETY: registered and mapped above; nobody has the addresses.
            unsafe { release(job.component, registration, host, len) };
            return Err(Failure::Unreached(
                "the driver does not register host memory, or no context is current: set a device first".to_owned(),
            ));
        }
        let device = host.expose_provenance() as u64;
        *out = Memory { original: device, device, host, bar: host, flags, size: len, registration };
        Ok(())
    })
}

/// # Safety
/// As above. Streams and kernels have passed what uses the memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn gds_free_mapped_memory(memory: *mut Memory) -> c_int {
    answer("gds_free_mapped_memory", || {
        // SAFETY: the caller's promise.
        let memory = unsafe { argument(memory, "desc") }?;
        if memory.host.is_null() {
            return Err(Failure::invalid("the memory is NULL, or was freed"));
        }
        let component = lock().job().map_err(Failure::Failed)?.component;
        // SAFETY: the caller's promise.
        unsafe { release(component, memory.registration, memory.host, memory.size) };
        let none = std::ptr::null_mut();
        *memory = Memory { original: 0, device: 0, host: none, bar: none, flags: 0, size: 0, registration: none };
        Ok(())
    })
}

/// # Safety
/// The memory was mapped and registered here, and is not used any more.
unsafe fn release(component: &crate::component::Component, registration: *mut c_void, host: *mut c_void, len: usize) {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if !registration.is_null() {
            (component.memory_release)(registration);
        }
        libc::munmap(host, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_libgdsyncs() {
        let mut value = 0;
        // SAFETY: valid arguments.
        unsafe {
            assert_eq!(gds_query_param(PARAM_VERSION, &raw mut value), 0);
            assert_eq!(value, 0x2_0002);
            assert_eq!(gds_query_param(1, &raw mut value), libc::EINVAL);
            assert_eq!(gds_query_param(PARAM_VERSION, std::ptr::null_mut()), libc::EINVAL);
        }
    }
}
