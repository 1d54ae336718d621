//! Exports of device memory to network devices and to other processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Mapping, Platform};
use crate::context::Context;
use crate::direct::DirectSupport;
use crate::driver::{Driver, Failure};
use crate::error::DeviceError;
use crate::exported::{Exported, NoExport, PieceDescriptor};
use crate::location::{DeviceIndex, Location};

impl Platform {
    /// As [`Devices::direct_support`](crate::Devices::direct_support).
    pub(crate) fn direct_support(&self, device: DeviceIndex) -> Result<DirectSupport, DeviceError> {
        let object = || format!("device {}", device.0);
        let driver = self.driver("direct_support", object())?;
        driver.direct_support(device).map_err(|failure| driver.error(failure, object()))
    }

    /// As [`Devices::dma_buf`](crate::Devices::dma_buf).
    pub(crate) fn dma_buf(&self, at: &Location, address: u64, len: usize) -> Result<OwnedFd, DeviceError> {
        let object = || format!("{len} bytes of device memory at {address:#x}");
        self.within(at, object, |driver| driver.dma_buf(address, len))
    }

    /// As [`Devices::direct_capable`](crate::Devices::direct_capable).
    pub(crate) fn direct_capable(&self, address: *const u8) -> Option<bool> {
        self.discovery.driver()?.direct_capable(address as u64)
    }

    /// As [`Devices::flush_remote_writes`](crate::Devices::flush_remote_writes).
    pub(crate) fn flush_remote_writes(&self, at: &Location) -> Result<(), DeviceError> {
        let object = || "what was written from outside".to_owned();
        self.within(at, object, |driver| driver.flush_remote_writes())
    }

    /// As [`Devices::synchronise_operations`](crate::Devices::synchronise_operations).
    pub(crate) fn synchronise_operations(&self, at: &Location, address: *const u8) -> Result<(), DeviceError> {
        let object = || format!("the allocation around {address:p}");
        self.within(at, object, |driver| driver.synchronise_operations(address as u64))
    }

    /// Exports the allocation of this id around an address. For pool memory, the export has the driver's handle of the
    /// pool instead of the pool's number. The driver may reuse that handle for other pools.
    pub(crate) fn export(&self, at: &Location, address: *const u8, buffer_id: u64) -> Result<Exported, NoExport> {
        let device = at.device.ok_or(NoExport::Kind)?;
        let object = || format!("the allocation around {address:p} on device {}", device.0);
        let exported = self.within(at, object, |driver| driver.export(device, address as u64, buffer_id));
        exported.map_err(NoExport::Refused)?.ok_or(NoExport::Kind)
    }

    /// Returns a descriptor of exported memory at `at`, for the process that maps it. Returns `None` if the memory was
    /// freed.
    pub(crate) fn descriptor(&self, at: &Location, exported: &Exported) -> Result<Option<OwnedFd>, DeviceError> {
        let object = || format!("{} bytes of virtual memory management at {:#x}", exported.len, exported.base);
        self.within(at, object, |driver| driver.descriptor(exported))
    }

    /// Returns a descriptor of the pool that contains memory at `at`, by the driver's handle of the pool.
    pub(crate) fn pool_descriptor(&self, at: &Location, pool: u64) -> Result<OwnedFd, DeviceError> {
        self.within(at, || format!("the memory pool {pool:#x}"), |driver| driver.pool_descriptor(pool))
    }

    /// Maps another process's allocation, or its pool, into the context of `into`. `given` are the descriptors, if it
    /// is passed by descriptors.
    pub(crate) fn import(
        &self,
        exported: &Exported,
        given: &[PieceDescriptor],
        into: &Location,
    ) -> Result<Arc<Mapping>, DeviceError> {
        let context: Arc<Context> = self.queue(into)?.workspace.context.clone();
        Mapping::open(context, exported, given)
    }

    /// Calls the driver within the context of `at`.
    fn within<T>(
        &self,
        at: &Location,
        object: impl FnOnce() -> String,
        call: impl FnOnce(&dyn Driver) -> Result<T, Failure>,
    ) -> Result<T, DeviceError> {
        let queue = self.queue(at)?;
        let context = &queue.workspace.context;
        let answer = context.enter().and_then(|_scope| call(context.driver));
        answer.map_err(|failure| context.driver.error(failure, object()))
    }
}
