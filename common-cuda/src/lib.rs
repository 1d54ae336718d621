//! Device memory: what a pointer is, copies between device and host, host memory registered with the device's driver.
//!
//! Callers see [`Devices`], never a vendor. A vendor (CUDA today) is found at run time; without one every pointer is
//! host memory and nothing here costs more than a branch.
//!
//! No CPU ever dereferences a device pointer: a buffer is classified once, and its [`Location`] travels with it.

#[cfg(feature = "rocm")]
compile_error!("the feature `rocm` is a reserved name: devices of this vendor are not supported yet");

mod buffer;
mod copy;
mod costs;
#[cfg(feature = "cuda")]
mod cuda;
mod devices;
mod direct;
#[cfg(feature = "double")]
mod double;
mod error;
mod facts;
mod host;
mod host_pool;
mod host_ranges;
mod ipc;
mod location;
mod scratch;
mod spread;
mod strided;
mod vendor;

pub use buffer::{BufferKind, DeviceBuffer};
pub use copy::{Completion, CopyBatch, Direction, EngineWork, Order, Packing, Within};
pub use costs::{CopyCost, CostOrigin, CostReport, Costs, DeviceCosts, Known, PeerCosts};
pub use devices::{Devices, LIBDIR_VARIABLE, Moment};
pub use direct::{Allocation, DirectSupport, WritesSeen};
pub use error::DeviceError;
pub use facts::{DeviceFacts, Facts, Link};
pub use host::{BounceBuffer, BouncePool, HostRegistration};
pub use host_pool::{HostMemory, HostPool};
pub use ipc::{
    Answer, ExportKind, Exported, Exports, Given, Imports, MOST_PIECES, Mapped, MappingCounts, Reach, Wanted, WasMapped,
};
pub use location::{DeviceIndex, Location, MemoryClass};
pub use scratch::Scratch;
pub use spread::{BlockList, MOST_LISTED_BLOCKS, Spread};
pub use strided::{MAX_STRIDED_DIMENSIONS, Strided};
