//! CUDA, through the driver API alone: nothing of the toolkit is needed to build or to run.

mod arena;
mod buffer;
mod classify;
mod context;
mod copier;
mod copy;
mod costs;
mod direct;
mod driver;
mod hardware;
mod host_words;
mod info;
mod ipc;
mod jobs;
mod kernels;
mod landing;
mod latest;
pub(crate) mod lists;
mod mapped;
mod mapping;
mod memo;
mod pieces;
mod pool;
mod primary;
mod recorded;
mod register;
mod scratch;
mod status;
mod stream;
mod stretch;
mod table;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use cableway_base::Parameters;
use cableway_base::parameters::{DefaultStreamOrder, DeviceProtocols};

use self::context::{Context, Contexts, Settings};
use self::copy::{Operation, Start};
use self::costs::Keeper;
use self::driver::{Discovery, Driver, LIBRARY};
use self::primary::Primaries;
use self::register::Registrations;
use crate::buffer::BufferKind;
use crate::copy::{Direction, EngineWork, Order};
use crate::costs::{CostReport, Costs, DeviceCosts};
use crate::direct::DirectSupport;
use crate::error::DeviceError;
use crate::facts::Facts;
use crate::ipc::{Exported, Given, NoExport};
use crate::location::{DeviceIndex, Location, MemoryClass};
use crate::spread::Spread;
use crate::vendor::{
    Vendor, VendorBatch, VendorBuffer, VendorCompletion, VendorMapping, VendorRegistration, VendorScratch,
};

/// The CUDA devices of this process, as far as a driver is in it.
pub(crate) struct Cuda {
    discovery: Discovery,
    /// What is kept per context, once there is a driver.
    contexts: OnceLock<Contexts>,
    registrations: Arc<Registrations>,
    primaries: Primaries,
    order_after_default_stream: bool,
    register_host: bool,
    settings: Settings,
    keeper: Arc<Keeper>,
}

impl Cuda {
    /// Looks for the driver; see [`driver`] for where. One that comes later is found if it is `expected`, or the machine
    /// may have a device.
    pub(crate) fn open(folder: Option<&Path>, parameters: &Parameters, expected: bool) -> Self {
        let kernels = parameters.device_kernels && parameters.device_protocols == DeviceProtocols::Auto;
        let cuda = Cuda {
            discovery: Discovery::default(),
            contexts: OnceLock::new(),
            registrations: Arc::default(),
            primaries: Primaries::default(),
            order_after_default_stream: parameters.default_stream_order == DefaultStreamOrder::Legacy,
            register_host: parameters.device_register_host,
            settings: Settings {
                kernels,
                patience: parameters.device_kernel_patience,
                kernel_limit: parameters.device_kernel_limit,
                copier: parameters.device_copier,
                copier_idle: parameters.device_copier_idle,
                copier_lease: parameters.device_copier_lease,
                landing: parameters.device_landing_patience,
                pack_latency: parameters.device_pack_latency,
                kernel_limit_set: parameters.is_set("device_kernel_limit"),
                list_memory: parameters.device_list_memory,
                mapped_read: parameters.device_mapped_read_limit,
                mapped_write: parameters.device_mapped_write_limit,
            },
            keeper: Arc::new(Keeper::new(parameters, kernels)),
        };
        if let Some(folder) = folder
            && let Err(reason) = cuda.discovery.load(&folder.join(LIBRARY))
        {
            cableway_base::warn_once(&format!("cuda/libdir/{}", folder.display()), || {
                format!("there is no usable CUDA driver in {}: {reason}", folder.display())
            });
        }
        if cuda.discovery.driver().is_none() {
            log::info!("no CUDA driver is loaded: all memory is host memory until the program loads one");
            latest::watch(|| cuda.discovery.is_absent());
        }
        if expected || hardware::may_be_here() {
            hardware::expect();
        }
        cuda
    }

    fn contexts(&self) -> Option<&Contexts> {
        let driver = self.discovery.driver()?;
        Some(self.contexts.get_or_init(|| Contexts::new(driver, self.settings, self.keeper.clone())))
    }

