//! One vendor's devices in this process: everything that is decided about them, over the vendor's [`Driver`].
//!
//! Contract: every method may be called from any thread, with any or no context current, and leaves the caller's current
//! context as it was. None creates a context, but for `Platform::allocate` and [`Platform::report_costs`], which a
//! program calls that asks for exactly that. None aborts: failures come back as [`DeviceError`].

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
use crate::copies::{CopyQueue, Operation, Start};
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

/// The devices of one vendor in this process, as far as its driver is there.
pub(crate) struct Platform {
    /// Without a vendor in the build no value of this type exists, and the compiler leaves out all that it can do.
    #[cfg(not(any(feature = "cuda", feature = "double", test)))]
    _never: std::convert::Infallible,
    discovery: Box<dyn Discovery>,
    /// The state of each context, once there is a driver.
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

    /// False while the driver cannot turn up in this process. Looked at before each question.
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

    /// Loads and initialises the driver, on the program's demand.
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

    /// The driver, for what only makes sense with one.
    fn driver(&self, call: &'static str, object: impl Into<String>) -> Result<&'static dyn Driver, DeviceError> {
        self.discovery.driver().ok_or_else(|| DeviceError::no_driver(call, object))
    }

    /// The queue of the context to work in on memory that was found at `at`.
    fn queue(&self, at: &Location) -> Result<Arc<CopyQueue>, DeviceError> {
        let queue = self.queue_to_enter(at)?;
        if queue.workspace.context.alive() { Ok(queue) } else { Err(context_is_gone(at)) }
    }

    /// The same, for a caller that enters its context at once, which finds out whether it still exists.
    fn queue_to_enter(&self, at: &Location) -> Result<Arc<CopyQueue>, DeviceError> {
        let object = || format!("{at:?}");
        let contexts = self.contexts().ok_or_else(|| DeviceError::no_driver("batch", object()))?;
        if !at.on_device() {
            let reason = "host memory needs no device to copy it".to_owned();
            return Err(DeviceError { call: "batch", object: object(), reason });
        }
        contexts.of(at).ok_or_else(|| context_is_gone(at))
    }

    /// Tells where memory lives that may be a device's.
    #[inline]
    pub(crate) fn classify(&self, address: *const u8) -> Location {
        self.contexts().map_or(Location::HOST, |contexts| classify::classify(contexts, address))
    }

    /// The allocation (first byte and length) around an address of device memory; none if the driver does not say.
    pub(crate) fn allocation(&self, address: *const u8) -> Option<(*const u8, usize)> {
        let (base, len) = self.discovery.driver()?.range(address as u64).ok()?;
        Some((std::ptr::with_exposed_provenance(base as usize), len))
    }

    /// The same of memory that was found at `at`, whatever context is current.
    pub(crate) fn allocation_at(&self, at: &Location, address: *const u8) -> Option<(*const u8, usize)> {
        let queue = self.queue(at).ok()?;
        let _scope = queue.workspace.context.enter().ok()?;
        self.allocation(address)
    }

    /// The driver's id of the allocation at an address, never reused; none if it knows of none.
    pub(crate) fn buffer_id(&self, address: *const u8) -> Option<u64> {
        self.discovery.driver()?.buffer_id(address as u64)
    }

    /// The id of the context to work in on memory at `at`.
    pub(crate) fn context_id(&self, at: &Location) -> Result<u64, DeviceError> {
        Ok(self.queue(at)?.workspace.context.id)
    }

    /// Begins copies.
    pub(crate) fn batch(
        &self,
        at: &Location,
        direction: Direction,
        order: Order,
    ) -> Result<Box<Operation>, DeviceError> {
        let queue = self.queue(at)?;
        self.registrations.settle(&queue.workspace.context);
        Ok(queue.operation(Start { at: *at, direction, after: self.order.of(order) }))
    }

    /// As [`Devices::scratch`](crate::Devices::scratch).
    pub(crate) fn scratch(&self, at: &Location, len: usize) -> Result<Option<ScratchMemory>, DeviceError> {
        let queue = self.queue(at)?;
        let workspace = &queue.workspace;
        let made = ScratchMemory::allocate(&workspace.context, &workspace.default_stream, len);
        made.map_err(|failure| workspace.context.driver.error(failure, format!("{len} bytes of scratch memory")))
    }

    /// The ranges of host memory that are, or are to be, registered; none if the parameters say that none are.
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
            // Seen for the first time, it is measured.
            self.contexts().and_then(|contexts| contexts.active_primary(device));
            self.keeper.settle();
        }
        Ok(devices.into_iter().map(|device| self.keeper.report(driver, device)).collect())
    }

    /// Ends what is being measured; nothing is measured after that.
    pub(crate) fn stop_measuring(&self) {
        self.keeper.stop();
    }

    /// The identity of a device across processes.
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
