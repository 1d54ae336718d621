//! Copies in one context: gathered, then begun together, their end polled.
//!
//! An [`Operation`] offers what was gathered to each [`Mechanism`](mechanism::Mechanism) in turn: the CPU through a
//! mapping, the resident copier, kernels, values that the stream writes, copy engines. Each takes what suits it. Whatever a mechanism cannot end (a kernel
//! that finds no room) goes to the copy engines, which take everything.

mod by_copier;
mod by_cpu;
mod by_engines;
mod by_kernels;
mod by_values;
mod gathered;
mod landing;
mod mechanism;
mod operation;
mod slots;
mod streams;
mod stretch;
mod workspace;

pub(crate) use operation::{CopyQueue, Operation, Start};
pub(crate) use streams::issue;
pub(crate) use workspace::Workspace;
