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

pub(super) struct OpenOffer {
    pub(super) id: Id,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) link: u32,
    pub(super) offer: Offer,
}

impl Offers {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
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
