//! Byte transfer over TCP: between hosts, and between processes of one host that cannot use shared memory.
//!
//! A [`Tcp`] listens on one port for each address family and publishes its addresses in its card. Each pair of
//! interfaces that can reach each other has one or several links. A link connects when it is first used, and both ends
//! prove that they know the job's secret. Then it carries frames (`wire.rs`): messages, pieces of `put`s that are read
//! directly into registered memory, and a goodbye.
//!
//! # Modules
//!
//! | part | what it does |
//! |---|---|
//! | `interfaces`, `card`, `pairing` | the addresses, how peers get them, and which of them connect |
//! | `handshake`, `wire`, `decode` | the protocol, without sockets and clocks |
//! | `endpoint`, `link`, `outbox`, `fragments`, `gather` | sending: directly to the socket, or queued |
//! | `engine` | progress: connects, accepts, receives, watches |
//! | `regions`, `pool` | memory that peers may write to; fragments |
//! | `sys`, `listener` | system calls and socket options |
//!
//! # Failure
//!
//! If a link breaks, the peer has failed, because it is unknown which messages arrived. A peer that said goodbye has
//! not failed. The kernel's state of the connection decides whether a silent peer is dead. So a process that computes
//! for an hour without calling Cableway stays alive, even if its buffers are full.

mod card;
mod decode;
mod endpoint;
mod engine;
mod fragments;
#[doc(hidden)]
pub mod fuzzing;
mod gather;
mod handshake;
mod interfaces;
mod link;
mod listener;
mod outbox;
mod pairing;
mod pool;
mod regions;
mod settings;
mod shared;
mod sys;
mod tcp;
mod wire;

pub use tcp::Tcp;

use cableway_btl::Error;

/// This transport's name.
const NAME: &str = "tcp";

/// Builds the error of an invalid argument or parameter.
fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::system(NAME, what, std::io::Error::new(std::io::ErrorKind::InvalidInput, reason.into()))
}

/// Returns unpredictable random bytes.
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
