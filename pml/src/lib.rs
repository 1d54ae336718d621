//! The point-to-point messaging layer (PML): MPI's message semantics over any set of byte transfer layers.
//!
//! An [`Engine`] matches messages with receives, chooses a protocol for each, and schedules its fragments. It is driven
//! by two hosts, a Rust library and a component of Open MPI, and so owns neither the memory of [`Request`]s, nor a
//! thread, nor the way in which processes find each other. Buffers are raw memory here; lifetimes and types are the
//! hosts' concern.
//!
//! # Layers
//! Each uses only those above it in this list; `tests/repository.rs` holds them to it.
//! - `error`, `status`, `buffer`, `wire`: words that all share, and the bytes of headers.
//! - `core`: peers, links, operations, the control queue, flow control, failover, completion, device copies.
//! - `protocol`: how a message's data moves, one file for each protocol.
//! - `tag`: matching, communicators, requests, and the calls of [`Engine`].

mod buffer;
mod core;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod protocol;
mod status;
mod tag;
mod wire;

pub use crate::core::Config;
pub use buffer::Buffer;
pub use error::{Abort, Error};
pub use protocol::{Explained, Form, Side, explain};
pub use status::{ANY, Outcome, PROC_NULL, Status};
pub use tag::{AttachedBuffer, Communicator, Engine, FastPath, Hook, Message, QueueLengths, Request, SendMode};
