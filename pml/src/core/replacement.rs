//! The replacement of links under way: what is known of it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::link::Link;
use super::replay::{Next, Replay};

/// The replacement of links under way.
#[derive(Default)]
pub(crate) struct Failover {
    /// What broke, in that order: each but the first was to take over from the one before.
    pub(super) breaks: SmallVec<[Break; 1]>,
    /// The link that takes over, once those transports have told what they leave.
    pub(super) by: Option<Link>,
}

pub(super) struct Break {
    /// The transport whose link broke.
    pub(super) btl: usize,
    pub(super) cause: Arc<str>,
    /// What the peer has said before this side was ready to hear it.
    pub(super) heard: Option<u64>,
    /// There once the transport has told what it leaves.
    pub(super) replay: Option<Replay>,
}

/// Which of them has something to send: first what is to be told, then what went by the link that broke last.
pub(super) fn turn(breaks: &[Break]) -> Option<usize> {
    let tells = |broke: &Break| matches!(broke.replay.as_ref().map(Replay::next), Some(Next::Tell(_)));
    breaks.iter().position(tells).or(breaks.len().checked_sub(1))
}
