//! The protocols: move a message's data from the sender's buffer to the receiver's. They know nothing of matching.
//!
//! | file | protocol |
//! |---|---|
//! | [`eager`] | the message leaves with its data |
//! | [`eager_fragments`] | the data follows its announcement in fragments, without a request |
//! | [`rendezvous`] | an announcement, and by which protocol the data comes |
//! | [`get`] | the receiver fetches |
//! | [`put`] | the sender stores |
//! | [`offered`] | the sender copies into fragments, or the receiver fetches: whichever comes first |
//! | [`halves`] | the receiver fetches one half, the sender stores the other |
//! | [`pieces`] | the sender stores in scratch memory, the receiver unpacks |
//! | [`fragments`] | the sender sends through internal buffers |
//! | [`direct`] | a one-sided access to memory that the peer has exposed |
//!
//! Each protocol's file or folder holds both ends, the probes by which [`choice`] compares the protocols (see
//! [`probe`]), its headers in `header.rs` and its state in `state.rs`. [`mod@explain`] prints the same probes.
//! [`transfer`] has the envelope of a transfer, which holds the state of the protocol that moves it. [`host_costs`] has
//! the measured times by which the receiver chooses for host data.

mod attempts;
mod choice;
mod context;
pub(crate) mod direct;
mod dispatch;
mod eager;
mod eager_fragments;
mod explain;
mod fragments;
mod get;
mod halves;
mod header;
mod host_costs;
mod node;
mod offered;
mod one_copy;
mod page_locked;
mod pieces;
mod probe;
mod put;
mod receive_buffer;
mod rendezvous;
mod scratch;
mod settle;
mod start;
mod transfer;
mod unexpected;
mod user_buffer;

pub(crate) use context::Links;
pub(crate) use dispatch::Protocols;
pub(crate) use eager::{Payload, consume, deliver, deliver_unexpected};
pub(crate) use eager_fragments::{announced as announced_data, refuse as refuse_data};
pub(crate) use explain::explain_links;
pub use explain::{Explained, Form, Side, explain};
pub(crate) use get::Get;
pub(crate) use header::recode;
pub use host_costs::{HostTimes, host_times};
pub(crate) use receive_buffer::ReceiveBuffer;
pub(crate) use rendezvous::{Fin, RENDEZVOUS_LEN, Rts, begin_receive};
pub(crate) use start::start as start_send;
pub(crate) use transfer::{Channel, Outgoing, Slot, State};
pub(crate) use unexpected::{Content, Rendezvous, UnexpectedMessage};