    /// The driver, for what only makes sense with one.
    fn driver(&self, call: &'static str, object: impl Into<String>) -> Result<&'static Driver, DeviceError> {
        self.discovery.driver().ok_or_else(|| DeviceError::no_driver(call, object))
    }

    /// What was measured of the device that a buffer is on.
    fn costs_at(&self, at: &Location) -> Option<&DeviceCosts> {
        self.keeper.costs.of(at.device?)
    }

    /// The context to work in on memory that was found at `at`.
    fn context_of(&self, at: &Location) -> Result<Arc<Context>, DeviceError> {
        let context = self.context_to_enter(at)?;
        if context.alive() { Ok(context) } else { Err(context_is_gone(at)) }
    }

    /// The same, for a caller that enters it at once, which finds out whether it still exists.
    fn context_to_enter(&self, at: &Location) -> Result<Arc<Context>, DeviceError> {
        let object = || format!("{at:?}");
        let contexts = self.contexts().ok_or_else(|| DeviceError::no_driver("batch", object()))?;
        let refused = |reason: &str| DeviceError { call: "batch", object: object(), reason: reason.to_owned() };
        if !at.on_device() {
            return Err(refused("host memory needs no device to copy it"));
        }
        let context = match (at.context, at.device) {
            (0, None) => contexts.current(),
            (0, Some(device)) => contexts.active_primary(device).or_else(|| contexts.current()),
            // Found by another `Devices`, it is one of these all the same.
            (id, device) => contexts
                .by_id(id)
                .or_else(|| device.and_then(|device| contexts.active_primary(device)).filter(|found| found.id == id))
                .or_else(|| contexts.current().filter(|found| found.id == id)),
        };
        context.ok_or_else(|| context_is_gone(at))
    }
}

fn context_is_gone(at: &Location) -> DeviceError {
    let reason = "the context that the buffer was in is gone".to_owned();
    DeviceError { call: "batch", object: format!("{at:?}"), reason }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // What it measures in is let go of below.
        self.keeper.stop();
    }
}

