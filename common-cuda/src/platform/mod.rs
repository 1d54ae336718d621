//! The state of one vendor's devices in this process, over the vendor's [`Driver`]. [`Devices`](crate::Devices) decides
//! what to do with it.
//!
//! Contract: every method may be called from any thread, with any or no context current, and leaves the caller's
//! current context unchanged. Only [`Platform::primary`] creates contexts, for programs that ask for one. No method
//! aborts: failures are returned as [`DeviceError`].

mod classify;
mod contexts;
mod mappings;
mod pieces;

pub(crate) use mappings::Mapping;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_base::Parameters;

use self::contexts::Contexts;
use crate::context::{Primaries, Primary};
use crate::copies::CopyQueue;
use crate::costs::Costs;
use crate::driver::{Discovery, Driver, Failure, Numbering};
use crate::error::DeviceError;
use crate::facts::Vendor;
use crate::location::{DeviceIndex, Location};
use crate::mapping_gate::Gate;
use crate::measure::Keeper;
use crate::memory::Registrations;
use crate::settings::Settings;

/// The devices of one vendor in this process.
pub(crate) struct Platform {
    /// Without a vendor in the build this type has no value, and the compiler removes its code.
    #[cfg(not(any(feature = "cuda", feature = "rocm", feature = "double", test)))]
    _never: std::convert::Infallible,
    pub(crate) discovery: Box<dyn Discovery>,
    /// The same as the discovery's, for the decisions of each message.
    expected: &'static AtomicBool,
    numbers: &'static Numbering,
    /// The state of each context, once the driver is found.
    contexts: OnceLock<Contexts>,
    pub(crate) registrations: Arc<Registrations>,
    primaries: Primaries,
    pub(crate) register_host: bool,
    pub(crate) settings: Settings,
    pub(crate) keeper: Arc<Keeper>,
}

impl Platform {
    /// The devices of a vendor.
    #[cfg(any(feature = "cuda", feature = "rocm", feature = "double", test))]
    pub(crate) fn new(
        discovery: Box<dyn Discovery>,
        parameters: &Parameters,
        costs: &Arc<Costs>,
        gate: &Arc<Gate>,
    ) -> Platform {
        let settings = Settings::new(parameters);
        Platform {
            expected: discovery.expected(),
            numbers: discovery.numbers(),
            discovery,
            contexts: OnceLock::new(),
            registrations: Arc::default(),
            primaries: Primaries::default(),
            register_host: parameters.device_register_host,
            settings,
            keeper: Arc::new(Keeper::new(parameters, settings.kernels, costs.clone(), gate.clone())),
        }
    }

    /// Checks whether its driver may be in the process.
    #[inline]
    pub(crate) fn may_be_there(&self) -> bool {
        self.expected.load(Ordering::Relaxed) && !self.discovery.is_absent()
    }

    /// Checks whether a device is one of its devices. False before they are counted.
    #[inline]
    pub(crate) fn holds(&self, device: DeviceIndex) -> bool {
        self.numbers.holds(device)
    }

    /// Does the same after counting the devices if the driver is in the process.
    pub(crate) fn counts(&self, device: DeviceIndex) -> bool {
        self.driver().is_some_and(|driver| self.first_device(driver).is_ok()) && self.holds(device)
    }

    /// Returns the number of the first device.
    pub(crate) fn first_device(&self, driver: &dyn Driver) -> Result<u32, Failure> {
        self.numbers.first(|| driver.device_count())
    }

    /// Returns the devices' vendor, if the driver is in the process.
    pub(crate) fn vendor(&self) -> Option<Vendor> {
        self.driver().map(|driver| driver.library().vendor)
    }

    /// Returns the driver, if it is in the process.
    pub(crate) fn driver(&self) -> Option<&'static dyn Driver> {
        self.discovery.driver()
    }

    #[inline]
    pub(crate) fn contexts(&self) -> Option<&Contexts> {
        match self.contexts.get() {
            Some(contexts) => Some(contexts),
            None => self.first_contexts(),
        }
    }

    #[cold]
    fn first_contexts(&self) -> Option<&Contexts> {
        let driver = self.driver()?;
        Some(self.contexts.get_or_init(|| Contexts::new(driver, self.settings, self.keeper.clone())))
    }

    /// Returns the queue of the context to use for memory that was found at `at`.
    pub(crate) fn queue(&self, at: &Location) -> Result<Arc<CopyQueue>, DeviceError> {
        let queue = self.queue_to_enter(at)?;
        if queue.workspace.context.alive() { Ok(queue) } else { Err(context_is_gone(at)) }
    }

    /// Does the same for a caller that enters the context at once, which detects whether it still exists.
    pub(crate) fn queue_to_enter(&self, at: &Location) -> Result<Arc<CopyQueue>, DeviceError> {
        let object = || format!("{at:?}");
        let contexts = self.contexts().ok_or_else(|| DeviceError::no_driver("batch", object()))?;
        if !at.on_device() {
            let reason = "host memory is not copied by a device".to_owned();
            return Err(DeviceError { call: "batch", object: object(), reason });
        }
        contexts.of(at).ok_or_else(|| context_is_gone(at))
    }

    /// Calls the driver within the context of `at`.
    pub(crate) fn within<T>(
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

    /// Returns the location of memory that may be device memory.
    #[inline]
    pub(crate) fn classify(&self, address: *const u8) -> Location {
        self.contexts().map_or(Location::HOST, |contexts| classify::classify(contexts, address))
    }

    /// Returns where a device copies from and to page-locked memory, or `None` if the driver names no context of it.
    pub(crate) fn page_locked_in(&self, address: *const u8, len: usize) -> Option<Location> {
        classify::page_locked_in(self.contexts()?, address, len)
    }

    /// Returns the allocation (first byte and length) around an address of device memory, or `None` if the driver does
    /// not report it.
    pub(crate) fn allocation(&self, address: *const u8) -> Option<(*const u8, usize)> {
        let (base, len) = self.driver()?.range(address as u64).ok()?;
        Some((std::ptr::with_exposed_provenance(base as usize), len))
    }

    /// Does the same for memory that was found at `at`, whatever context is current.
    pub(crate) fn allocation_at(&self, at: &Location, address: *const u8) -> Option<(*const u8, usize)> {
        let queue = self.queue(at).ok()?;
        let _scope = queue.workspace.context.enter().ok()?;
        self.allocation(address)
    }

    /// Returns the driver's id of the allocation at an address, which is never reused, or `None` if there is no
    /// allocation.
    pub(crate) fn buffer_id(&self, address: *const u8) -> Option<u64> {
        self.driver()?.buffer_id(address as u64)
    }

    /// Returns the id of the context to use for memory at `at`.
    pub(crate) fn context_id(&self, at: &Location) -> Result<u64, DeviceError> {
        Ok(self.queue(at)?.workspace.context.id)
    }

    /// Returns the retained primary context of a device, in which Cableway allocates buffers for the program.
    pub(crate) fn primary(&self, device: DeviceIndex) -> Result<Arc<Primary>, DeviceError> {
        let object = || format!("device {}", device.0);
        let driver = self.driver().ok_or_else(|| DeviceError::no_driver("allocate", object()))?;
        self.primaries.of(driver, device).map_err(|failure| driver.error(failure, object()))
    }
}

fn context_is_gone(at: &Location) -> DeviceError {
    let reason = "the context that the buffer was in is gone".to_owned();
    DeviceError { call: "batch", object: format!("{at:?}"), reason }
}

impl Drop for Platform {
    fn drop(&mut self) {
        // Its measurements use objects that are released below.
        self.keeper.stop();
    }
}
