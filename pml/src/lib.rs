//! The point-to-point messaging layer (PML): MPI's message semantics over any set of byte transfer layers.
//!
//! An [`Engine`] matches messages with receives, chooses a protocol for each, and schedules its fragments. It is driven
//! by two hosts, a Rust library and a component of Open MPI, and so owns neither the memory of [`Request`]s, nor a
//! thread, nor the way in which processes find each other. Buffers are raw memory here; lifetimes and types are the
//! hosts' concern.

mod batches;
mod buffer;
mod buffered;
mod communicator;
mod communicators;
mod completion;
mod connect;
mod copies;
mod detour;
mod engine;
mod error;
mod failover;
mod failure;
mod flow;
mod forked;
#[doc(hidden)]
pub mod fuzzing;
mod gathered;
mod invitation;
mod kept;
mod links;
mod matching;
mod orders;
mod persistent;
mod probe;
mod protocol;
mod reach;
mod receive;
mod region;
mod registry;
mod request;
mod room;
mod scratch;
mod send;
mod sleep;
mod table;
mod upcalls;
mod wait;
mod wire;

pub use buffer::Buffer;
pub use buffered::AttachedBuffer;
pub use communicator::{Communicator, QueueLengths};
pub use engine::{Config, Engine};
pub use error::{Abort, Error};
pub use probe::Message;
pub use protocol::{Explained, Form, Side, explain};
pub use request::{ANY, Hook, Outcome, PROC_NULL, Request, Status};
pub use send::{SendMode, Short};
