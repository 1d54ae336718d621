//! Messages under way: an envelope, and an enum of the protocols' states, which own their data.

mod receive;
mod send;
mod state;

pub(crate) use receive::{AfterOrder, Incoming, Protocol};
pub(crate) use send::{Answer, OneCopy, Outgoing, Stage};
pub(crate) use state::{Channel, Slot, State};
