//! Fragments: moves an announced message's data through internal buffers, or in place if the link can.
//!
//! The receiver requests ranges. The sender keeps some fragments under way.

mod header;
mod receiver;
mod sender;

pub(crate) use header::{Ack, FRAGMENT_LEN, FragmentHeader};
pub(crate) use receiver::{arrived, ask, awaiting, copied_in, probe_receive};
pub(crate) use sender::{advance, asked, copied, left_in_place, resume};
