//! Cableway's kernels in one context: loaded early, launched as revocable jobs.
//!
//! They are loaded when the context's device memory is first used, not when they are first needed: loading a module
//! waits for kernels that fill the device, and a kernel of the program may wait for this message. So loading happens
//! only while the default stream is idle, and is tried once. If the driver refuses (unsuitable code, no memory), copy
//! engines do the work, and one log line gives the reason.
//!
//! Jobs within a device have a stream of their own, so that they run beside those between devices ([`Track`]).
//!
//! If a job has not started after some time, because other kernels fill the device, it is revoked ([`job`]), and copy
//! engines make its copies. It stays in the stream until the device has room. No other job is launched before that.
//!
//! Copies in a stream of the program ([`Signalled`]) are no jobs: their place in the stream is all that tells when they
//! begin, and nobody revokes them.
//!
//! Where the driver takes less time for it, a job is launched as a graph of its kernel ([`launcher`]).
//!
//! [`Reducers`] launch reductions, and what else collectives do, in a stream of their own. These kernels are loaded when they are
//! first needed, and never revoked.

mod block_moves;
mod job;
mod jobs;
mod lane;
mod launch;
mod launcher;
mod line;
mod loaded;
mod one_shot;
mod packed;
mod pieces;
mod reduce;
mod reducers;
mod shape;
mod signalled;
mod silence;
mod slots;

pub(crate) use block_moves::BlockMoves;
pub(crate) use job::{Argument, Job};
pub(crate) use jobs::Jobs;
pub(crate) use launch::{Strides, Work};
pub(crate) use launcher::Launching;
pub(crate) use line::Track;
pub(crate) use loaded::Kernels;
pub(crate) use packed::{Packed, is_worth_a_launch};
pub(crate) use pieces::{Moves, Pieces};
pub(crate) use reduce::{Class, Folding};
pub(crate) use reducers::Reducers;
pub(crate) use signalled::Signalled;
pub(crate) use silence::Silence;
pub use slots::CopySlotNumber;
