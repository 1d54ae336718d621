//! DIRECT: a process moves bytes between its memory and memory that a peer has exposed. No message belongs to it, and the
//! peer takes no part.

mod explain;
mod moves;
mod probe;
mod state;

pub(crate) use explain::{Asked, explain_accesses};
pub(crate) use moves::{Move, abandon, advance, completed, start};
pub(crate) use probe::{Access, Way, WayCosts, choose, costs};
pub(crate) use state::DirectJob;
