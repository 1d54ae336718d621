//! Facts about drivers and their devices, for `cableway info`.

use std::fmt;
use std::path::PathBuf;

use crate::direct::DirectSupport;
use crate::location::DeviceIndex;

/// A vendor of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Vendor {
    /// Devices with the CUDA driver API.
    Nvidia,
    /// Devices with HIP.
    Amd,
}

impl Vendor {
    /// Returns the name of the interface to its devices.
    pub fn interface(self) -> &'static str {
        match self {
            Vendor::Nvidia => "CUDA",
            Vendor::Amd => "HIP",
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Vendor::Nvidia => "NVIDIA",
            Vendor::Amd => "AMD",
        })
    }
}

/// The drivers of this process and their devices.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// The drivers. There is at least one.
    pub drivers: Vec<DriverFacts>,
    /// The devices that this process may use. Those of one driver follow each other in its order.
    pub devices: Vec<DeviceFacts>,
    /// Every ordered pair of different devices of one vendor.
    pub links: Vec<Link>,
}

impl Facts {
    /// Checks whether a driver is a test double, so that figures of this process are none of a device.
    pub fn simulated(&self) -> bool {
        self.drivers.iter().any(|driver| driver.simulated)
    }
}

/// A driver.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DriverFacts {
    /// Whose devices it drives.
    pub vendor: Vendor,
    /// The library's file.
    pub path: PathBuf,
    /// The highest version of the driver's interface, such as `13.0`.
    pub version: String,
    /// True for a test double. None of its devices is real then.
    pub simulated: bool,
}

/// One device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// The vendor.
    pub vendor: Vendor,
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
    /// The vendor's name of its instruction set, such as `sm_90` or `gfx942`; empty if the driver does not say.
    pub architecture: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Its support of GPUDirect RDMA.
    pub direct: DirectSupport,
    /// How the CPU maps its memory for small copies, or why it does not.
    pub mapped: Result<String, String>,
    /// Why its streams cannot wait for messages by memory operations, if they cannot.
    pub stream_operations: Result<(), String>,
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
