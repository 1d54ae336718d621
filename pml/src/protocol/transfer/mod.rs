//! Messages under way: an envelope, and an enum of states that own their data.

mod fetch;
mod pieces;
mod receive;
mod send;
mod state;

pub(crate) use fetch::{Fetch, Remote};
pub(crate) use pieces::{DEPTH, Lane, LaneState, Pieces};
pub(crate) use receive::{AfterOrder, Claimed, Incoming, Protocol};
pub(crate) use send::{Answer, OneCopy, Outgoing, Stage};
pub(crate) use state::{Channel, OpenOffer, PutJob, Slot, State};
