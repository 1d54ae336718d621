//! The point-to-point messaging layer (PML): MPI's message semantics over any set of byte transfer layers.
//!
//! An [`Engine`] matches messages with receives, chooses a protocol for each, and schedules its fragments. Two hosts
//! drive it: a Rust library and a component of Open MPI. So it owns no threads and no memory of [`Request`]s (but see
//! [`Streams`]), and it
//! does not decide how processes find each other. Buffers are raw memory here. The hosts take care of lifetimes and
//! types.
//!
//! # Layers
//! Each layer uses only the layers above it in this list. `tests/repository.rs` checks that.
//! - `error`, `refusal`, `status`, `buffer`, `wire`: types that all layers share, and the bytes of headers.
//! - `core`: peers, links, operations, the control queue, flow control, failover, completion, device copies.
//! - `protocol`: moves a message's data, one file for each protocol.
//! - `tag`: matching, communicators, requests, and the calls of [`Engine`].
//! - `am`: active messages.
//! - `shapes`: elements of memory that another process reaches.
//! - `rma`: one-sided operations, which are active messages.
//! - `osc`: windows, which are active messages, too.
//! - `stream`: messages in the order of a device's stream, with a thread of their own.

mod abort;
mod am;
mod buffer;
mod core;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod osc;
mod protocol;
mod refusal;
mod rma;
mod shapes;
mod status;
mod stream;
mod tag;
mod wire;

pub use crate::core::Config;
pub use abort::Abort;
pub use am::{ActiveMessages, Arrival, Counts as ActiveCounts, HEADER_LIMIT, INLINE_LIMIT, Poster};
pub use buffer::Buffer;
pub use cableway_btl::DeviceMapping;
pub use error::Error;
pub use osc::{Access, Change, Combine, Exposed, Host as WindowHost, KernelReduction, Then as WindowThen, Window};
pub use protocol::{Explained, Form, HostTimes, Side, explain, host_times};
pub use refusal::Refusal;
pub use rma::{
    AtomicOperation, OneSided, Place, Registered, RegisteredWord, RemoteKey, Signal, SignalUpdate, Target, Width,
};
pub use status::{ANY, NOTICE, Outcome, PROC_NULL, Status};
pub use stream::{
    KernelWords, Prepared, PreparedPath, PutPath, StartGate, Stream, StreamBatch, StreamJob, StreamMessage, Streams,
    is_stream_thread,
};
pub use tag::{
    AttachedBuffer, Communicator, DeviceRange, Engine, ExposedMemory, Exposure, FastPath, Hook, Message, PeerBlocks,
    PeerHandle, QueueLengths, Request, SendMode, Service, Task,
};
pub use wire::{NodeCard, RouteCost};
