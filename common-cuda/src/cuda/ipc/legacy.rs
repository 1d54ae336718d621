//! Handles that any process of the user may open: those of `cuMemAlloc`'s memory.

use std::ffi::c_uint;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUipcMem_flags_enum, CUipcMemHandle};

use super::super::context::Context;
use super::super::driver::Driver;
use super::super::status::Failure;
use crate::error::DeviceError;
use crate::ipc::Exported;
use crate::vendor::VendorMapping;

/// The handle of the allocation that begins at `base`. A context is current.
pub(super) fn handle(driver: &Driver, base: u64) -> Result<[u8; 64], Failure> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the first byte of an allocation, whose handle is filled in.
    unsafe { driver.cuIpcGetMemHandle(&raw mut handle, base) }?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

/// A mapping, closed when dropped.
pub(super) struct Mapping {
    context: Arc<Context>,
    address: CUdeviceptr,
}

impl Mapping {
    /// Opens the handle in the context.
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
