//! PUT: the receiver answers an announcement with a remote key (RTR), and the sender stores the data there.
//!
//! One operation stores most messages between devices ([`whole`]). Any other message is a job of several pieces
//! ([`sender`]).

mod header;
mod probe;
mod receiver;
mod sender;
mod state;
mod whole;

pub(crate) use header::{Put, PutFin};
pub(crate) use probe::{can_pack, is_addressable, probe_receive, probe_send};
pub(crate) use receiver::{expose, fin};
pub(crate) use sender::{advance, asked, completed};
pub(crate) use state::PutJob;
pub(crate) use whole::{asked_for_several, completed as whole_completed};