impl Vendor for Cuda {
    fn expected(&self) -> &'static AtomicBool {
        &hardware::EXPECTED
    }

    fn present(&self) -> bool {
        self.discovery.driver().is_some()
    }

    fn is_absent(&self) -> bool {
        latest::no_driver()
    }

    fn classify(&self, address: *const u8, _len: usize) -> Location {
        self.contexts().map_or(Location::HOST, |contexts| classify::classify(contexts, address))
    }

    fn allocation(&self, address: *const u8) -> Option<(*const u8, usize)> {
        let driver = self.discovery.driver()?;
        let (mut base, mut len) = (0, 0);
        // SAFETY: fills in the range; any address may be asked about.
        unsafe { driver.cuMemGetAddressRange(&raw mut base, &raw mut len, address as u64) }.ok()?;
        Some((std::ptr::with_exposed_provenance(base as usize), len))
    }

    fn batch(&self, at: &Location, direction: Direction, order: Order) -> Result<Box<dyn VendorBatch>, DeviceError> {
        let context = self.context_of(at)?;
        self.registrations.settle(&context);
        let first = order == Order::AfterDefaultStream;
        let start = Start { at: *at, direction, first, ordered: first && self.order_after_default_stream };
        Ok(Operation::begin(context, start))
    }

    fn default_stream(&self, at: &Location) -> Result<Option<Box<dyn VendorCompletion>>, DeviceError> {
        if !self.order_after_default_stream {
            return Ok(None);
        }
        Operation::after_legacy(self.context_to_enter(at)?)
    }

    fn moment(&self) -> u64 {
        context::moment()
    }

    fn settled_since(&self, at: &Location, moment: u64) -> bool {
        if !self.order_after_default_stream {
            return true;
        }
        // Of a context that is gone nothing is claimed; whether it is shows when something is copied.
        match at.context {
            0 => self.context_of(at).is_ok_and(|context| context.settled_since(moment)),
            id => self.contexts().is_some_and(|contexts| contexts.settled_since(id, moment)),
        }
    }

    fn ask_default_stream(&self, at: &Location) -> Result<bool, DeviceError> {
        if !self.order_after_default_stream {
            return Ok(true);
        }
        Operation::ask_legacy(&self.context_to_enter(at)?)
    }

    fn kernels(&self, at: &Location) -> bool {
        at.class == MemoryClass::Device && self.context_of(at).is_ok_and(|context| Operation::kernels(&context))
    }

    fn kernel_reaches(&self, at: &Location, address: *const u8) -> bool {
        // What a context allocates it reaches; of pools and virtual memory the driver has been told who does.
        at.class == MemoryClass::Device
            && self.settings.kernels
            && (at.context != 0 || self.context_of(at).is_ok_and(|context| classify::is_accessible(&context, address)))
    }

    fn kernel_packs(&self, at: &Location, (host, len): (*const u8, usize), work: EngineWork) -> bool {
        let settings = self.settings;
        if !settings.kernels
            || at.class != MemoryClass::Device
            || !kernels::is_worth_a_launch(work, len, settings.pack_latency, self.costs_at(at))
        {
            return false;
        }
        let Ok(context) = self.context_of(at) else { return false };
        self.registrations.settle(&context);
        self.registrations.holds(host as usize, len) && Operation::kernels(&context)
    }

    fn packs_between(&self, at: &Location, spread: &Spread) -> bool {
        if !self.settings.kernels || at.class != MemoryClass::Device {
            return false;
        }
        let Ok(context) = self.context_of(at) else { return false };
        self.registrations.settle(&context);
        let listed = match spread {
            Spread::Regular(_) => true,
            Spread::Listed(list, _) => self.registrations.holds(list.entries() as usize, list.bytes()),
        };
        listed && Operation::kernels(&context)
    }

    fn scratch(&self, at: &Location, len: usize) -> Result<Option<Box<dyn VendorScratch>>, DeviceError> {
        let context = self.context_of(at)?;
        let driver = context.driver;
        match scratch::Scratch::new(context, len) {
            Ok(found) => Ok(found.map(|found| Box::new(found) as Box<dyn VendorScratch>)),
            Err(failure) => Err(driver.error(failure, format!("{len} bytes of scratch memory"))),
        }
    }

    fn context_id(&self, at: &Location) -> Result<u64, DeviceError> {
        Ok(self.context_of(at)?.id)
    }

    fn buffer_id(&self, address: *const u8) -> Option<u64> {
        ipc::buffer_id(self.discovery.driver()?, address)
    }

    fn export(&self, at: &Location, address: *const u8, buffer_id: u64) -> Result<Exported, NoExport> {
        let context = self.context_of(at).map_err(NoExport::Refused)?;
        ipc::export(&context, at.device, address, buffer_id)
    }

    fn descriptor(&self, at: &Location, exported: &Exported) -> Result<Option<OwnedFd>, DeviceError> {
        ipc::descriptor(&*self.context_of(at)?, exported)
    }

    fn pool_descriptor(&self, at: &Location, pool: u64) -> Result<OwnedFd, DeviceError> {
        ipc::pool_descriptor(&*self.context_of(at)?, pool)
    }

    fn import(
        &self,
        exported: &Exported,
        given: &[Given],
        into: &Location,
    ) -> Result<Box<dyn VendorMapping>, DeviceError> {
        ipc::import(self.context_of(into)?, exported, given)
    }

    fn allocation_at(&self, at: &Location, address: *const u8) -> Option<(*const u8, usize)> {
        let context = self.context_of(at).ok()?;
        let _scope = context.enter().ok()?;
        self.allocation(address)
    }

    fn direct_support(&self, device: DeviceIndex) -> Result<DirectSupport, DeviceError> {
        let object = || format!("device {}", device.0);
        let driver = self.driver("direct_support", object())?;
        direct::support(driver, device).map_err(|failure| driver.error(failure, object()))
    }

    fn dma_buf(&self, at: &Location, address: u64, len: usize) -> Result<OwnedFd, DeviceError> {
        let context = self.context_of(at)?;
        direct::dma_buf(&context, address, len)
    }

    fn direct_capable(&self, address: *const u8) -> Option<bool> {
        direct::capable(self.discovery.driver()?, address)
    }

    fn flush_remote_writes(&self, at: &Location) -> Result<(), DeviceError> {
        let context = self.context_of(at)?;
        direct::flush(&context)
    }

    fn synchronise_operations(&self, at: &Location, address: *const u8) -> Result<(), DeviceError> {
        let context = self.context_of(at)?;
        direct::synchronise(&context, address)
    }

    unsafe fn register_host(&self, address: *mut u8, len: usize) -> Box<dyn VendorRegistration> {
        if !self.register_host {
            return Box::new(register::NotWanted);
        }
        // SAFETY: the caller's promise: the range stays mapped until the registration is dropped.
        Box::new(unsafe { self.registrations.add(address, len) })
    }

    fn initialise(&self) -> Result<(), DeviceError> {
        let driver = self.discovery.load(Path::new(LIBRARY)).map_err(|reason| DeviceError {
            call: "dlopen",
            object: LIBRARY.to_owned(),
            reason,
        })?;
        // SAFETY: may be called any number of times, from any thread.
        unsafe { driver.cuInit(0) }.map_err(|failure| driver.error(failure, driver.path.display().to_string()))
    }

    fn facts(&self) -> Result<Facts, DeviceError> {
        info::facts(self.driver("facts", "the driver")?)
    }

    fn costs(&self) -> Option<&Arc<Costs>> {
        Some(&self.keeper.costs)
    }

    fn report_costs(&self, measure: &[DeviceIndex]) -> Result<Vec<CostReport>, DeviceError> {
        let driver = self.driver("report_costs", "the driver")?;
        let devices: Vec<DeviceIndex> = self.facts()?.devices.iter().map(|device| device.index).collect();
        for &device in measure {
            let object = || format!("device {}", device.0);
            self.primaries.of(driver, device).map_err(|failure| driver.error(failure, object()))?;
            // Seen for the first time, it is measured.
            self.contexts().and_then(|contexts| contexts.active_primary(device));
            self.keeper.settle();
        }
        Ok(devices.into_iter().map(|device| self.keeper.report(driver, device)).collect())
    }

    fn stop_measuring(&self) {
        self.keeper.stop();
    }

    fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], DeviceError> {
        let object = || format!("device {}", device.0);
        let driver = self.driver("uuid", object())?;
        info::uuid(driver, device).map_err(|failure| driver.error(failure, object()))
    }

    fn allocate(
        &self,
        device: DeviceIndex,
        kind: BufferKind,
        len: usize,
    ) -> Result<Box<dyn VendorBuffer>, DeviceError> {
        let object = || format!("{len} bytes of {kind:?} memory on device {}", device.0);
        let driver = self.driver("allocate", object())?;
        let primary = self.primaries.of(driver, device);
        let buffer = primary.and_then(|primary| buffer::Buffer::new(primary, kind, len));
        Ok(Box::new(buffer.map_err(|failure| driver.error(failure, object()))?))
    }
}
