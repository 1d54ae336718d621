//! Host memory of ours that devices reach, for words by which the two talk.

use std::ffi::c_void;

use cudarc::driver::sys::{CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE};

use super::driver::Driver;
use super::status::Failure;

/// Zeroes at first. The memory is this process's own: a context that the program destroys does not take it along, so that
/// the words can be read at any time.
pub(super) struct HostWords {
    memory: *mut c_void,
    len: usize,
    /// Where the device finds it.
    device: u64,
}

// SAFETY: an address, which whoever asks for it uses as atomics.
unsafe impl Send for HostWords {}

impl HostWords {
    /// So many bytes, aligned to a page. The context is current.
    pub(super) fn new(driver: &Driver, len: usize) -> Result<HostWords, Failure> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(Failure { call: "mmap", code: Failure::OUT_OF_MEMORY });
        }
        let mut words = HostWords { memory, len, device: 0 };
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: mapped until `drop`, which is after `destroy` or after the context's end; fills in the address.
        unsafe {
            driver.cuMemHostRegister(memory, len, flags)?;
            driver
                .cuMemHostGetDevicePointer(&raw mut words.device, memory, 0)
                .inspect_err(|_| words.destroy(driver))?;
        }
        Ok(words)
    }

    pub(super) fn address<T>(&self) -> *mut T {
        self.memory.cast()
    }

    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// Lets the driver forget them in their context, which is current and in which nothing uses them any more.
    pub(super) fn destroy(&self, driver: &Driver) {
        // SAFETY: registered by `new`; no device uses it any more.
        if let Err(failure) = unsafe { driver.cuMemHostUnregister(self.memory) } {
            log::debug!("unregistering words in host memory: {}", driver.reason(failure));
        }
    }
}

impl Drop for HostWords {
    fn drop(&mut self) {
        crate::host_ranges::forget(self.memory as usize, self.len);
        // SAFETY: the whole mapping, which only this referred to.
        unsafe { libc::munmap(self.memory, self.len) };
    }
}
