//! Handles of allocations, and other processes' allocations mapped here.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUipcMem_flags_enum, CUipcMemHandle, CUpointer_attribute_enum as Attribute};

use super::context::Context;
use super::driver::Driver;
use super::info;
use super::status::Failure;
use crate::error::DeviceError;
use crate::ipc::{ExportKind, Exported, NoExport};
use crate::location::DeviceIndex;
use crate::vendor::VendorMapping;

/// The driver's id of the allocation at an address; none if it knows of none.
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

/// The export of the allocation around `address`, which is `buffer_id`'s.
pub(super) fn export(
    context: &Context,
    device: Option<DeviceIndex>,
    address: *const u8,
    buffer_id: u64,
) -> Result<Exported, NoExport> {
    let driver = context.driver;
    let device = device.ok_or(NoExport::Kind)?;
    if !has_handle(driver, address) {
        return Err(NoExport::Kind);
    }
    let (mut base, mut len): (CUdeviceptr, usize) = (0, 0);
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    let made = context.enter().and_then(|_scope| {
        // SAFETY: fills in the range of the allocation.
        unsafe { driver.cuMemGetAddressRange(&raw mut base, &raw mut len, address as u64) }?;
        // SAFETY: the first byte of an allocation, whose handle is filled in.
        unsafe { driver.cuIpcGetMemHandle(&raw mut handle, base) }?;
        info::uuid(driver, device)
    });
    let refused = |failure| {
        let object = format!("the allocation around {address:p} on device {}", device.0);
        NoExport::Refused(driver.error(failure, object))
    };
    let device = made.map_err(refused)?;
    let handle = handle.reserved.map(|byte| byte as u8);
    Ok(Exported { kind: ExportKind::Legacy, device, base, len: len as u64, buffer_id, handle })
}

/// A mapping, closed when dropped.
pub(super) struct Mapping {
    context: Arc<Context>,
    address: CUdeviceptr,
}

impl Mapping {
    pub(super) fn open(context: Arc<Context>, exported: &Exported) -> Result<Mapping, DeviceError> {
        let driver = context.driver;
        let object = || format!("{} bytes of another process", exported.len);
        let handle = CUipcMemHandle { reserved: exported.handle.map(|byte| byte as _) };
        let flags = CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
        let mut address: CUdeviceptr = 0;
        let opened = context.enter().and_then(|_scope| {
            // SAFETY: fills in the address; the driver checks the handle.
            unsafe { driver.cuIpcOpenMemHandle(&raw mut address, handle, flags) }
        });
        // Codes that elsewhere tell of a context's end say here that the handle is not for this process or context.
        opened.map_err(|failure| driver.error(failure, object()))?;
        let mapping = Mapping { context, address };
        if !mapping.holds(exported.len) {
            let reason = "what the handle opens is shorter than its owner says".to_owned();
            return Err(DeviceError { call: "cuIpcOpenMemHandle", object: object(), reason });
        }
        Ok(mapping)
    }

    /// Whether so many bytes are there, as far as the driver tells.
    fn holds(&self, len: u64) -> bool {
        let (mut base, mut mapped): (CUdeviceptr, usize) = (0, 0);
        // SAFETY: fills in the range; any address may be asked about.
        let asked = unsafe { self.context.driver.cuMemGetAddressRange(&raw mut base, &raw mut mapped, self.address) };
        asked.is_err() || base.saturating_add(mapped as u64) >= self.address.saturating_add(len)
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
        // SAFETY: opened once by `open` in this context; whoever copies from or to it holds the mapping.
        let closed = self.context.enter().and_then(|_scope| unsafe { driver.cuIpcCloseMemHandle(self.address) });
        match closed {
            Ok(()) => {}
            // It went with its context.
            Err(failure) if failure.context_gone() || failure.code == Failure::INVALID_VALUE => {}
            Err(failure) => log::debug!("closing a mapping of another process's memory: {}", driver.reason(failure)),
        }
    }
}
