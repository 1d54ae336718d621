//! GPU-aware messaging between processes, in the architecture of Open MPI.
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
//! `cableway run -n 2 -- PROGRAM` starts the program as two processes on this machine. `mpirun`, `prterun` and
//! `srun --mpi=pmix` start it on several machines. The processes then find each other through PMIx; the PMIx library is
//! loaded when the program runs. A program started without a launcher is a job of one process.
//!
//! # What can be sent
//!
//! - Slices, arrays and vectors of plain [`Data`]: numbers, and structures that derive `zerocopy`'s traits.
//! - [`DeviceMemory`]: a [`DeviceVec`] of elements ([`World::device`] allocates it), a [`DeviceBuffer`] of bytes, parts of
//!   them ([`DeviceSlice`], [`DeviceSliceMut`]), slices of the crate `cudarc` (feature `cudarc`). Any memory by its
//!   address ([`RawBuffer`], `unsafe`). The library looks up where memory resides at each message. The program does not
//!   copy device memory to the host.
//! - Elements of an MPI [`Datatype`] within a slice ([`TypedSlice`], [`TypedSliceMut`]) or by address
//!   ([`RawBuffer::typed`]).
//!
//! Nonblocking operations are started in a [`Scope`]. The scope borrows their buffers until they complete.
//!
//! # Collectives
//!
//! A [`Communicator`] has MPI's collective operations, on the same buffers. Memory may be on the host in some ranks and on
//! devices in others. Counts of parts ([`Parts`]) count the values of a slice or of device memory, or elements of a
//! datatype. Ranks that have data only for some others exchange it by
//! [`neighbor_alltoall`](Communicator::neighbor_alltoall). Reductions take slices and device memory of a [`Reducible`]
//! type, or other memory as [`Elements`] of such a type:
//!
//! ```no_run
//! use cableway::{ReduceOperation, World};
//!
//! # fn main() -> Result<(), cableway::Error> {
//! let world = World::init()?;
//! let mut gradients = world.device(0)?.zeroed::<f32>(1 << 20)?;
//! world.communicator().allreduce_in_place(&mut gradients, ReduceOperation::Sum)?;
//! # Ok(())
//! # }
//! ```
//!
//! Each member makes the same calls in the same order. A blocking call does not match one in a scope. Data that a rank
//! sends has the length that the receiver expects. Wrong arguments are errors before anything is sent, where one rank can
//! see that. If an operation fails in one rank, those that need its data get an error, too.
//!
//! # Active messages
//!
//! [`World::post_am`] sends a message to the handler that the target registered with [`World::am_handler`]. The handler
//! says where large data lands, in host or device memory, after it has seen the header ([`ActiveMessage::receive`]).
//!
//! # One-sided operations
//!
//! A rank registers memory ([`World::register`]) and sends its [`RemoteKey`] to others. They put into it, get from it and
//! change its words ([`Communicator::put_signal`], [`Communicator::get_signal`], [`Communicator::atomic`]), also in a
//! [`Scope`]. docs/one-sided.md says what is ordered and what is checked.
//!
//! # Streams
//!
//! [`World::stream`] takes a stream of the program. In a [`StreamScope`] the stream itself starts messages and waits for
//! them, in its order, and the CPU does not stop it.
//!
//! # Order
//!
//! Two messages from one rank to another on one communicator, whose tags both match a receive, are received in the order
//! in which they were sent. Messages on different communicators never match each other's receives.
//!
//! # Features
//!
//! `cuda` and `rocm` (both on by default) support device memory of NVIDIA's and of AMD's GPUs. The vendor's driver is loaded
//! when the program runs and is not needed to build. Without a driver, messages in host memory work as before. `cudarc`
//! (off by default) accepts that crate's slices as [`DeviceMemory`].
//!
//! # Threads
//!
//! [`World`] and [`Communicator`] can be used from several threads at a time. A [`Scope`] and its requests belong to the
//! thread that opened the scope. [`World::worker`] makes another world of the same processes, for a thread that sends many
//! small messages: it waits for no lock of the other threads. Messages progress only while a thread is in a call of this library. Set the parameter
//! `progress_thread` for a background thread that progresses them all the time.
//!
//! # Errors and clean-up
//!
//! Operations that fail return an [`Error`] and do not panic. When a process dies, every operation that involves it
//! fails; operations between other processes continue. Dropping the [`World`] and all its communicators leaves the job,
//! after the messages sent before have been handed over. A killed process leaves no files or shared memory behind.

