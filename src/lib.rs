//! GPU-aware point-to-point messaging between processes, in the architecture of Open MPI.
//!
//! # Quick start
//!
//! ```no_run
//! use cableway::{Any, World};
//!
//! # fn main() -> Result<(), cableway::Error> {
//! let world = World::init()?;
//! let everyone = world.communicator();
//! if everyone.rank() == 0 {
//!     everyone.send(&[1.5_f64, 2.5], 1, 7)?;
//! } else if everyone.rank() == 1 {
//!     let mut values = [0.0_f64; 2];
//!     let status = everyone.recv(&mut values, Any, 7)?;
//!     println!("{values:?} from rank {}", status.source);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `cableway run -n 2 -- PROGRAM` starts it as two processes on this machine. `mpirun`, `prterun` and `srun --mpi=pmix`
//! start it on several: the processes then find each other by PMIx, whose library is loaded when the program runs. A
//! program that is started by itself is a job of one process.
//!
//! # What can be sent
//!
//! - Slices, arrays and vectors of plain [`Data`]: numbers, and structures that derive `zerocopy`'s traits.
//! - [`DeviceBuffer`]s, whole or in part ([`DeviceSlice`], [`DeviceSliceMut`]), and any memory by its address
//!   ([`RawBuffer`], `unsafe`). Where memory lives is found out at each message; no copy in the program is needed.
//! - Elements of an MPI [`Datatype`] within a slice ([`TypedSlice`], [`TypedSliceMut`]) or by address
//!   ([`RawBuffer::typed`]).
//!
//! Calls that return before a message is done live in a [`Scope`], which keeps their buffers lent until they are.
//!
//! # Features
//!
//! `cuda` (on by default) is device memory of NVIDIA GPUs. Nothing needs to be installed for it: the driver is found
//! when the program runs, and without one everything else works. `rocm` is reserved.
//!
//! # Threads
//!
//! Every type but those of a scope can be used from any thread at a time. Messages move while some thread is in a call
//! of this library; the parameter `progress_thread` adds one that always is.
//!
//! # Errors and clean-up
//!
//! What fails is an [`Error`], never a panic. The death of a process is an error of every operation that involves it,
//! and the others go on. A job is left by dropping its [`World`] and what was made from it, after what was sent has
//! been handed over. Nothing is left behind by a process that is killed.

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
mod world;

pub use attached::AttachedBuffer;
pub use buffer::{Data, DeviceSlice, DeviceSliceMut, RawBuffer, RecvBuffer, SendBuffer, TypedSlice, TypedSliceMut};
pub use communicator::{Communicator, Message};
pub use error::{Error, ErrorKind, Operation};
pub use modex::{StartedBy, pmix_library};
pub use scope::{Persistent, Request, Scope};
pub use selector::{Any, Sender, Status, Tag};
pub use world::{World, WorldOptions};

#[doc(hidden)]
pub use cableway_base::parameters::FOR_TESTS;
pub use cableway_base::parameters::{ENVIRONMENT_PREFIX, parse_size};
pub use cableway_base::{Counters, ParameterError, Parameters, Rank, Source};
pub use cableway_btl::ModexError;
#[cfg(feature = "openib")]
pub use cableway_btl_openib::{DirectFacts as VerbsDirectFacts, Footprint as VerbsFootprint, PortFound as VerbsPort};
pub use cableway_common_cuda::{
    BufferKind, CopyCost, CostOrigin, CostReport, DeviceBuffer, DeviceCosts, DeviceError, DeviceFacts, DeviceIndex,
    Devices, Facts, Known, LIBDIR_VARIABLE, Link, MemoryClass, PeerCosts, WritesSeen,
};
pub use cableway_datatype::{self as datatype, Datatype, Layout, Predefined};
pub use cableway_pml::{Error as EngineError, Explained as Protocol, Form, Side};
pub use cableway_transports::check as check_transports;

/// Keeps the README's program compiling.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
