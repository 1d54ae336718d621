//! Facts about devices, and the measured costs of their copies.

use std::sync::Arc;

use super::Devices;
use crate::costs::{CostReport, Costs};
use crate::cpu_mapping;
use crate::driver::Driver;
use crate::error::DeviceError;
use crate::facts::{DeviceFacts, DriverFacts, Facts, Vendor};
use crate::location::DeviceIndex;
use crate::platform::Platform;

impl Devices {
    /// Returns the facts about the driver and its devices. Call [`initialise`](Self::initialise) first.
    ///
    /// # Errors
    /// There is no driver, it is not initialised, or it fails to answer.
    pub fn facts(&self) -> Result<Facts, DeviceError> {
        let mut all = Facts { drivers: Vec::new(), devices: Vec::new(), links: Vec::new() };
        let mut failed = None;
        for platform in self.platforms() {
            match platform.driver().map(|driver| add_facts(platform, driver, &mut all)) {
                None | Some(Ok(())) => {}
                Some(Err(error)) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) if all.drivers.is_empty() => Err(error),
            None if all.drivers.is_empty() => Err(DeviceError::no_driver("facts", "the driver")),
            _ => Ok(all),
        }
    }

    /// Returns the identity of a device, which is the same in all processes and containers. A MIG instance has its own.
    ///
    /// # Errors
    /// There is no such device, or the driver is older than 11.4.
    pub fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], DeviceError> {
        let object = || format!("device {}", device.0);
        let driver = self.driver_of(device, "uuid", object)?;
        driver.uuid(device).map_err(|failure| driver.error(failure, object()))
    }

    /// Returns a number that stands for a device, by its [`uuid`](Self::uuid): never 0, and the same in all processes.
    /// Returns `None` if the driver does not tell.
    pub fn number(&self, device: DeviceIndex) -> Option<u64> {
        let identity = self.uuid(device).ok()?;
        let [high, low] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| identity[at + i])));
        Some((high ^ low.rotate_left(32)).max(1))
    }

    /// Returns the vendor of a device, or `None` without its driver.
    pub fn vendor(&self, device: DeviceIndex) -> Option<Vendor> {
        self.platform_of(device)?.vendor()
    }

    /// Returns the device of the calling thread's current context. Returns `None` without a driver of this vendor, and on
    /// NVIDIA devices without a current context.
    pub fn current_device(&self, vendor: Vendor) -> Option<DeviceIndex> {
        let platform = self.platforms().find(|platform| platform.vendor() == Some(vendor))?;
        platform.driver()?.current_device().ok()
    }

    /// Returns the known costs of copies by devices. When a context of a device is first seen, a file is read, or a
    /// measurement begins.
    pub fn costs(&self) -> Arc<Costs> {
        self.state.costs.clone()
    }

    /// Reports the known costs of each device, and their source. Before that, it measures and stores the unknown costs
    /// of the devices in `measure`, and creates their contexts if necessary. Call [`initialise`](Self::initialise)
    /// first.
    ///
    /// # Errors
    /// There is no driver, or a device has no memory for a context.
    pub fn report_costs(&self, measure: &[DeviceIndex]) -> Result<Vec<CostReport>, DeviceError> {
        let devices = self.facts()?.devices;
        let platform = |device| self.platform_of(device).ok_or_else(|| DeviceError::no_driver("report_costs", "it"));
        for &device in measure {
            let platform = platform(device)?;
            platform.primary(device)?;
            // The first use of the context starts the measurement.
            platform.contexts().and_then(|contexts| contexts.active_primary(device));
            platform.keeper.settle();
        }
        let report = |device: &DeviceFacts| {
            let driver = self.driver_of(device.index, "report_costs", || "the driver")?;
            Ok(platform(device.index)?.keeper.report(driver, device.index))
        };
        devices.iter().map(report).collect()
    }

    /// Stops measurements, for a program that is about to end. No measurement starts after that.
    pub fn stop_measuring(&self) {
        for platform in self.platforms() {
            platform.keeper.stop();
        }
    }
}

/// Adds a driver, its devices and their links.
fn add_facts(platform: &Platform, driver: &'static dyn Driver, all: &mut Facts) -> Result<(), DeviceError> {
    let library = driver.library();
    let path = library.path.clone();
    let first = platform.first_device(driver);
    let range = first.and_then(|first| Ok(first..first + driver.device_count()?));
    let range = range.map_err(|failure| driver.error(failure, path.display().to_string()))?;
    let indices = || range.clone().map(DeviceIndex);
    let facts = |index: DeviceIndex| {
        let facts = driver.device_facts(index);
        let facts = facts.map_err(|failure| driver.error(failure, format!("device {}", index.0)))?;
        let (mapped, stream_operations) = (cpu_mapping::describe(driver, index), driver.check_word_operations(index));
        Ok(DeviceFacts { mapped, stream_operations, ..facts })
    };
    let devices = indices().map(facts).collect::<Result<Vec<_>, DeviceError>>()?;
    let links = indices().flat_map(|from| indices().filter(move |&to| to != from).map(move |to| driver.link(from, to)));
    all.links.extend(links);
    all.devices.extend(devices);
    let (vendor, version, simulated) = (library.vendor, library.version.clone(), library.simulated);
    all.drivers.push(DriverFacts { vendor, path, version, simulated });
    Ok(())
}
