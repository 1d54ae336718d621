//! Mapping by dma-bufs, if the driver permits it.
//!
//! Driver 580 exports a dma-buf, but refuses to map it (`ENOTSUPP`). Drivers from 13.3 on may map it; that was never
//! tested. Cableway tries it and accepts a refusal.

use std::os::fd::AsRawFd;

use crate::driver::{Driver, Mapper, Refusal, View};
use crate::location::DeviceIndex;

pub(super) struct DmaBuf {
    driver: &'static dyn Driver,
}

impl DmaBuf {
    pub(super) fn find(driver: &'static dyn Driver, device: DeviceIndex) -> Result<DmaBuf, String> {
        driver.maps_dma_bufs(device).map(|()| DmaBuf { driver })
    }
}

impl Mapper for DmaBuf {
    fn name(&self) -> &'static str {
        "dma-buf"
    }

    fn map(&self, base: u64, len: usize) -> Result<Box<dyn View>, Refusal> {
        let page = crate::memory::page_size() as u64;
        let first = base & !(page - 1);
        let skipped = (base - first) as usize;
        let whole = (skipped + len).next_multiple_of(page as usize);
        let exported =
            self.driver.dma_buf(first, whole).map_err(|failure| Refusal::Allocation(self.driver.reason(failure)))?;
        let offset = libc::off_t::try_from(exported.offset).map_err(|error| Refusal::Allocation(error.to_string()))?;
        // SAFETY: a new mapping at an address of the kernel's choice. The descriptor is closed below: the mapping keeps
        // what it needs.
        let address = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                whole,
                protection,
                libc::MAP_SHARED,
                exported.descriptor.as_raw_fd(),
                offset,
            )
        };
        if address == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                // Some allocations need more address space than others.
                Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC) => Refusal::Allocation(error.to_string()),
                _ => Refusal::All(error.to_string()),
            });
        }
        Ok(Box::new(Pages { address: address.cast(), len: whole, skipped }))
    }
}

/// Returns the range of pages around an allocation.
struct Pages {
    address: *mut u8,
    len: usize,
    /// The number of bytes before the allocation.
    skipped: usize,
}

// SAFETY: an address, which its users touch with nobody else doing so.
unsafe impl Send for Pages {}

impl View for Pages {
    fn address(&self) -> *mut u8 {
        self.address.wrapping_add(self.skipped)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody uses any more.
        unsafe { libc::munmap(self.address.cast(), self.len) };
    }
}
