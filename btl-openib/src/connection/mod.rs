//! How connections come about, be it by datagrams or by librdmacm.
//!
//! # Datagrams
//!
//! Each side tells the other, by datagrams, the queue pair that it has made for it.
//!
//! ```text
//! one who wants to send                        the other
//!   Hello (my queue pair, I know none of yours) ->
//!                                               makes its own, connects it to that one
//!                                            <- Hello (my queue pair, I know yours)
//!   connects its own, and may send
//!   Hello (my queue pair, I know yours)         -> may send
//! ```
//!
//! It makes no difference who begins, nor whether both do: each pair of processes has one queue pair at each end, and
//! every datagram says the same. Who has not heard what it waits for says it again; who has what it needs only
//! answers.
//!
//! Where thousands connect at once, most of what is said comes to a process that is busy making queue pairs. So between
//! any two pieces of work it takes the datagrams that have come out of the few buffers that the device fills, and hears
//! them before it asks anybody for more ([`desk`]); who is not heard speaks again at a time of its own ([`handshake`]).
//! `benches/openib/` has ten thousand do so.
//!
//! # librdmacm
//!
//! Where a device has no datagrams (iWARP), or where a parameter says so, the connection manager of the system finds the
//! way to a peer's IP address, and takes a question there and its answer back. One of the two asks, the other answers;
//! `meeting` says which, where both want to ask. Question and answer carry an `introduction`.
//!
//! iWARP has two rules of its own. Who asked sends first, a greeting, and the other not before that has come. And there
//! are no words beside messages: greeting and goodbye are messages that nobody but the two ends could make.
//!
//! Either way it is a thread that makes connections, so that a process that computes can be connected to, and one that
//! does not answer is dead.

mod command_queue;
mod connector;
mod datagram_connector;
mod datagrams;
mod ends;
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
