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
    /// True for the test double. No device below is real then.
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
    /// The product name.
    pub name: String,
    /// The UUID, which is the same in all processes and containers. A MIG instance has its own.
    pub uuid: [u8; 16],
    /// `domain:bus:device.function`, for topology only.
    pub pci: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Its support of GPUDirect RDMA.
    pub direct: DirectSupport,
    /// How the CPU maps its memory for small copies, or why it does not.
    pub mapped: Result<String, String>,
}

/// What one device can do with another device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The device that accesses the memory.
    pub from: DeviceIndex,
    /// The device that owns the memory.
    pub to: DeviceIndex,
    /// True if kernels and copies access the other device's memory directly.
    pub peer_access: bool,
    /// True if atomics over the link are native. NVLink has native atomics, PCIe does not.
    pub native_atomics: bool,
    /// The driver's relative rank of the link; 0 is the best of this machine.
    pub performance_rank: u32,
}
