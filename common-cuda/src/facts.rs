//! Facts about the driver and its devices, for `cableway info`.

use std::path::PathBuf;

use crate::direct::DirectSupport;
use crate::location::DeviceIndex;

/// A driver and its devices.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// The library's file.
    pub path: PathBuf,
    /// The highest version of the driver's interface, such as `13.0`.
    pub version: String,
    /// True for the test double. Nothing below is a real device then.
    pub simulated: bool,
    /// The devices that this process may use, in the driver's order.
    pub devices: Vec<DeviceFacts>,
    /// Every ordered pair of different devices.
    pub links: Vec<Link>,
}

/// One device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// Its index in this process.
    pub index: DeviceIndex,
    /// The marketing name.
    pub name: String,
    /// The identity that holds across processes and containers (a MIG instance's own).
    pub uuid: [u8; 16],
    /// `domain:bus:device.function`, for topology only.
    pub pci: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Its support of GPUDirect RDMA.
    pub direct: DirectSupport,
    /// The mechanism by which the CPU maps its memory for small copies, or the reason why it does not.
    pub mapped: Result<String, String>,
}

/// The abilities of one device on another device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The device that reads or writes.
    pub from: DeviceIndex,
    /// The device whose memory it is.
    pub to: DeviceIndex,
    /// True if kernels and copies reach the other device's memory directly.
    pub peer_access: bool,
    /// True if atomics over the link are native. NVLink has native atomics, PCIe does not.
    pub native_atomics: bool,
    /// The driver's relative rank of the link; 0 is the best of this machine.
    pub performance_rank: u32,
}
