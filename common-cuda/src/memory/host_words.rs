//! Registered host memory for words that host and device exchange.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use super::anonymous;
use crate::driver::{Driver, Failure, FailureKind};

/// The words are zero at first. The memory belongs to this process: it stays readable when the program destroys the
/// context.
pub(crate) struct HostWords {
    memory: *mut c_void,
    len: usize,
    /// The device address.
    device: u64,
}

// SAFETY: an address. Its users access the memory by atomics.
unsafe impl Send for HostWords {}
// SAFETY: as above.
unsafe impl Sync for HostWords {}

impl HostWords {
    /// Allocates this many bytes, aligned to a page. The context is current.
    pub(crate) fn new(driver: &dyn Driver, len: usize) -> Result<HostWords, Failure> {
        Self::register(anonymous::map(len, libc::MAP_POPULATE), driver, len)
    }

    /// Maps so many bytes of a file that other processes map, too. The context is current.
    pub(crate) fn of_file(driver: &dyn Driver, file: BorrowedFd<'_>, len: usize) -> Result<HostWords, Failure> {
        Self::register(anonymous::map_file(file, len), driver, len)
    }

    fn register(mapped: io::Result<NonNull<u8>>, driver: &dyn Driver, len: usize) -> Result<HostWords, Failure> {
        let memory = mapped.map_err(|_| Failure::found("mmap", FailureKind::OutOfMemory))?.as_ptr().cast();
        let mut words = HostWords { memory, len, device: 0 };
        // SAFETY: mapped until `drop`, which is after `destroy` or after the context's end.
        unsafe { driver.register_host(memory.cast(), len) }?;
        words.device = driver.device_address(memory.cast()).inspect_err(|_| words.destroy(driver))?;
        Ok(words)
    }

    pub(crate) fn address<T>(&self) -> *mut T {
        self.memory.cast()
    }

    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Unregisters the words in their context. The context is current and no longer uses them.
    pub(crate) fn destroy(&self, driver: &dyn Driver) {
        // SAFETY: registered by `new`; no device uses it any more.
        if let Err(failure) = unsafe { driver.unregister_host(self.memory.cast()) } {
            log::debug!("unregistering words in host memory: {}", driver.reason(failure));
        }
    }
}

impl Drop for HostWords {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which only this referred to.
        unsafe { libc::munmap(self.memory, self.len) };
    }
}
