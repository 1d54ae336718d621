//! Device memory for network devices (GPUDirect RDMA).

use super::Devices;
use crate::direct::{Allocation, DirectSupport, DmaBuf};
use crate::error::DeviceError;
use crate::location::{DeviceIndex, Location};

impl Devices {
    /// Returns the allocation around an address of device memory that was located at `at`, or `None` if the driver does
    /// not report it. Asks the driver each time, since other memory may be there by now.
    pub fn allocation(&self, at: &Location, address: *const u8) -> Option<Allocation> {
        let platform = self.platform_at(at)?;
        let id = platform.buffer_id(address).filter(|id| *id != 0)?;
        let (base, len) = platform.allocation_at(at, address)?;
        Some(Allocation { base: base as usize, len, id })
    }

    /// Checks whether the allocation of this id still exists at an address where it was.
    pub fn is_allocated(&self, id: u64, address: usize) -> bool {
        let address = std::ptr::with_exposed_provenance(address);
        self.platform_of_id(id).is_some_and(|platform| platform.buffer_id(address) == Some(id))
    }

    /// Returns the driver's report on a device's support of GPUDirect RDMA.
    ///
    /// # Errors
    /// There is no driver, or no such device.
    pub fn direct_support(&self, device: DeviceIndex) -> Result<DirectSupport, DeviceError> {
        let object = || format!("device {}", device.0);
        let driver = self.driver_of(device, "direct_support", object)?;
        driver.direct_support(device).map_err(|failure| driver.error(failure, object()))
    }

    /// Exports a dma-buf of `len` bytes at `address`, device memory that was located at `at`. Both numbers are
    /// multiples of the page size. The memory stays allocated while the dma-buf or anything made from it exists, even
    /// if the program frees it.
    ///
    /// # Errors
    /// The driver refused.
    pub fn dma_buf(&self, at: &Location, address: usize, len: usize) -> Result<DmaBuf, DeviceError> {
        let object = || format!("{len} bytes of device memory at {address:#x}");
        self.need_at(at, "dma_buf", object)?.within(at, object, |driver| driver.dma_buf(address as u64, len))
    }

    /// Checks whether the driver lends the allocation around `address` to other drivers. Returns `None` if it does not
    /// say.
    pub fn direct_capable(&self, address: *const u8) -> Option<bool> {
        self.platforms().find_map(|platform| platform.driver()?.direct_capable(address as u64))
    }

    /// Waits until every device sees the data that a NIC has written into memory of the context of `at`. The CPU has
    /// seen the NIC's completion already. See [`WritesSeen`](crate::WritesSeen).
    ///
    /// # Errors
    /// The context is destroyed.
    pub fn flush_remote_writes(&self, at: &Location) -> Result<(), DeviceError> {
        let object = || "writes by other devices".to_owned();
        self.platform_at(at)
            .map_or(Ok(()), |platform| platform.within(at, object, |driver| driver.flush_remote_writes()))
    }

    /// Makes the driver's synchronous operations on the allocation around `address` complete before they return, which
    /// they otherwise do not always do. A NIC cannot wait for operations that it does not know about.
    /// # Errors
    /// The driver does not support this for the memory.
    pub fn synchronise_operations(&self, at: &Location, address: *const u8) -> Result<(), DeviceError> {
        let object = || format!("the allocation around {address:p}");
        let Some(platform) = self.platform_at(at) else { return Ok(()) };
        platform.within(at, object, |driver| driver.synchronise_operations(address as u64))
    }
}
