//! Copies in one context: gathered, then begun together, their end polled.
//!
//! An [operation](operation::Operation) offers its copies to each [`Mechanism`](mechanism::Mechanism) in turn: the CPU through a mapping,
//! the resident copier, kernels, values that the stream writes, copy engines. Each mechanism takes the copies that suit
//! it. Copies that a mechanism cannot finish (a kernel finds no room) go to the copy engines, which take every copy.

mod batch;
mod by_copier;
mod by_cpu;
mod by_engines;
mod by_kernels;
mod by_values;
mod gathered;
mod landing;
mod mechanism;
mod operation;
mod reducing;
mod shape;
mod slots;
mod streams;
mod stretch;
mod workspace;

pub use batch::{Completion, CopyBatch};
pub(crate) use operation::{CopyQueue, Start};
pub use reducing::KernelRun;
pub use shape::CopyShape;
pub(crate) use streams::issue;
pub(crate) use workspace::Workspace;