mod active;
mod attached;
mod buffer;
mod collective;
mod communicator;
mod data;
mod device;
mod elements;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod in_flight;
mod inner;
pub mod launcher;
mod modex;
mod one_sided;
mod progress;
mod raw;
mod registration;
mod scope;
mod selector;
mod shared;
mod stream;
mod word;
mod worker;
mod world;

pub use active::{ActiveMessage, Poster};
pub use attached::AttachedBuffer;
pub use buffer::{RawBuffer, RecvBuffer, SendBuffer, TypedSlice, TypedSliceMut};
pub use collective::{Neighbors, Parts};
pub use communicator::{Communicator, Message};
pub use data::Data;
pub use device::{Device, DeviceMemory, DeviceMemoryMut, DeviceSlice, DeviceSliceMut, DeviceVec};
pub use elements::{Complex, Elements, ElementsMut, Located, RecvElements, Reducible, SendElements};
pub use error::{Collective, Error, ErrorKind, Operation};
pub use modex::{StartedBy, pmix_library};
pub use raw::{RawCollective, RawParts, RawPartsMut, RawPrepared, RawRequest, RawStream};
pub use registration::{RawMemory, Register, RegisteredMemory, Registration, ScopedRegistration};
pub use scope::{CollectiveRequest, Persistent, Request, Scope};
pub use selector::{Any, Sender, Status, Tag};
pub use shared::SharedVec;
pub use stream::{Lent, PreparedMessage, StreamCall, StreamRef, StreamRequest, StreamScope, StreamWord};
pub use word::{Atomic, Word};
pub use world::{World, WorldOptions};

/// The crate whose device memory the feature `cudarc` supports, in the version that it supports.
#[cfg(feature = "cudarc")]
pub use cudarc;

#[doc(hidden)]
pub use cableway_base::parameters::FOR_TESTS;
pub use cableway_base::parameters::{ENVIRONMENT_PREFIX, parse_size};
pub use cableway_base::{Counters, ParameterError, Parameters, Rank, Source};
pub use cableway_btl::{Distance, ModexError};
#[cfg(feature = "openib")]
pub use cableway_btl_openib::{DirectFacts as VerbsDirectFacts, Footprint as VerbsFootprint, PortFound as VerbsPort};
pub use cableway_coll::{
    EXPLAINED as EXPLAINED_COLLECTIVES, Element, Error as CollectiveError, Prediction, Question as CollectiveQuestion,
    ReduceOperation,
};
pub use cableway_common_cuda::{
    BufferKind, CopyCost, CostOrigin, CostReport, DeviceAllocation, DeviceBuffer, DeviceCosts, DeviceError,
    DeviceFacts, DeviceIndex, Devices, DriverFacts, Facts, HIP_LIBDIR_VARIABLE, Known, LIBDIR_VARIABLE, Link,
    MemoryClass, PeerCosts, Vendor, WaitCondition, WritesSeen,
};
pub use cableway_datatype::{self as datatype, Datatype, Layout, Predefined};
pub use cableway_pml::{
    ActiveCounts, Error as EngineError, Explained as Protocol, Form, HEADER_LIMIT as AM_HEADER_LIMIT, HostTimes,
    INLINE_LIMIT as AM_INLINE_LIMIT, Place, PreparedPath, PutPath, Refusal, RemoteKey, Side, Signal, SignalUpdate,
    Target, host_times,
};
pub use cableway_transports::check as check_transports;
pub use half::f16;

/// Compiles the program of the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles the program of the page about active messages as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../docs/active-messages.md")]
struct ActiveMessagesPage;

/// Compiles the program of the page about streams as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../docs/streams.md")]
struct StreamsPage;

/// Compiles the programs of the page about puts and prepared operations on streams as doctests.
#[cfg(doctest)]
#[doc = include_str!("../docs/streams-library.md")]
struct StreamsLibraryPage;
