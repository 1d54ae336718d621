//! One vendor's devices in this process: all decisions about them, over the vendor's [`Driver`].
//!
//! Contract: every method may be called from any thread, with any or no context current, and leaves the caller's
//! current context unchanged. Only `Platform::allocate` and [`Platform::report_costs`] create contexts; programs call
//! them for that purpose. No method aborts: failures are returned as [`DeviceError`].

mod classify;
mod contexts;
mod direct;
mod kernels;
mod mappings;
mod order;

pub(crate) use mappings::Mapping;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use cableway_base::Parameters;

use self::contexts::Contexts;
use crate::context::Primaries;
use crate::copies::{CopyBatch, CopyQueue, Start};
use crate::copy::{Direction, Order};
use crate::costs::{CostReport, Costs};
use crate::cpu_mapping;
use crate::driver::{Discovery, Driver};
use crate::error::DeviceError;
use crate::facts::Facts;
use crate::location::{DeviceIndex, Location};
use crate::measure::Keeper;
use crate::memory::{Registrations, ScratchMemory};
use crate::order::OrderRule;
use crate::settings::Settings;

/// The devices of one vendor in this process.
pub(crate) struct Platform {
    /// Without a vendor in the build this type has no value, and the compiler removes its code.
    #[cfg(not(any(feature = "cuda", feature = "double", test)))]
    _never: std::convert::Infallible,
    discovery: Box<dyn Discovery>,
    /// The state of each context, once the driver is found.
    contexts: OnceLock<Contexts>,
    registrations: Arc<Registrations>,
    primaries: Primaries,
    order: OrderRule,
    register_host: bool,
    settings: Settings,
    keeper: Arc<Keeper>,
}

impl Platform {
    /// The devices of a vendor.
    #[cfg(any(feature = "cuda", feature = "double", test))]
    pub(crate) fn new(discovery: Box<dyn Discovery>, parameters: &Parameters) -> Platform {
        let settings = Settings::new(parameters);
        Platform {
            discovery,
            contexts: OnceLock::new(),
            registrations: Arc::default(),
            primaries: Primaries::default(),
            order: OrderRule::new(parameters.default_stream_order),
            register_host: parameters.device_register_host,
            settings,
            keeper: Arc::new(Keeper::new(parameters, settings.kernels)),
        }
    }

