//! The base of all layers of Cableway: the parameter table, counters, locks, isolation of forked children, kept figures,
//! and warnings that are logged once. It depends on no other layer.

mod cause;
pub mod counters;
pub mod descriptors;
#[cfg(not(all(test, loom)))]
pub mod fork;
pub mod gate;
pub mod kept;
pub mod lock;
pub mod parameters;
mod signals;
mod suggest;
pub mod warn;
pub mod watch;

pub use cause::root_cause;
pub use counters::Counters;
pub use parameters::{ParameterError, Parameters, Source};
pub use signals::without_signals;
pub use suggest::nearest;
pub use warn::warn_once;

/// A process of the job, counted from 0 over the whole job (`MPI_COMM_WORLD`'s order).
pub type Rank = u32;
