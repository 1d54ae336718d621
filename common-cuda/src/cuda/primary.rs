//! Primary contexts that we retain, because the program asks for device memory of ours.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUctx_st, CUdevice, CUmemoryPool};
use parking_lot::Mutex;

use super::context::{Handle, Scope, id_of};
use super::driver::Driver;
use super::info;
use super::pool::Pool;
use super::status::Failure;
use crate::location::DeviceIndex;

/// The primary contexts that buffers of ours are in. Each is retained until the end, not from buffer to buffer: to
/// make one takes a tenth of a second.
#[derive(Default)]
pub(super) struct Primaries {
    retained: Mutex<HashMap<DeviceIndex, Arc<Primary>>>,
}

impl Primaries {
    /// A device's primary context, activated if need be.
    pub(super) fn of(&self, driver: &'static Driver, index: DeviceIndex) -> Result<Arc<Primary>, Failure> {
        let mut retained = self.retained.lock();
        if let Some(primary) = retained.get(&index).filter(|primary| primary.alive()) {
            return Ok(primary.clone());
        }
        let primary = Arc::new(Primary::retain(driver, info::handle(driver, index)?)?);
        retained.insert(index, primary.clone());
        Ok(primary)
    }
}

/// A device's primary context, retained.
pub(super) struct Primary {
    pub(super) driver: &'static Driver,
    pub(super) device: CUdevice,
    handle: Handle<CUctx_st>,
    id: u64,
    /// Made when something is first allocated in it.
    shared_pool: Mutex<Option<Pool>>,
}

impl Primary {
    /// The device's primary context, if that is what this id is of: it stays until this is dropped, but for a reset of the
    /// device. None is activated.
    pub(super) fn if_it_is(driver: &'static Driver, index: DeviceIndex, id: u64) -> Option<Primary> {
        let device = info::handle(driver, index).ok()?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: fills in two integers.
        unsafe { driver.cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) }.ok()?;
        let primary = if active == 0 { None } else { Primary::retain(driver, device).ok() };
        primary.filter(|primary| primary.id == id)
    }

    fn retain(driver: &'static Driver, device: CUdevice) -> Result<Primary, Failure> {
        let mut handle: CUcontext = std::ptr::null_mut();
        // SAFETY: creates the context if nobody has; released on drop.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut handle, device) }?;
        let id = id_of(driver, handle)?;
        Ok(Primary { driver, device, handle: Handle(handle), id, shared_pool: Mutex::default() })
    }

    /// Whether it is what it was when we retained it: a reset of the device has ended it, and our claim on it.
    fn alive(&self) -> bool {
        id_of(self.driver, self.handle.0) == Ok(self.id)
    }

    /// A pool on the device whose memory can be shared, which lives as long as this.
    pub(super) fn shared_pool(&self) -> Result<CUmemoryPool, Failure> {
        let mut pool = self.shared_pool.lock();
        if pool.is_none() {
            *pool = Some(Pool::create(self.driver, self.device)?);
        }
        Ok(pool.as_ref().map_or(std::ptr::null_mut(), Pool::handle))
    }

    pub(super) fn enter(&self) -> Result<Scope, Failure> {
        if !self.alive() {
            return Err(Failure { call: "cuCtxGetId", code: Failure::CONTEXT_IS_DESTROYED });
        }
        Scope::enter(self.driver, self.handle.0)
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        *self.shared_pool.get_mut() = None;
        if !self.alive() {
            return;
        }
        // SAFETY: retained once by us.
        if let Err(failure) = unsafe { self.driver.cuDevicePrimaryCtxRelease(self.device) } {
            log::debug!("releasing a primary context: {}", self.driver.reason(failure));
        }
    }
}
