//! Sharing of allocations with other processes.
//!
//! Memory of `hipMalloc` is shared by a handle. Opening answers the base of the allocation, whatever address the handle
//! was made for, so the handle of the base is exported, and users add the offset. A process cannot open its own
//! handles. Closing waits for all streams of the device, so mappings are kept.

use super::library::HipDriver;
use super::table::IpcHandle;
use crate::driver::{DeviceInfo as _, Failure, Memory as _, Sharing};
use crate::exported::{ExportKind, Exported};
use crate::location::DeviceIndex;

impl Sharing for HipDriver {
    fn export(&self, device: DeviceIndex, address: u64, buffer_id: u64) -> Result<Option<Exported>, Failure> {
        let (base, len) = self.range(address)?;
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: the first byte of an allocation, whose handle is filled in.
        unsafe { self.hipIpcGetMemHandle(&raw mut handle, base) }?;
        let (kind, device, len) = (ExportKind::Hip, self.uuid(device)?, len as u64);
        Ok(Some(Exported { kind, device, base, len, buffer_id, handle: handle.0, pool: 0 }))
    }

    fn open_handle(&self, handle: &[u8; 64]) -> Result<u64, Failure> {
        let mut address = 0;
        // SAFETY: fills in the address; the library checks the handle.
        unsafe { self.hipIpcOpenMemHandle(&raw mut address, IpcHandle(*handle), self.release.ipc_flags()) }?;
        Ok(address)
    }

    unsafe fn close_handle(&self, address: u64) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.hipIpcCloseMemHandle(address) }
    }
}
