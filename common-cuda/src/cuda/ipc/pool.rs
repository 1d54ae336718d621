//! Memory of pools that were made to be shared: the pool by file descriptor, an allocation by what fits in a handle.
//!
//! The driver wants each importer to have freed an allocation before its owner frees it. Its owner may do that as soon as
//! its message is over. So the pool stays imported, and an allocation in it only while a message is copied: whoever copies
//! drops it before anybody is told of the message's end. To free such memory neither waits nor orders anything, so it comes
//! when the copy is known to be done.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ahash::AHashMap;
use cudarc::driver::sys::{CUdevice, CUdeviceptr};
use parking_lot::Mutex;

use super::super::context::Context;
use super::super::pool::{self, Pool};
use super::super::status::Failure;
use super::range;
use crate::error::DeviceError;
use crate::ipc::{Exported, Given};
use crate::vendor::VendorMapping;

/// A descriptor of the pool of this handle, in which memory is allocated now.
pub(super) fn descriptor(context: &Context, handle: u64) -> Result<OwnedFd, DeviceError> {
    let driver = context.driver;
    let object = || format!("the memory pool {handle:#x}");
    let made = context.enter().and_then(|_scope| pool::descriptor(driver, handle));
    made.map_err(|failure| driver.error(failure, object()))?.ok_or_else(|| {
        let reason = "the driver gave no descriptor".to_owned();
        DeviceError { call: "cuMemPoolExportToShareableHandle", object: object(), reason }
    })
}

/// Another process's pool.
pub(super) struct Imported {
    context: Arc<Context>,
    pool: Pool,
    /// By their owner's ids. Locked while one is imported or freed, so that none is imported twice at a time.
    in_use: Mutex<AHashMap<u64, InUse>>,
}

struct InUse {
    address: CUdeviceptr,
    len: u64,
    users: usize,
}

impl Imported {
    /// Imports what the descriptor stands for, for the device of a context.
    pub(super) fn open(context: Arc<Context>, given: &[Given]) -> Result<Imported, DeviceError> {
        let driver = context.driver;
        let object = || "a memory pool of another process".to_owned();
        let [Given { descriptor, .. }] = given else {
            let reason = "its descriptor is not there".to_owned();
            return Err(DeviceError { call: "cuMemPoolImportFromShareableHandle", object: object(), reason });
        };
        let opened = context.enter().and_then(|_scope| {
            let mut device: CUdevice = 0;
            // SAFETY: fills in the current context's device.
            unsafe { driver.cuCtxGetDevice(&raw mut device) }?;
            Pool::import(driver, descriptor, device)
        });
        let pool = opened.map_err(|failure| driver.error(failure, object()))?;
        Ok(Imported { context, pool, in_use: Mutex::default() })
    }

    /// The context is current.
    fn import(&self, exported: &Exported) -> Result<CUdeviceptr, Failure> {
        let address = self.pool.import_pointer(exported.handle)?;
        match range(self.context.driver, address) {
            Ok((base, len)) if base.saturating_add(len as u64) >= address.saturating_add(exported.len) => Ok(address),
            Ok(_) => {
                self.free(address);
                Err(Failure { call: "cuMemPoolImportPointer", code: Failure::INVALID_VALUE })
            }
            // As far as the driver tells.
            Err(_) => Ok(address),
        }
    }

    /// The same.
    fn free(&self, address: CUdeviceptr) {
        let driver = self.context.driver;
        // SAFETY: imported by us and freed once; copies from and to it are done.
        match unsafe { driver.cuMemFree(address) } {
            Ok(()) => {}
            Err(failure) if failure.context_gone() => {}
            Err(failure) => log::debug!("letting go of memory of another process's pool: {}", driver.reason(failure)),
        }
    }
}

impl VendorMapping for Imported {
    fn address(&self) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn within(self: Arc<Self>, exported: &Exported) -> Result<Arc<dyn VendorMapping>, DeviceError> {
        let driver = self.context.driver;
        let object = || format!("{} bytes of a memory pool of another process", exported.len);
        let mut in_use = self.in_use.lock();
        let address = match in_use.get_mut(&exported.buffer_id) {
            Some(found) if found.len == exported.len => {
                found.users += 1;
                found.address
            }
            Some(_) => {
                let reason = "its length has changed".to_owned();
                return Err(DeviceError { call: "cuMemPoolImportPointer", object: object(), reason });
            }
            None => {
                let imported = self.context.enter().and_then(|_scope| self.import(exported));
                let address = imported.map_err(|failure| driver.error(failure, object()))?;
                in_use.insert(exported.buffer_id, InUse { address, len: exported.len, users: 1 });
                address
            }
        };
        drop(in_use);
        Ok(Arc::new(Allocation { pool: self, buffer_id: exported.buffer_id, address }))
    }
}

/// An allocation in it, while it is used.
struct Allocation {
    pool: Arc<Imported>,
    buffer_id: u64,
    address: CUdeviceptr,
}

impl VendorMapping for Allocation {
    fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut in_use = self.pool.in_use.lock();
        let Some(found) = in_use.get_mut(&self.buffer_id) else { return };
        found.users -= 1;
        if found.users == 0 {
            in_use.remove(&self.buffer_id);
            // A context that is gone has taken nothing of a pool along.
            let scope = self.pool.context.enter();
            self.pool.free(self.address);
            drop(scope);
        }
    }
}
