//! The rendezvous: a header (RTS) announces a message, and the receiver answers with a request for its data, by the
//! protocol that it chooses. A FIN ends the transfer.

mod header;
mod receiver;
mod sender;

pub(crate) use header::{
    AbortHeader, Announced, FLAG_ADDRESSABLE, FLAG_ON_DEVICE, FLAG_PAGE_LOCKED, Fin, RENDEZVOUS_LEN, RendezvousLayout,
    Rts, rendezvous_bytes,
};
pub(crate) use receiver::{aborted, begin as begin_receive, ordered};
pub(crate) use sender::{Attempt, announce, fin, is_ordered, message, probe_send, send_header, storable};
