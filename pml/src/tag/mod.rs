//! Messages with tags: matching, communicators, requests, and the calls of the engine.

mod arrive;
mod attached;
mod buffered;
mod communicator;
mod communicators;
mod deliver;
mod engine;
mod forked;
mod inbox;
mod inquire;
mod matching;
mod peer_memory;
mod persistent;
mod probe;
mod progress;
mod reach;
mod receive;
mod registry;
mod request;
mod send;
mod services;
mod start_send;
mod tasks;
mod wait;

pub use attached::AttachedBuffer;
pub use communicator::{Communicator, QueueLengths};
pub use engine::Engine;
pub(crate) use inbox::Mail;
pub(crate) use matching::Taken;
pub use peer_memory::{DeviceRange, ExposedMemory, Exposure, PeerHandle};
pub use probe::Message;
pub use request::{Hook, Request};
pub use send::SendMode;
pub(crate) use services::{Attention, Service};
pub use start_send::FastPath;
pub use tasks::Task;
