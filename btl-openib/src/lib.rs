//! Byte transfer over verbs: InfiniBand, RoCE and iWARP, the kernel's soft devices included.
//!
//! An [`Openib`] is a module, which has one port of one device; a process has one for each network that it uses. They
//! publish one card, of all their addresses. A link to a peer is a reliable
//! connection, made when it is first sent on: one queue pair for each size of the peer's receive buffers, which it
//! shares among all who send to it, or has for each apart; `get` and `put` are the device's own reads and writes of
//! registered memory.
//!
//! # Inside
//!
//! | part | what it does |
//! |---|---|
//! | `verbs/` | libibverbs, loaded at run time; objects that keep alive what they were made from. Most of what is unsafe |
//! | `ports`, `gid`, `port`, `card` | which devices, ports and addresses; what there is to a port, and is published |
//! | `partitions`, `subnets`, `routes` | in which partition, and to which networks it leads |
//! | `networks` | which ports of two processes talk to each other |
//! | `connection/` | how two processes that know each other's cards make a connection: by datagrams or librdmacm, for each a state machine free of devices and clocks, and the thread that serves them |
//! | `receive_queues` | which receive buffers there are, as the parameter lists them |
//! | `memory`, `receives`, `credits` | memory that the device may reach: send buffers, receive buffers, credits |
//! | `link`, `work`, `kept` | the state of a connection: its queue pairs, the work under way on each, messages that may have to be sent again |
//! | `inbound`, `mailbox`, `shared` | what arrives by one queue pair; failures left for progress; the state that all parts share |
//! | `link/`, `endpoint` | how a link sends and ends, and the endpoint that `pml` holds |
//! | `progress`, `progress/`, `order` | receiving and completing; failures; the order of messages that arrive by several queue pairs |
//! | `registration` | what `get` and `put` name |
//! | `registrations/` | the program's memory as the device knows it: what is kept, and how a change of the pages below is noticed |
//! | `gpudirect/` | device memory that the network device reaches itself: by which way, what is kept, and when it is seen |
//!
//! # Flow
//!
//! A sender has at most a window of messages at a peer that has not looked at them. The peer says how many it has
//! consumed by writing a counter straight into the sender's memory (a cell), which takes no buffer of anybody's. Where
//! many senders' windows together are more than the shared buffers, the device itself holds senders back (RNR); a peer's
//! own buffers are as many as its window, so that there always is one. Each queue has its window; the counter is one,
//! for messages are consumed in the order of their sending, and the sender knows by which queue each went.
//!
//! # Failure
//!
//! The device tells when a peer's device does not answer; so that this is noticed when nothing is sent, the counter is
//! written again from time to time. Of a peer on this node the system tells at once. A peer's device answers while its process computes, so silence of the process is
//! no failure. A connection that breaks is not made again; what
//! its peer is not known to have consumed was kept, for another transport to carry ([`Btl::remains`](cableway_btl::Btl::remains)). A peer that said goodbye has not failed.

mod card;
mod connection;
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
mod mailbox;
mod memory;
mod networks;
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

/// What makes connections and needs no device, for `benches/openib/`.
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

/// Something that a caller or a parameter asked for and that cannot be.
fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::system(NAME, what, std::io::Error::new(std::io::ErrorKind::InvalidInput, reason.into()))
}

/// Bytes that nobody can guess.
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
