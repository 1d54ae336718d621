//! The key of a device's figures: the driver, the device and its place, and its links to other devices.

use crate::costs::text::Key;
use crate::driver::{Driver, Failure};
use crate::location::DeviceIndex;

/// Returns the present key of a device. Fails for a device without an identity, as with drivers before 11.4.
pub(super) fn of(driver: &dyn Driver, device: DeviceIndex) -> Result<Key, Failure> {
    let uuid = driver.uuid(device)?;
    let facts = driver.device_facts(device)?;
    let others = (0..driver.device_count()?).map(DeviceIndex).filter(|other| *other != device);
    let peers = others.filter_map(|other| {
        let link = driver.link(device, other);
        let kind = if link.native_atomics { "nvlink" } else { "pcie" };
        let identity = driver.uuid(other).ok().filter(|_| link.peer_access)?;
        Some((identity, format!("{kind} {}", link.performance_rank)))
    });
    let place = one_line(&format!("{} {}", facts.pci, facts.name));
    Ok(Key { driver: driver.versions(), uuid, device: place, peers: peers.collect() })
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
