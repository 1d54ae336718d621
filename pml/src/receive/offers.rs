//! Ranges of announced messages that are offered to their sender.
//!
//! A sender that is there copies a range into fragments while this process copies the one before out of them, which is
//! faster than either alone. One that computes, and calls no progress, would keep the message waiting. So a range is
//! only offered, and if nothing is heard of the sender for a while it is withdrawn and fetched from here; only one of
//! the two can happen to it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::Offer;

use super::transfer::ReceiveTransfer;
use crate::engine::Engine;
use crate::links::{Link, Links, Peer};
use crate::wire::{Ack, Header, Id};

/// What is on offer to a peer, as far as is known.
#[derive(Default)]
pub(crate) struct Offers {
    /// The oldest first.
    open: VecDeque<Open>,
    /// The peer's count of what came from it, when it was last seen to change.
    heard: u64,
    /// Turns since then.
    turns: usize,
    /// Bytes that were claimed, as far as is known, and have not come.
    claimed: u64,
    /// That count when the peer was found to be away.
    away: Option<u64>,
}

struct Open {
    id: Id,
    from: u64,
    to: u64,
    link: u32,
    offer: Offer,
}

impl Offers {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Forgets them: the peer has failed.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    /// Whether the peer was heard of since it was last found to be away.
    pub(crate) fn attentive(&self, peer: &Peer) -> bool {
        self.away != Some(peer.heard.load(Relaxed))
    }

    /// So many bytes will not come.
    pub(crate) fn forget(&mut self, bytes: u64) {
        self.claimed = self.claimed.saturating_sub(bytes);
    }

    fn of(&self, id: Id) -> bool {
        self.open.iter().any(|open| open.id == id)
    }
}

/// How much longer a sender is waited for that has claimed something and not sent it yet.
const AT_WORK: usize = 16;

impl Engine {
    /// Looks whether the peer takes what it is offered; how many ranges were taken back.
    pub(crate) fn watch_offers(&self, peer: &Peer, links: &mut Links) -> usize {
        if links.offers.is_empty() {
            return 0;
        }
        let heard = peer.heard.load(Relaxed);
        let offers = &mut links.offers;
        offers.turns = if offers.heard == heard { offers.turns + 1 } else { 0 };
        offers.heard = heard;
        // One that has work in hand is not disturbed before that should be done.
        let patience = self.parameters.pml_offer_patience.saturating_mul(if offers.claimed == 0 { 1 } else { AT_WORK });
        if offers.turns <= patience {
            return 0;
        }
        offers.turns = 0;
        let Some(oldest) = offers.open.pop_front() else { return 0 };
        if !links.end_offer(oldest) {
            // It has just begun.
            return 0;
        }
        links.offers.away = Some(heard);
        1 + links.take_back(None)
    }
}

impl Links {
    /// Offers the next range of at most `window` bytes; false if too much is on offer.
    pub(crate) fn offer_range(&mut self, id: Id, window: u64) -> bool {
        let Links { active, receives, offers, .. } = self;
        let Some(transfer) = receives.get_mut(id) else { return true };
        let Some(fetch) = &mut transfer.fetch else { return true };
        let Some(link) = named(active, fetch.from.link) else { return true };
        let Some(offer) = link.endpoint.offer() else { return false };
        let Some((from, to)) = fetch.take(window) else { return true };
        fetch.offered_any = true;
        offers.open.push_back(Open { id, from, to, link: fetch.from.link, offer });
        let (sender, receiver, total) = (transfer.sender, id, transfer.wanted);
        self.control(&Header::Ack(Ack { sender, receiver, from, to, total, to_device: false, offer: Some(offer) }));
        true
    }

    /// `len` bytes for `offset` have come: the range was claimed. False if it was not.
    pub(crate) fn offer_was_claimed(&mut self, id: Id, offset: u64, len: u64) -> bool {
        let within = |open: &Open| open.id == id && (open.from..open.to).contains(&offset);
        if let Some(at) = self.offers.open.iter().position(within)
            && let Some(open) = self.offers.open.remove(at)
            && self.end_offer(open)
        {
            return false;
        }
        self.offers.claimed = self.offers.claimed.saturating_sub(len);
        true
    }

    /// Takes back what is on offer, of one message or of all, and has not been claimed, to be fetched; how many ranges.
    pub(crate) fn take_back(&mut self, only: Option<Id>) -> usize {
        let (those, others) =
            std::mem::take(&mut self.offers.open).into_iter().partition(|open| only.is_none_or(|id| open.id == id));
        self.offers.open = others;
        VecDeque::into_iter(those).filter_map(|open| self.end_offer(open).then_some(())).count()
    }

    /// Ends an offer: true if it was taken back, and is to be fetched. Only a claim lets the sender send the range, so
    /// that a fragment of what nobody claimed is more than is awaited.
    fn end_offer(&mut self, open: Open) -> bool {
        let claimed = !self.withdraw(&open);
        let transfer = self.receives.get_mut(open.id);
        if claimed {
            let len = open.to - open.from;
            self.offers.claimed += len;
            if let Some(transfer) = transfer {
                transfer.asked += len;
                transfer.awaited += len;
            }
            return false;
        }
        if let Some(transfer) = transfer
            && let Some(fetch) = &mut transfer.fetch
        {
            fetch.ranges.push((open.from, open.to));
            if !std::mem::replace(&mut fetch.queued, true) {
                self.queues.gets.push_back(open.id);
            }
        }
        true
    }

    /// Whether anything of a message is on offer.
    pub(crate) fn is_offered(&self, id: Id) -> bool {
        self.offers.of(id)
    }

    fn withdraw(&mut self, open: &Open) -> bool {
        let Some(link) = named(&mut self.active, open.link) else { return false };
        link.endpoint.withdraw(open.offer).unwrap_or_else(|error| {
            self.broken = Some((link.btl, error));
            false
        })
    }
}

impl ReceiveTransfer {
    /// Gives up what was neither asked for nor fetched.
    pub(crate) fn give_up_rest(&mut self) {
        if let Some(fetch) = &mut self.fetch {
            let rest = fetch.ranges.drain(..).chain(fetch.refused.drain(..));
            self.arrived += rest.map(|(from, to)| to - from).sum::<u64>();
        }
    }
}

fn named(active: &mut [Link], serial: u32) -> Option<&mut Link> {
    active.iter_mut().find(|link| link.serial == serial)
}
