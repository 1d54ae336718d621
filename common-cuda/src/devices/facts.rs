//! Facts about devices, and the measured costs of their copies.

use std::sync::Arc;

use super::Devices;
use crate::costs::{CostReport, Costs};
use crate::cpu_mapping;
use crate::error::DeviceError;
use crate::facts::{DeviceFacts, Facts};
use crate::location::DeviceIndex;

impl Devices {
    /// Returns the facts about the driver and its devices. Call [`initialise`](Self::initialise) first.
    ///
    /// # Errors
    /// There is no driver, it is not initialised, or it fails to answer.
    pub fn facts(&self) -> Result<Facts, DeviceError> {
        let driver = self.driver("facts", || "the driver")?;
        let library = driver.library();
        let path = library.path.clone();
        let count = driver.device_count().map_err(|failure| driver.error(failure, path.display().to_string()))?;
        let indices = || (0..count).map(DeviceIndex);
        let facts = |index: DeviceIndex| {
            let facts = driver.device_facts(index);
            let facts = facts.map_err(|failure| driver.error(failure, format!("device {}", index.0)))?;
            Ok(DeviceFacts { mapped: cpu_mapping::describe(driver, index), ..facts })
        };
        let devices = indices().map(facts).collect::<Result<_, DeviceError>>()?;
        let links =
            indices().flat_map(|from| indices().filter(move |&to| to != from).map(move |to| driver.link(from, to)));
        let (version, simulated) = (library.version.clone(), library.simulated);
        Ok(Facts { path, version, simulated, devices, links: links.collect() })
    }

    /// Returns the identity of a device, which is the same in all processes and containers. A MIG instance has its own.
    ///
    /// # Errors
    /// There is no such device, or the driver is older than 11.4.
    pub fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], DeviceError> {
        let object = || format!("device {}", device.0);
        let driver = self.driver("uuid", object)?;
        driver.uuid(device).map_err(|failure| driver.error(failure, object()))
    }

    /// Returns the known costs of copies by devices. When a context of a device is first seen, a file is read, or a
    /// measurement begins.
    pub fn costs(&self) -> Arc<Costs> {
        self.platform().map(|platform| platform.keeper.costs.clone()).unwrap_or_default()
    }

    /// Reports the known costs of each device, and their source. Before that, it measures and stores the unknown costs
    /// of the devices in `measure`, and creates their contexts if necessary. Call [`initialise`](Self::initialise)
    /// first.
    ///
    /// # Errors
    /// There is no driver, or a device has no memory for a context.
    pub fn report_costs(&self, measure: &[DeviceIndex]) -> Result<Vec<CostReport>, DeviceError> {
        let platform = self.need("report_costs", || "the driver")?;
        let driver = self.driver("report_costs", || "the driver")?;
        let devices: Vec<DeviceIndex> = self.facts()?.devices.iter().map(|device| device.index).collect();
        for &device in measure {
            platform.primary(device)?;
            // The first use of the context starts the measurement.
            platform.contexts().and_then(|contexts| contexts.active_primary(device));
            platform.keeper.settle();
        }
        Ok(devices.into_iter().map(|device| platform.keeper.report(driver, device)).collect())
    }

    /// Stops measurements, for a program that is about to end. No measurement starts after that.
    pub fn stop_measuring(&self) {
        if let Some(platform) = self.platform() {
            platform.keeper.stop();
        }
    }
}
