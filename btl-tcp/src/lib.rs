//! Byte transfer over TCP: between hosts, and between processes of one host that share nothing better.
//!
//! A [`Tcp`] listens on one port per address family and publishes its addresses as its card. Each pair of interfaces
//! that can reach each other makes a link or several; a link connects when it is first sent on, proves both ends to
//! know the job's secret, and then carries frames (`wire.rs`): messages, pieces of `put`s that land straight in the
//! memory registered for them, and a goodbye.
//!
//! # Inside
//!
//! | part | what it does |
//! |---|---|
//! | `interfaces`, `card`, `pairing` | which addresses there are, how peers learn of them, which connects to which |
//! | `handshake`, `wire`, `decode` | the protocol, free of sockets and clocks |
//! | `endpoint`, `link`, `outbox`, `fragments`, `gather` | sending: straight to the socket, or queued when it takes no more |
//! | `engine` | progress: connects, accepts, receives, watches |
//! | `regions`, `pool` | memory that peers may write to; fragments |
//! | `sys`, `listener` | system calls and socket options |
//!
//! # Failure
//!
//! A link that breaks takes its peer with it: what was lost on it cannot be told apart from what arrived. A peer that
//! said goodbye has not failed. The kernel's view of the connection decides whether a silent peer is dead, so a
//! process that computes for an hour without a call into here stays alive, also when its buffers are full.

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
