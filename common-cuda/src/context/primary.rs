//! Primary contexts that Cableway retains for the buffers that it allocates for the program.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Scope;
use crate::driver::{Allocated, ContextHandle, Driver, Failure, Pool};
use crate::location::{BufferKind, DeviceIndex};

/// Holds the primary contexts of allocated buffers. Each is retained until the end, because the creation of a context
/// takes a tenth of a second.
#[derive(Default)]
pub(crate) struct Primaries {
    retained: Mutex<HashMap<DeviceIndex, Arc<Primary>>>,
}

impl Primaries {
    /// Returns a device's primary context. Activates it if necessary.
    pub(crate) fn of(&self, driver: &'static dyn Driver, device: DeviceIndex) -> Result<Arc<Primary>, Failure> {
        let mut retained = self.retained.lock();
        if let Some(primary) = retained.get(&device).filter(|primary| primary.alive()) {
            return Ok(primary.clone());
        }
        let primary = Arc::new(Primary::retain(driver, device)?);
        retained.insert(device, primary.clone());
        Ok(primary)
    }
}

/// A device's primary context, retained.
pub(crate) struct Primary {
    pub(crate) driver: &'static dyn Driver,
    device: DeviceIndex,
    handle: ContextHandle,
    id: u64,
    /// A pool on the device whose memory can be shared. It is created with the first allocation of that kind.
    shared_pool: Mutex<Option<Pool>>,
}

impl Primary {
    /// Returns the active primary context of the device if it has this id. Dropping the result releases it; only a
    /// device reset ends it earlier. Never activates a context.
    pub(crate) fn if_it_is(driver: &'static dyn Driver, device: DeviceIndex, id: u64) -> Option<Primary> {
        driver.active_primary(device).ok()??;
        Primary::retain(driver, device).ok().filter(|primary| primary.id == id)
    }

    fn retain(driver: &'static dyn Driver, device: DeviceIndex) -> Result<Primary, Failure> {
        let handle = driver.retain_primary(device)?;
        let id = driver.context_id(handle)?;
        Ok(Primary { driver, device, handle, id, shared_pool: Mutex::default() })
    }

    /// Checks whether the device still has the retained context. A device reset ends the context and the reference to
    /// it.
    fn alive(&self) -> bool {
        self.driver.context_id(self.handle) == Ok(self.id)
    }

    pub(crate) fn enter(&self) -> Result<Scope, Failure> {
        if !self.alive() {
            return Err(Failure::CONTEXT_DESTROYED);
        }
        Scope::enter(self.driver, self.handle)
    }

    /// Allocates memory of a kind in the context.
    pub(crate) fn allocate(&self, kind: BufferKind, len: usize) -> Result<Allocated, Failure> {
        let _scope = self.enter()?;
        self.driver.allocate_kind(kind, len, self.device, &mut self.shared_pool.lock())
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        let driver = self.driver;
        if let Some(pool) = self.shared_pool.get_mut().take()
            && let Err(failure) = driver.destroy_pool(pool)
        {
            log::debug!("destroying a memory pool: {}", driver.reason(failure));
        }
        if !self.alive() {
            return;
        }
        if let Err(failure) = driver.release_primary(self.device) {
            log::debug!("releasing a primary context: {}", driver.reason(failure));
        }
    }
}
