//! Connection setup, by datagrams or by librdmacm.
//!
//! # Datagrams
//!
//! Each side sends a datagram with the numbers of the queue pairs that it has created for the peer.
//!
//! ```text
//! initiator                                    peer
//!   Hello (my queue pair, I know none of yours) ->
//!                                               creates its own, connects it to that one
//!                                            <- Hello (my queue pair, I know yours)
//!   connects its own, and may send
//!   Hello (my queue pair, I know yours)         -> may send
//! ```
//!
//! Either side may begin, or both at once: each pair of processes gets one connection. Every datagram carries the
//! sender's whole state. A side that still waits for its peer's state repeats its datagram. A side that has everything
//! only answers.
//!
//! When thousands of processes connect at once, most datagrams reach a process while it creates queue pairs. The
//! process therefore drains its few datagram buffers between any two pieces of work, and handles the datagrams before
//! it sends new requests ([`work_queue`]). A peer whose datagram was lost repeats it after a randomized pause
//! ([`handshake`]). `benches/openib/` simulates ten thousand processes.
//!
//! # librdmacm
//!
//! Devices without datagrams (iWARP) use the system's connection manager; a parameter can select it elsewhere, too. It
//! resolves the route to a peer's IP address and carries a connection request and its reply. One process is the active
//! side and sends the request; the other is the passive side. `role` decides when both send a request. Request and
//! reply carry `private_data`.
//!
//! iWARP adds two rules. The active side sends the first message, a greeting; the passive side must not send before it
//! has arrived. iWARP has no immediate data: greeting and goodbye are messages whose content only the two ends can
//! compute.
//!
//! A service thread makes the connections, so peers can connect to a process that computes. A peer that does not answer
//! is treated as dead.

mod command_queue;
mod common;
mod connector;
mod datagram_connector;
mod datagrams;
mod events;
mod handshake;
mod listener;
mod private_data;
mod rdmacm;
mod role;
mod service;
mod wire;
mod work_queue;

pub(crate) use command_queue::CommandQueue;
pub(crate) use events::hear as hear_event;
pub use handshake::{Due, Handshake, Step};
pub(crate) use private_data::{CmMessage, PrivateData};
pub(crate) use service::Service;
pub(crate) use wire::{HELLO, Hello};
pub use work_queue::{Work, WorkQueue};
