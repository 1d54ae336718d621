//! The receiver's offers to a peer.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::Offer;

use crate::core::Peer;
use crate::wire::Id;

/// Ranges of announced messages that are believed to be on offer to the peer.
#[derive(Default)]
pub(crate) struct Offers {
    /// The oldest first.
    pub(super) open: VecDeque<OpenOffer>,
    /// The count of the peer's messages when it last changed.
    pub(super) heard: u64,
    /// Turns since then.
    pub(super) turns: usize,
    /// Bytes that are believed to be claimed and have not come.
    pub(super) claimed: u64,
    /// That count when the peer was found to be away.
    pub(super) away: Option<u64>,
}

pub(crate) struct OpenOffer {
    pub(crate) id: Id,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) link: u32,
    pub(crate) offer: Offer,
    /// Whether the sender stores the range in the receiver's buffer.
    pub(crate) stores: bool,
}

impl Offers {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Adds an offer.
    pub(crate) fn open(&mut self, offer: OpenOffer) {
        self.open.push_back(offer);
    }

    /// Removes the youngest offer of a range that the sender is to store, if its message is idle.
    pub(crate) fn last_stored(&mut self, idle: impl FnOnce(Id) -> bool) -> Option<OpenOffer> {
        let at = self.open.iter().rposition(|open| open.stores)?;
        if idle(self.open[at].id) { self.open.remove(at) } else { None }
    }

    /// Drops the offers to a peer that is gone.
    pub(crate) fn abort(&mut self) {
        self.open.clear();
    }

    /// Returns whether the peer was heard of since it was last found to be away.
    pub(crate) fn attentive(&self, peer: &Peer) -> bool {
        self.away != Some(peer.heard.load(Relaxed))
    }

    /// Notes that `len` bytes will not come.
    pub(crate) fn forget(&mut self, bytes: u64) {
        self.claimed = self.claimed.saturating_sub(bytes);
    }

    /// Returns whether any range of a message is on offer.
    pub(crate) fn of(&self, id: Id) -> bool {
        self.open.iter().any(|open| open.id == id)
    }
}
