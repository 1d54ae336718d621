//! GPU-aware point-to-point messaging between processes, in the architecture of Open MPI.

mod attached;
mod buffer;
mod communicator;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod in_flight;
pub mod launcher;
mod modex;
mod progress;
mod scope;
mod selector;
mod transports;
mod world;

pub use attached::AttachedBuffer;
pub use buffer::{Data, DeviceSlice, DeviceSliceMut, RawBuffer, RecvBuffer, SendBuffer, TypedSlice, TypedSliceMut};
pub use communicator::{Communicator, Message};
pub use error::{Error, ErrorKind, Operation};
pub use modex::{StartedBy, pmix_library};
pub use scope::{Persistent, Request, Scope};
pub use selector::{Any, Sender, Status, Tag};
pub use transports::check_transports;
pub use world::{World, WorldOptions};

pub use cableway_base::parameters::{ENVIRONMENT_PREFIX, parse_size};
pub use cableway_base::{Counters, ParameterError, Parameters, Rank, Source};
pub use cableway_btl::ModexError;
pub use cableway_common_cuda::{
    BufferKind, DeviceBuffer, DeviceError, DeviceFacts, DeviceIndex, Devices, Facts, LIBDIR_VARIABLE, Link, MemoryClass,
};
pub use cableway_datatype::{self as datatype, Datatype, Layout, Predefined};
pub use cableway_pml::{Error as EngineError, Explained as Protocol, Side};

/// Keeps the README's program compiling.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
