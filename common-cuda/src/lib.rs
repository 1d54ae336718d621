//! Device memory: classification of pointers, copies between device and host, and host memory registered with the
//! driver.
//!
//! Callers see [`Devices`], never a vendor. A vendor's driver is found at run time; without one every pointer is host
//! memory and nothing here costs more than a branch.
//!
//! No CPU ever dereferences a device pointer: a buffer is classified once, and its [`Location`] travels with it.
//!
//! # Layers
//! Each uses those below it only.
//!
//! | layer | modules |
//! |---|---|
//! | what other crates use | `devices`, `ipc` |
//! | one vendor's devices | `platform` |
//! | measured costs of copies | `measure` |
//! | copies and their mechanisms, reductions | `copies`; `kernels`, `copier`, `cpu_mapping` |
//! | memory that Cableway allocates, registered host memory | `memory` |
//! | default streams | `order` |
//! | contexts of the program | `context` |
//! | vendors | `cuda`, `hip`, `double` |
//! | the seam | `driver` |
//! | plain types | the rest |

#![cfg_attr(
    not(any(feature = "cuda", feature = "rocm")),
    allow(
        dead_code,
        unused_imports,
        reason = "without a vendor, or with the double alone, parts of the seam have no user"
    )
)]

#[cfg(feature = "rocm")]
mod code_objects;
mod context;
mod copier;
mod copies;
mod copy;
mod costs;
mod cpu_mapping;
#[cfg(feature = "cuda")]
mod cuda;
mod devices;
mod direct;
#[cfg(any(feature = "double", test))]
mod double;
mod driver;
mod error;
mod exported;
mod facts;
#[cfg(feature = "rocm")]
mod hip;
mod host_ranges;
mod ipc;
mod kernels;
mod loader;
mod location;
mod mapping_counts;
mod mapping_gate;
mod measure;
mod memo;
mod memory;
mod one_shot;
mod order;
mod platform;
mod reduction;
mod settings;
mod strided;
mod turns;
mod word_operation;

pub use copies::{Completion, CopyBatch, CopyShape, KernelRun};
pub use copy::{BlockCopy, Direction, EngineWork, Order, RowCopy, Within};
pub use costs::{CopyCost, CostOrigin, CostReport, Costs, DeviceCosts, Known, PeerCosts};
pub use devices::{
    CopyOrder, CopySlot, DeviceBuffer, DeviceSlots, Devices, HIP_LIBDIR_VARIABLE, HostSlots, LIBDIR_VARIABLE, Move,
    PooledScratch, ProgramStream, Scratch, ScratchPool, StreamQueries, StreamStep, StreamWords, WordsFile,
};
pub use direct::{Allocation, DirectSupport, DmaBuf, WritesSeen};
pub use error::DeviceError;
pub use exported::{ExportKind, Exported, PieceDescriptor};
pub use facts::{DeviceFacts, DriverFacts, Facts, Link, Vendor};
pub use ipc::{Answer, DescriptorRequest, Exports, Imports, MOST_PIECES, Mapped, Reach, WeakMapping};
pub use kernels::CopySlotNumber;
pub use location::{BufferKind, DeviceAllocation, DeviceIndex, Location, MemoryClass};
pub use mapping_counts::MappingCounts;
pub use mapping_gate::{Holder, MappingsAllowed, MappingsHeld};
pub use memory::{
    BlockList, BounceBuffer, BouncePool, HostMemory, HostPool, HostRegistration, MOST_LISTED_BLOCKS, Packing, Spread,
};
pub use one_shot::{Arrived, MOST_SLOTS, OneShot, SlotLayout, SlotWords};
pub use reduction::{Element, MOST_DESTINATIONS, MOST_SOURCES, ReduceOperation, Reduction};
pub use strided::{MAX_STRIDED_DIMENSIONS, Strided};
pub use turns::{Turns, Watch};
pub use word_operation::{WaitCondition, WordAccess, WordOperation};
