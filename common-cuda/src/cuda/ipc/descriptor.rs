//! Memory of virtual memory management (`cuMemCreate`, `cuMemMap`), passed by file descriptor.
//!
//! What is shared is physical memory: one that is mapped by another process stays, though its owner unmaps and releases
//! it, so that a mapping which outlives it shows old bytes and never memory that is somebody else's by now.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice, CUmemLocationType_enum as Place};

use super::super::context::Context;
use super::super::driver::Driver;
use super::super::info;
use super::super::mapping::{self, BY_DESCRIPTOR, Physical};
use super::super::status::Failure;
use super::{buffer_id, range};
use crate::error::DeviceError;
use crate::ipc::{Exported, Given};
use crate::location::DeviceIndex;
use crate::vendor::VendorMapping;

/// The physical memory that is mapped at an address, kept until it is dropped.
fn physical(driver: &Driver, address: u64) -> Result<Physical<'_>, Failure> {
    let mut handle = 0;
    let place: *mut c_void = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: fills in a handle; any address may be asked about.
    unsafe { driver.cuMemRetainAllocationHandle(&raw mut handle, place) }?;
    Ok(Physical::new(driver, handle))
}

/// Whether what is mapped at an address, which is of no pool, is memory of the device that was made to be passed by descriptor.
pub(super) fn is_shareable(context: &Context, device: DeviceIndex, address: *const u8) -> bool {
    let driver = context.driver;
    let made = context.enter().and_then(|_scope| {
        let device = info::handle(driver, device)?;
        let made = physical(driver, address as u64)?.properties()?;
        let here = made.location.type_ == Place::CU_MEM_LOCATION_TYPE_DEVICE && made.location.id == device;
        Ok(here && made.requestedHandleTypes.0 as c_int & BY_DESCRIPTOR != 0)
    });
    made.unwrap_or(false)
}

/// A descriptor of the memory that was exported; none if there is other memory, or none, by now.
pub(super) fn of(context: &Context, exported: &Exported) -> Result<Option<OwnedFd>, DeviceError> {
    let driver = context.driver;
    let made = context.enter().and_then(|_scope| {
        // Ids come once: if there is the same one after the memory was taken hold of, it is what was taken hold of.
        let physical = physical(driver, exported.base);
        let there = buffer_id(driver, std::ptr::with_exposed_provenance(exported.base as usize));
        if there != Some(exported.buffer_id) || range(driver, exported.base)? != (exported.base, exported.len as usize)
        {
            return Ok(None);
        }
        let mut descriptor: c_int = -1;
        // SAFETY: fills in a descriptor, which is what a handle of this kind is.
        unsafe {
            let place = (&raw mut descriptor).cast();
            driver.cuMemExportToShareableHandle(place, physical?.handle, BY_DESCRIPTOR, 0)
        }?;
        Ok(Some(descriptor))
    });
    let object = || format!("{} bytes of virtual memory management at {:#x}", exported.len, exported.base);
    match made.map_err(|failure| driver.error(failure, object()))? {
        // SAFETY: a descriptor that the driver has just made for us, which nobody else closes.
        Some(descriptor @ 0..) => Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor) })),
        Some(_) => {
            let reason = "the driver gave no descriptor".to_owned();
            Err(DeviceError { call: "cuMemExportToShareableHandle", object: object(), reason })
        }
        None => Ok(None),
    }
}

/// Another process's physical memory, mapped for the device of a context until dropped.
pub(super) struct Mapping {
    context: Arc<Context>,
    address: u64,
    len: usize,
}

impl Mapping {
    /// Maps what the descriptors stand for, side by side.
    pub(super) fn open(context: Arc<Context>, exported: &Exported, given: &[Given]) -> Result<Mapping, DeviceError> {
        let driver = context.driver;
        let object = || format!("{} bytes of another process", exported.len);
        let refused = |reason: &str| {
            let reason = reason.to_owned();
            DeviceError { call: "cuMemImportFromShareableHandle", object: object(), reason }
        };
        let whole = given.iter().try_fold(0_u64, |whole, piece| whole.checked_add(piece.len));
        if whole != Some(exported.len) || given.iter().any(|piece| piece.len == 0) {
            return Err(refused("what was given of it is less, or more"));
        }
        let len = usize::try_from(exported.len).map_err(|_| refused("it is longer than any memory"))?;
        let opened = context.enter().and_then(|_scope| {
            let mut device: CUdevice = 0;
            // SAFETY: fills in the current context's device.
            unsafe { driver.cuCtxGetDevice(&raw mut device) }?;
            let physical = given.iter().map(|Given { descriptor, len }| {
                let mut handle = 0;
                let shareable: *mut c_void = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
                // SAFETY: a handle of this kind is the descriptor itself, which is open; a handle is filled in.
                unsafe { driver.cuMemImportFromShareableHandle(&raw mut handle, shareable, BY_DESCRIPTOR) }?;
                Ok((Physical::new(driver, handle), *len as usize))
            });
            mapping::map(driver, device, &physical.collect::<Result<Vec<_>, Failure>>()?)
        });
        let address = opened.map_err(|failure| driver.error(failure, object()))?;
        Ok(Mapping { context, address, len })
    }
}

impl VendorMapping for Mapping {
    fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let driver = self.context.driver;
        // It belongs to no context, but the driver wants one.
        let scope = self.context.enter();
        // SAFETY: mapped once by `open`; whoever copies from or to it holds the mapping.
        if let Err(failure) = unsafe { mapping::unmap(driver, self.address, self.len) } {
            log::debug!("unmapping another process's memory: {}", driver.reason(failure));
        }
        drop(scope);
    }
}