    /// False while the driver cannot appear in this process. Checked before each query.
    pub(crate) fn expected(&self) -> &'static AtomicBool {
        self.discovery.expected()
    }

    /// Checks whether a driver is in the process.
    pub(crate) fn present(&self) -> bool {
        self.discovery.driver().is_some()
    }

    /// Checks, at almost no cost, whether there is no driver, so that all memory is host memory.
    #[inline]
    pub(crate) fn is_absent(&self) -> bool {
        self.discovery.is_absent()
    }

    /// Loads and initialises the driver at the program's request.
    pub(crate) fn initialise(&self) -> Result<(), DeviceError> {
        self.discovery.initialise()
    }

    #[inline]
    fn contexts(&self) -> Option<&Contexts> {
        match self.contexts.get() {
            Some(contexts) => Some(contexts),
            None => self.first_contexts(),
        }
    }

    #[cold]
    fn first_contexts(&self) -> Option<&Contexts> {
        let driver = self.discovery.driver()?;
        Some(self.contexts.get_or_init(|| Contexts::new(driver, self.settings, self.keeper.clone())))
    }

    /// Returns the driver, for methods that need one.
    fn driver(&self, call: &'static str, object: impl Into<String>) -> Result<&'static dyn Driver, DeviceError> {
        self.discovery.driver().ok_or_else(|| DeviceError::no_driver(call, object))
    }

    /// Returns the queue of the context to use for memory that was found at `at`.
    fn queue(&self, at: &Location) -> Result<Arc<CopyQueue>, DeviceError> {
        let queue = self.queue_to_enter(at)?;
        if queue.workspace.context.alive() { Ok(queue) } else { Err(context_is_gone(at)) }
    }

    /// Does the same for a caller that enters the context at once, which detects whether it still exists.
    fn queue_to_enter(&self, at: &Location) -> Result<Arc<CopyQueue>, DeviceError> {
        let object = || format!("{at:?}");
        let contexts = self.contexts().ok_or_else(|| DeviceError::no_driver("batch", object()))?;
        if !at.on_device() {
            let reason = "host memory needs no device to copy it".to_owned();
            return Err(DeviceError { call: "batch", object: object(), reason });
        }
        contexts.of(at).ok_or_else(|| context_is_gone(at))
    }

    /// Returns the location of memory that may be device memory.
    #[inline]
    pub(crate) fn classify(&self, address: *const u8) -> Location {
        self.contexts().map_or(Location::HOST, |contexts| classify::classify(contexts, address))
    }

    /// Returns the allocation (first byte and length) around an address of device memory, or `None` if the driver does
    /// not report it.
    pub(crate) fn allocation(&self, address: *const u8) -> Option<(*const u8, usize)> {
        let (base, len) = self.discovery.driver()?.range(address as u64).ok()?;
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
        self.discovery.driver()?.buffer_id(address as u64)
    }

    /// Returns the id of the context to use for memory at `at`.
    pub(crate) fn context_id(&self, at: &Location) -> Result<u64, DeviceError> {
        Ok(self.queue(at)?.workspace.context.id)
    }

    /// Begins copies.
    pub(crate) fn batch(&self, at: &Location, direction: Direction, order: Order) -> Result<CopyBatch, DeviceError> {
        let queue = self.queue(at)?;
        self.registrations.settle(&queue.workspace.context);
        Ok(queue.batch(Start { at: *at, direction, after: self.order.of(order) }))
    }

    /// As [`Devices::scratch`](crate::Devices::scratch).
    pub(crate) fn scratch(&self, at: &Location, len: usize) -> Result<Option<ScratchMemory>, DeviceError> {
        let queue = self.queue(at)?;
        let workspace = &queue.workspace;
        let made = ScratchMemory::allocate(&workspace.context, &workspace.default_stream, len);
        made.map_err(|failure| workspace.context.driver.error(failure, format!("{len} bytes of scratch memory")))
    }

    /// Returns the host memory registrations, or `None` if the parameters forbid registration.
    pub(crate) fn registrations(&self) -> Option<Arc<Registrations>> {
        self.register_host.then(|| self.registrations.clone())
    }

    /// Returns the retained primary context of a device, in which Cableway allocates buffers for the program.
    pub(crate) fn primary(&self, device: DeviceIndex) -> Result<Arc<crate::context::Primary>, DeviceError> {
        let object = || format!("device {}", device.0);
        let driver = self.driver("allocate", object())?;
        self.primaries.of(driver, device).map_err(|failure| driver.error(failure, object()))
    }

    /// Returns the facts about the driver and its devices.
    pub(crate) fn facts(&self) -> Result<Facts, DeviceError> {
        let driver = self.driver("facts", "the driver")?;
        let library = driver.library();
        let path = library.path.clone();
        let count = driver.device_count().map_err(|failure| driver.error(failure, path.display().to_string()))?;
        let indices = || (0..count).map(DeviceIndex);
        let facts = |index: DeviceIndex| {
            let facts = driver.device_facts(index);
            let facts = facts.map_err(|failure| driver.error(failure, format!("device {}", index.0)))?;
            Ok(crate::facts::DeviceFacts { mapped: cpu_mapping::describe(driver, index), ..facts })
        };
        let devices = indices().map(facts).collect::<Result<_, DeviceError>>()?;
        let links =
            indices().flat_map(|from| indices().filter(move |&to| to != from).map(move |to| driver.link(from, to)));
        let (version, simulated) = (library.version.clone(), library.simulated);
        Ok(Facts { path, version, simulated, devices, links: links.collect() })
    }

    /// Returns the measured costs of copies.
    pub(crate) fn costs(&self) -> &Arc<Costs> {
        &self.keeper.costs
    }

    /// As [`Devices::report_costs`](crate::Devices::report_costs).
    pub(crate) fn report_costs(&self, measure: &[DeviceIndex]) -> Result<Vec<CostReport>, DeviceError> {
        let driver = self.driver("report_costs", "the driver")?;
        let devices: Vec<DeviceIndex> = self.facts()?.devices.iter().map(|device| device.index).collect();
        for &device in measure {
            self.primary(device)?;
            // The first use of the context starts the measurement.
            self.contexts().and_then(|contexts| contexts.active_primary(device));
            self.keeper.settle();
        }
        Ok(devices.into_iter().map(|device| self.keeper.report(driver, device)).collect())
    }

    /// Stops measurements. No measurement starts after that.
    pub(crate) fn stop_measuring(&self) {
        self.keeper.stop();
    }

    /// Returns the identity of a device, which is the same in all processes.
    pub(crate) fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], DeviceError> {
        let object = || format!("device {}", device.0);
        let driver = self.driver("uuid", object())?;
        driver.uuid(device).map_err(|failure| driver.error(failure, object()))
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
