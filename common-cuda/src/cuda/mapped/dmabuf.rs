//! dma-bufs that the driver lets be mapped.
//!
//! Driver 580 gives a descriptor, and refuses to map it (`ENOTSUPP`). That drivers from 13.3 on do map it we have not
//! seen; they are asked for one, and believed when they refuse.

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute_enum as Attribute};

use super::way::{Refusal, View, Way};
use crate::cuda::context::Context;
use crate::cuda::driver::{Driver, version_text};
use crate::cuda::{direct, info};

/// The first driver of which a dma-buf may be mapped.
const SINCE: c_int = 13_030;

pub(super) struct DmaBuf;

impl DmaBuf {
    pub(super) fn find(driver: &Driver, device: CUdevice) -> Result<DmaBuf, String> {
        if driver.version < SINCE {
            return Err(format!(
                "driver {} maps no dma-buf, {} may",
                version_text(driver.version),
                version_text(SINCE)
            ));
        }
        let attribute = Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
        let supported = info::attribute(driver, device, attribute);
        if supported.unwrap_or(0) != 0 { Ok(DmaBuf) } else { Err("the driver gives no dma-buf of it".to_owned()) }
    }
}

impl Way for DmaBuf {
    fn name(&self) -> &'static str {
        "dma-buf"
    }

    fn map(&self, context: &Context, base: u64, len: usize) -> Result<Box<dyn View>, Refusal> {
        let page = crate::host::page_size() as u64;
        let first = base & !(page - 1);
        let skipped = (base - first) as usize;
        let whole = (skipped + len).next_multiple_of(page as usize);
        let descriptor = direct::dma_buf(context, first, whole).map_err(|error| Refusal::Memory(error.to_string()))?;
        // SAFETY: a new mapping at an address of the kernel's choice. The descriptor is closed below: the mapping keeps
        // what it needs.
        let address = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), whole, protection, libc::MAP_SHARED, descriptor.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                // What it has room for differs from one to the next.
                Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC) => Refusal::Memory(error.to_string()),
                _ => Refusal::Way(error.to_string()),
            });
        }
        Ok(Box::new(Pages { address: address.cast(), len: whole, skipped }))
    }
}

/// The pages around an allocation.
struct Pages {
    address: *mut u8,
    len: usize,
    /// Bytes before the allocation.
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
        crate::host_ranges::forget(self.address as usize, self.len);
        // SAFETY: the whole mapping, which nobody uses any more.
        unsafe { libc::munmap(self.address.cast(), self.len) };
    }
}
