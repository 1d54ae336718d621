//! The BTL for verbs: InfiniBand, RoCE and iWARP, including the kernel's soft devices.
//!
//! An [`Openib`] is a module for one port of one device. A process has one module for each network that it uses. All
//! modules publish one card with all addresses. A link to a peer is a reliable connection that is made at the first
//! send. It has one queue pair for each size of the peer's receive buffers. A receive queue is shared by all peers or
//! belongs to one peer. `get` and `put` are RDMA reads and writes of registered memory.
//!
//! # Modules
//!
//! | part | what it does |
//! |---|---|
//! | `verbs/` | libibverbs, loaded at run time; objects that keep their parents alive; most of the unsafe code |
//! | `ports`, `gid`, `port`, `card` | devices, ports and addresses; the resources of a port; the published card |
//! | `partitions`, `subnets`, `routes` | partitions, and the networks that a port reaches |
//! | `networks` | pairs of ports between two processes |
//! | `connection/` | how two processes that know each other's cards make a connection: by datagrams or librdmacm, for each a state machine free of devices and clocks, and the thread that serves them |
//! | `receive_queues` | the parameter that lists the receive buffers |
//! | `memory`, `receives`, `credits` | registered memory: send buffers, receive buffers, credits |
//! | `link`, `work`, `kept` | the state of a connection: its queue pairs, the work in flight on each, messages that may have to be sent again |
//! | `inbound`, `notice_queue`, `shared` | the receiving side of a queue pair; failures reported to progress; shared state |
//! | `link/`, `endpoint` | sending on a link, closing it, and the endpoint that `pml` holds |
//! | `progress`, `progress/`, `order` | receiving and completing; failures; the order of messages on several queue pairs |
//! | `registration` | the handles for `get` and `put` |
//! | `registrations/` | registration of the program's memory, its cache, and detection of changed pages |
//! | `gpudirect/` | GPUDirect RDMA: methods, cached registrations, and the order of data |
//!
//! # Flow
//!
//! A sender has at most a window of messages that the peer has not consumed. The peer reports consumption by an RDMA
//! write of a counter into the sender's memory, which uses no receive buffer. If the windows of many senders exceed the
//! shared buffers, the device itself delays senders (RNR). A peer's own buffers always suffice for its window. Each
//! queue has its window. There is only one counter, because messages are consumed in the order in which they were sent,
//! and the sender knows the queue of each.
//!
//! # Failure
//!
//! The device reports a peer's device that does not answer. To detect this without traffic, the counter is written
//! again at intervals. The system reports the end of a process on this node at once. A peer's device answers while its
//! process computes, so that the silence of a process is no failure. A broken connection is not made again. Messages
//! that its peer may not have consumed were kept, so that another transport can carry them
//! ([`Btl::remains`](cableway_btl::Btl::remains)). A peer that said goodbye has not failed.

mod card;
mod connection;
mod cost;
mod credits;
mod endpoint;
mod footprint;
#[doc(hidden)]
pub mod fuzzing;
mod gid;
mod gpudirect;
mod inbound;
mod kept;
mod link;
mod memory;
mod networks;
mod notice_queue;
mod openib;
mod order;
mod partitions;
mod port;
mod ports;
mod progress;
mod receive_queues;
mod receives;
mod registration;
mod registrations;
mod routes;
mod settings;
mod shared;
mod subnets;
mod verbs;
mod work;

/// The parts of connecting that need no device, for `benches/openib/`.
#[doc(hidden)]
pub mod simulation {
    pub use crate::connection::{Due, Handshake, Step, Work, WorkQueue};
}

pub use footprint::Footprint;
pub use gpudirect::DirectFacts;
pub use openib::Openib;
pub use ports::PortFound;

use cableway_btl::Error;

/// This transport's name.
const NAME: &str = "openib";

/// Builds the error for an impossible request of a caller or a parameter.
fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::system(NAME, what, std::io::Error::new(std::io::ErrorKind::InvalidInput, reason.into()))
}

/// Returns bytes that cannot be guessed.
fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0; N];
    let mut have = 0;
    while have < N {
        match getrandom(&mut bytes[have..], GetRandomFlags::empty()) {
            Ok(count) => have += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(bytes)
}
