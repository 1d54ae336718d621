//! Device memory: what a pointer is, copies between device and host, host memory registered with the device's driver.
//!
//! Callers see [`Devices`], never a vendor. A vendor (CUDA today) is found at run time; without one every pointer is
//! host memory and nothing here costs more than a branch.
//!
//! No CPU ever dereferences a device pointer: a buffer is classified once, and its [`Location`] travels with it.

mod devices;
mod location;
mod vendor;

pub use devices::Devices;
pub use location::{DeviceIndex, Location, MemoryClass};
pub use vendor::{Completion, CopyBatch, DeviceError, Direction, HostRegistration, Order};
