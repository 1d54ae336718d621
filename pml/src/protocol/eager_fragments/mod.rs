//! Eager fragments: the data follows its announcement in small fragments, without a request.
//!
//! ```text
//! sender                                    receiver
//!   | Rendezvous, "the data follows"          |
//!   | --------------------------------------> | matches it, or queues it as unexpected
//!   | Fragment, not requested, offset 0       |
//!   | --------------------------------------> | copies it into the buffer, or collects it
//!   | ...                                     |
//! ```
//!
//! The sender copies a fragment in while the receiver copies the one before out, and nobody waits for an answer. The
//! message costs credit like an eager one, from its announcement until all of it has come and a receive has taken it,
//! so that what a receiver collects is bounded.
//!
//! The receiver times this way like the others (see [`host_costs`](super::host_costs)). It lets the sender take it, by an
//! acknowledgement, for a number of messages of the size. After these the sender asks again by an ordinary announcement. Only data of host memory goes this way, whose packing cannot fail: so there is nothing to abort, and
//! the end of a peer ends it.

mod receiver;
mod sender;
mod state;

pub(crate) use receiver::{announced, arrived, begin, refuse};
pub(crate) use sender::{attempt, probe_send};
pub(crate) use state::{Followers, Permits};
