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

use super::super::context::{Context, Scope};
use super::super::pool::{self, Pool};
use super::super::status::Failure;
use super::{buffer_id, range};
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
    /// There until it is dropped.
    pool: Option<Pool>,
    /// By their owner's ids. Locked while one is imported or freed, so that none is imported twice at a time.
    in_use: Mutex<AHashMap<u64, InUse>>,
}

struct InUse {
    address: CUdeviceptr,
    /// The driver's id of it in this process.
    id: Option<u64>,
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
        Ok(Imported { context, pool: Some(pool), in_use: Mutex::default() })
    }

    /// The context is current.
    fn import(&self, exported: &Exported) -> Result<CUdeviceptr, Failure> {
        let gone = || Failure { call: "cuMemPoolImportPointer", code: Failure::INVALID_VALUE };
        let address = self.pool.as_ref().ok_or_else(gone)?.import_pointer(exported.handle)?;
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

    /// A scope in which to let go of something, in the context or, if that is gone, in none.
    fn calls(&self) -> Option<Scope> {
        match self.context.enter() {
            Ok(scope) => Some(scope),
            Err(failure) if failure.context_gone() => Some(Scope::without_context(self.context.driver)),
            Err(_) => None,
        }
    }

    /// In such a scope.
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

impl Drop for Imported {
    fn drop(&mut self) {
        let Some(_scope) = self.calls() else { return };
        // A reset of the device destroys its pools, whose handles may be others' by now.
        if let Some(pool) = self.pool.take()
            && !self.context.alive()
        {
            pool.forget();
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
                let id = buffer_id(driver, std::ptr::with_exposed_provenance(address as usize));
                in_use.insert(exported.buffer_id, InUse { address, id, len: exported.len, users: 1 });
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
            let id = in_use.remove(&self.buffer_id).and_then(|gone| gone.id);
            // Where the context is gone, the device may have been reset, and the address be another's.
            let Some(_scope) = self.pool.calls() else { return };
            let address = std::ptr::with_exposed_provenance(self.address as usize);
            if id.is_some() && buffer_id(self.pool.context.driver, address) == id {
                self.pool.free(self.address);
            }
        }
    }
}
