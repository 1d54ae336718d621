//! The transport of a process to itself.
//!
//! Messages wait in a queue until [`Btl::progress`](cableway_btl::Btl::progress) delivers them, so that a send never
//! re-enters its caller. `get` moves a large message in one copy, with host or device memory on either side. `put` does so
//! for device memory. Kernels copy blocks of device memory.

mod copy;
mod endpoint;
mod queue;
mod self_loop;
mod shared;
mod transfer;

pub use self_loop::SelfLoop;

const NAME: &str = "self";

#[cfg(test)]
mod tests;
