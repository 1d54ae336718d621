//! The core: peers, their links, operations under way, the control queue, flow control, failover, completion, and
//! device copies. It knows nothing of tags, matching or protocols.
//!
//! The layers above keep their state of a peer in its [`Channel`] and receive events as a [`Host`].

mod batches;
mod completion;
mod connect;
mod control;
mod copies;
pub(crate) mod failover;
mod failure;
pub(crate) mod flow;
mod header;
mod host;
mod link;
mod links;
mod peer;
mod progress;
mod replacement;
mod replay;
mod shared;
mod sleep;
mod table;

pub(crate) use batches::Plain;
pub(crate) use completion::{Active, Completion, Done, Hook};
pub(crate) use connect::Peers;
pub(crate) use copies::Copies;
pub(crate) use failure::disconnect;
pub(crate) use header::{CreditHeader, Resume};
pub(crate) use host::Host;
pub(crate) use link::{Abilities, DEVICE_RDMA, Link};
pub(crate) use links::Links;
pub(crate) use peer::{Channel, Gone, Peer, PeerState, Slot};
pub(crate) use progress::turn;
pub use shared::Config;
pub(crate) use shared::Core;
pub(crate) use sleep::sleep;
pub(crate) use table::Table;
