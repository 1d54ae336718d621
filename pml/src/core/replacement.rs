//! State of a replacement of links.

use std::sync::Arc;

use smallvec::SmallVec;

use super::link::Link;
use super::replay::{Next, Replay};

/// A replacement of links under way.
#[derive(Default)]
pub(crate) struct Failover {
    /// The broken links in order. Each but the first was to replace the one before.
    pub(super) breaks: SmallVec<[Break; 1]>,
    /// The link that takes over, once the transports of the broken ones have reported what remains.
    pub(super) by: Option<Link>,
}

pub(super) struct Break {
    /// The transport whose link broke.
    pub(super) btl: usize,
    pub(super) cause: Arc<str>,
    /// The peer's report, if it came before this side was ready for it.
    pub(super) heard: Option<u64>,
    /// Set once the transport has reported what remains.
    pub(super) replay: Option<Replay>,
}

/// Returns which broken link has something to send: reports first, then messages of the link that broke last.
pub(super) fn turn(breaks: &[Break]) -> Option<usize> {
    let tells = |broke: &Break| matches!(broke.replay.as_ref().map(Replay::next), Some(Next::Tell(_)));
    breaks.iter().position(tells).or(breaks.len().checked_sub(1))
}
