//! Peers that fail or leave, and links that break.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::completion::Done;
use crate::engine::Engine;
use crate::links::{Gone, Links, Peer};
use crate::request::Status;
use crate::wire::Malformed;

impl Engine {
    /// A transport reports that it cannot reach the peer any more.
    #[cold]
    pub(crate) fn peer_failed(&self, peer: &Peer, btl: usize, error: cableway_btl::Error, done: &mut Done) {
        // What came by a link that was put away by the peer's word may turn out to make no sense: nothing is taken over then.
        if matches!(error, cableway_btl::Error::Malformed { .. }) && peer.links.lock().is_suspended(btl) {
            return self.peer_gone(peer, Gone::Failed(error.to_string().into()), done);
        }
        if !self.take_over(peer, btl, &error, done) {
            self.link_broke(peer, btl, error, done);
        }
    }

    /// A transport cannot reach the peer any more. Links that stand by take over if nothing was lost with the broken
    /// one, else the peer is gone.
    #[cold]
    pub(crate) fn link_broke(&self, peer: &Peer, btl: usize, error: cableway_btl::Error, done: &mut Done) {
        if matches!(error, cableway_btl::Error::PeerLeft { .. }) {
            // Its last messages may still be on their way here; the transport says when all are delivered.
            return;
        }
        if self.with_links(peer, done, |links, _| self.suspend(peer, links, btl, &error)) {
            // Whatever an endpoint refused, the transport is to say what came of it all.
            return self.btls[btl].btl.break_off(peer.rank);
        }
        match self.with_links(peer, done, |links, _| self.replace_substitute(links, btl, &error)) {
            None => {}
            Some(Ok(())) => return,
            Some(Err(cause)) => return self.peer_gone(peer, Gone::Failed(cause), done),
        }
        if self.fall_back(peer, btl, &error) {
            // What waited goes another way.
            self.with_links(peer, done, |links, done| self.pump(peer, links, done));
            return;
        }
        let reason = Arc::from(error.to_string());
        let gone = match error {
            cableway_btl::Error::Unreachable { .. } => Gone::Unreachable(reason),
            _ => Gone::Failed(reason),
        };
        self.peer_gone(peer, gone, done);
    }

    /// Replaces links that were never connected; false if there are none to replace them, or the transport was none of
    /// the active ones' and the peer is still reached.
    fn fall_back(&self, peer: &Peer, btl: usize, error: &cableway_btl::Error) -> bool {
        let mut links = peer.links.lock();
        let links = &mut *links;
        links.standby.retain(|link| link.btl != btl);
        if links.active.iter().all(|link| link.btl != btl) {
            // It only stood by, or is out of use already.
            return !links.active.is_empty() || links.failover.is_some();
        }
        let connected = matches!(error, cableway_btl::Error::PeerGone { .. } | cableway_btl::Error::Malformed { .. });
        let carried = links.active.iter().any(|link| link.btl == btl && link.carried);
        if connected || carried || peer.gone().is_some() {
            return false;
        }
        let name = self.btls[btl].btl.label();
        let before = links.active.len();
        links.active.retain(|link| link.btl != btl);
        self.btls[btl].links.fetch_sub(before - links.active.len(), Ordering::Relaxed);
        if links.active.is_empty() {
            let Some(best) = links.standby.pop() else { return false };
            self.btls[best.btl].links.fetch_add(1, Ordering::Relaxed);
            let to = self.btls[best.btl].btl.label();
            let what = || format!("peer {} is reached by {to} instead: {error}", peer.rank);
            if links.queues.is_empty() {
                // Nobody knows that it can be; it may just have ended.
                log::debug!("{}", what());
            } else {
                cableway_base::warn_once(&format!("fall back from {name}"), what);
            }
            links.active.push(best);
        }
        true
    }

    /// The peer's bytes make no sense: nothing more is taken from it.
    #[cold]
    pub(crate) fn disconnect(&self, peer: &Peer, malformed: &Malformed, done: &mut Done) {
        self.counters.malformed.increment();
        log::error!("peer {} is disconnected: {malformed}", peer.rank);
        self.peer_gone(peer, Gone::Failed(malformed.to_string().into()), done);
    }

    /// A transport has delivered the last of a peer that ended in good order. It has left once no other transport may
    /// have something of it.
    pub(crate) fn peer_left(&self, peer: &Peer, btl: usize, done: &mut Done) {
        let others = self.btls.iter().enumerate().filter(|(index, _)| *index != btl);
        if !others.into_iter().any(|(_, slot)| slot.btl.hears(peer.rank)) {
            self.peer_gone(peer, Gone::Left, done);
        }
    }

    /// Ends, with an error, every operation that involves the peer: transfers and receives that name it. A death also
    /// ends receives from any source in a communicator that it belonged to, since it may have been the one to satisfy
    /// them; who has left was not, and others may.
    fn peer_gone(&self, peer: &Peer, gone: Gone, done: &mut Done) {
        if !peer.mark_gone(gone) {
            return;
        }
        {
            let mut links = peer.links.lock();
            self.end_failover(&mut links);
            links.abandon(peer, done);
            self.drop_links(&mut links);
        }
        self.end_receives(peer, done);
    }

    /// Ends receives that wait for a peer that is gone.
    pub(crate) fn end_receives(&self, peer: &Peer, done: &mut Done) {
        let died = matches!(peer.gone(), Some(Gone::Failed(_)));
        for communicator in self.registry.read(|registry| registry.all()) {
            let Some(rank) = communicator.rank_of(peer.rank) else { continue };
            let (receives, _lost) = {
                let mut matching = communicator.matching.lock();
                matching.note_gone(rank, died);
                matching.matcher.abandon(rank, died)
            };
            for request in receives {
                request.complete(Status { source: rank as i32, ..Status::EMPTY }, peer.check().err(), done);
            }
        }
    }

    /// Closes the links to a peer that is gone once no operation of theirs is under way.
    pub(crate) fn drop_links(&self, links: &mut Links) {
        if links.operations.is_empty() {
            for link in links.active.drain(..) {
                self.btls[link.btl].links.fetch_sub(1, Ordering::Relaxed);
            }
            links.standby.clear();
        }
    }
}

impl Links {
    /// Ends every transfer that no operation or copy holds back; the others end with their last one.
    fn abandon(&mut self, peer: &Peer, done: &mut Done) {
        self.queues.clear();
        self.offers.clear();
        self.forget_invitations(peer);
        let Err(error) = peer.check() else { return };
        for id in self.sends.ids() {
            if let Some(transfer) = self.sends.get_mut(id) {
                transfer.fail(error.clone());
                transfer.gone = true;
            }
            self.settle_send(id, done);
        }
        for id in self.receives.ids() {
            if let Some(transfer) = self.receives.get_mut(id) {
                // What has come is only being copied, if it was all.
                if !(peer.has_left() && transfer.has_arrived()) {
                    transfer.fail(error.clone());
                }
                transfer.gone = true;
            }
            self.settle_receive(id, done);
        }
    }
}
