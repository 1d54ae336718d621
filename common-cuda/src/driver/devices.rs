//! A driver's description of itself and its devices.

use std::path::PathBuf;

use super::Failure;
use crate::direct::DirectSupport;
use crate::facts::{DeviceFacts, Link, Vendor};
use crate::location::DeviceIndex;

/// The loaded library.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(crate) vendor: Vendor,
    pub(crate) path: PathBuf,
    /// The version of its interface, as users write it.
    pub(crate) version: String,
    /// True for a test double.
    pub(crate) simulated: bool,
}

/// Limits of a device that affect how work is divided.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) multiprocessors: u32,
    /// The largest row pitch that one call copies; 0 if the driver does not say.
    pub(crate) max_pitch: usize,
    /// True if streams can write values of 64 bits, not only of 32 bits.
    pub(crate) wide_values: bool,
}

/// Queries about devices. None needs a current context, and none creates one.
pub(crate) trait DeviceInfo {
    fn library(&self) -> &Library;

    /// Returns the versions that measured costs are valid for: the interface's, and the kernel module's if it is
    /// readable.
    fn versions(&self) -> String;

    fn device_count(&self) -> Result<u32, Failure>;

    /// Returns the identity of a device, which is the same in all processes and containers.
    fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], Failure>;

    fn device_facts(&self, device: DeviceIndex) -> Result<DeviceFacts, Failure>;

    /// Describes a link. Properties that the driver does not report count as absent.
    fn link(&self, from: DeviceIndex, to: DeviceIndex) -> Link;

    fn direct_support(&self, device: DeviceIndex) -> Result<DirectSupport, Failure>;

    fn limits(&self, device: DeviceIndex) -> Result<Limits, Failure>;
}
