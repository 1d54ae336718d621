//! Collective operations on host and device memory, over the engine's messages.
//!
//! A [`Collectives`] belongs to an engine, and a [`Group`] to one of its communicators. [`Group::start`] begins a
//! [`Call`] and returns an [`Operation`], which makes progress when it is polled. The crate knows nothing of Open MPI.
//!
//! Messages carry data between any two kinds of memory, so each rank may pass host or device memory, or both. A rank
//! reduces device memory by kernels of the device, and small data by the host.
//!
//! # Layers
//! Each module uses those above it only.
//! - `error`, `function`, `call`: what a program passes, and what it gets back.
//! - `plan`: algorithms, as steps that depend on each other.
//! - `slots`: host memory that the ranks of a node share.
//! - `costs`: predicts how long plans take.
//! - `choice`, `placing`, `by_function`, `build`: make the plan of a call.
//! - `explain`: shows choices.
//! - `reduce`: reductions of host memory.
//! - `run`: executes a plan.
//! - `agreement`: decides whether a communicator's calls are for device memory.
//! - `members`: carries the messages of agreements.
//! - `fuzzing`: what fuzzers call.

mod agreement;
mod build;
mod by_function;
mod call;
mod choice;
mod costs;
mod error;
mod explain;
mod function;
#[doc(hidden)]
pub mod fuzzing;
mod members;
mod placing;
mod plan;
#[cfg(test)]
mod random;
mod reduce;
mod run;
mod slots;
mod staged;

pub use agreement::{Agreement, Decision, Groups, Notice, Performer, Route};
pub use cableway_common_cuda::{Element, ReduceOperation};
pub use call::{Call, Edge, Memory, Operands, Passed};
pub use error::Error;
pub use explain::{EXPLAINED, Prediction, Question, explain};
pub use function::{Apply, Function, FunctionElement, FunctionOperands, Reduced};
pub use members::{Members, Notices, Reach};
pub use reduce::combine_on_host;
pub use run::{Collectives, Group, Operation};
pub use slots::SlotsName;
