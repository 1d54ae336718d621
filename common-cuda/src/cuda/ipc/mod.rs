//! How allocations are named to other processes, and other processes' allocations mapped here.

mod descriptor;
mod legacy;
mod pool;

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUpointer_attribute_enum as Attribute};

use super::context::Context;
use super::driver::Driver;
use super::info;
use super::status::Failure;
use crate::error::DeviceError;
use crate::ipc::{ExportKind, Exported, Given, NoExport};
use crate::location::DeviceIndex;
use crate::vendor::VendorMapping;

/// The driver's id of the allocation at an address; none if it knows of none. Memory that is mapped by `cuMemMap` has a
/// new one with each mapping.
pub(super) fn buffer_id(driver: &Driver, address: *const u8) -> Option<u64> {
    let mut id: u64 = 0;
    let mut attribute = Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as c_int;
    let mut place: *mut c_void = (&raw mut id).cast();
    // SAFETY: one attribute and its place; any address may be asked about.
    unsafe { driver.cuPointerGetAttributes(1, &raw mut attribute, &raw mut place, address as u64) }.ok()?;
    (id != 0).then_some(id)
}

/// Whether a legacy handle can be had. A driver that does not say is asked for the handle itself.
fn has_handle(driver: &Driver, address: *const u8) -> bool {
    let mut capable: c_uint = 0;
    let mut attribute = Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as c_int;
    let mut place: *mut c_void = (&raw mut capable).cast();
    // SAFETY: as above.
    let asked = unsafe { driver.cuPointerGetAttributes(1, &raw mut attribute, &raw mut place, address as u64) };
    asked.is_err() || capable != 0
}

/// What lies around an address: its first byte and its bytes. The context is current.
fn range(driver: &Driver, address: u64) -> Result<(u64, usize), Failure> {
    let (mut base, mut len): (CUdeviceptr, usize) = (0, 0);
    // SAFETY: fills in the range of the allocation, or of the mapping.
    unsafe { driver.cuMemGetAddressRange(&raw mut base, &raw mut len, address) }?;
    Ok((base, len))
}

/// The export of the allocation around `address`, which is `buffer_id`'s.
pub(super) fn export(
    context: &Context,
    device: Option<DeviceIndex>,
    address: *const u8,
    buffer_id: u64,
) -> Result<Exported, NoExport> {
    let driver = context.driver;
    let device = device.ok_or(NoExport::Kind)?;
    // Of an address that nothing is said of it may be a pool's, which is no mapping of its own.
    let (kind, pool) = match super::pool::of(driver, address as u64) {
        _ if has_handle(driver, address) => (ExportKind::Legacy, 0),
        Ok(0) if descriptor::is_shareable(context, device, address) => (ExportKind::Descriptor, 0),
        Ok(pool @ 1..) if super::pool::is_shareable(driver, address as u64) => (ExportKind::Pool, pool),
        _ => return Err(NoExport::Kind),
    };
    let made = context.enter().and_then(|_scope| {
        let (base, len) = range(driver, address as u64)?;
        let handle = match kind {
            ExportKind::Legacy => legacy::handle(driver, base)?,
            ExportKind::Descriptor => [0; 64],
            ExportKind::Pool => super::pool::export_pointer(driver, pool, base)?,
        };
        Ok(Exported { kind, device: info::uuid(driver, device)?, base, len: len as u64, buffer_id, handle, pool })
    });
    made.map_err(|failure| {
        let object = format!("the allocation around {address:p} on device {}", device.0);
        NoExport::Refused(driver.error(failure, object))
    })
}

/// A descriptor of what was exported; none if that is no more.
pub(super) fn descriptor(context: &Context, exported: &Exported) -> Result<Option<OwnedFd>, DeviceError> {
    descriptor::of(context, exported)
}

/// A descriptor of a pool in which memory is allocated now.
pub(super) fn pool_descriptor(context: &Context, pool: u64) -> Result<OwnedFd, DeviceError> {
    pool::descriptor(context, pool)
}

/// Maps another process's allocation, or imports its pool, of which descriptors were given where its kind is passed so.
pub(super) fn import(
    context: Arc<Context>,
    exported: &Exported,
    given: &[Given],
) -> Result<Box<dyn VendorMapping>, DeviceError> {
    match exported.kind {
        ExportKind::Legacy => Ok(Box::new(legacy::Mapping::open(context, exported)?)),
        ExportKind::Descriptor => Ok(Box::new(descriptor::Mapping::open(context, exported, given)?)),
        ExportKind::Pool => Ok(Box::new(pool::Imported::open(context, given)?)),
    }
}
