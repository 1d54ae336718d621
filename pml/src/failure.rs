//! Peers that fail, and links that break.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::completion::Done;
use crate::engine::Engine;
use crate::error::Error;
use crate::links::{Links, Peer};
use crate::request::Status;
use crate::wire::Malformed;

impl Engine {
    /// A transport cannot reach the peer any more. Links that stand by take over if nothing was lost with the broken
    /// one, else the peer has failed.
    #[cold]
    pub(crate) fn link_broke(&self, peer: &Peer, btl: usize, error: cableway_btl::Error, done: &mut Done) {
        if self.fall_back(peer, btl, &error) {
            // What waited goes another way.
            self.with_links(peer, done, |links, done| self.pump(peer, links, done));
            return;
        }
        self.peer_failed(peer, &error.to_string(), done);
    }

    /// Replaces links that have carried nothing yet; false if there are none to replace them, or the transport was
    /// none of the active ones' and the peer is still reached.
    fn fall_back(&self, peer: &Peer, btl: usize, error: &cableway_btl::Error) -> bool {
        let mut links = peer.links.lock();
        let links = &mut *links;
        links.standby.retain(|link| link.btl != btl);
        if links.active.iter().all(|link| link.btl != btl) {
            // It only stood by, or is out of use already.
            return !links.active.is_empty();
        }
        if peer.failure().is_some() || links.active.iter().any(|link| link.btl == btl && link.carried) {
            return false;
        }
        let name = self.btls[btl].btl.name();
        let before = links.active.len();
        links.active.retain(|link| link.btl != btl);
        self.btls[btl].links.fetch_sub(before - links.active.len(), Ordering::Relaxed);
        if links.active.is_empty() {
            let Some(best) = links.standby.pop() else { return false };
            self.btls[best.btl].links.fetch_add(1, Ordering::Relaxed);
            let cause = format!("fall back from {name}");
            let to = self.btls[best.btl].btl.name();
            cableway_base::warn_once(&cause, || format!("peer {} is reached by {to} instead: {error}", peer.rank));
            links.active.push(best);
        }
        true
    }

    /// The peer's bytes make no sense: nothing more is taken from it.
    #[cold]
    pub(crate) fn disconnect(&self, peer: &Peer, malformed: &Malformed, done: &mut Done) {
        self.counters.malformed.increment();
        log::error!("peer {} is disconnected: {malformed}", peer.rank);
        self.peer_failed(peer, &malformed.to_string(), done);
    }

    /// Ends, with an error, every operation that involves the peer: transfers, receives that name it, and receives from
    /// any source in a communicator that it belongs to, since it may have been the one to satisfy them.
    fn peer_failed(&self, peer: &Peer, reason: &str, done: &mut Done) {
        if !peer.mark_failed(Arc::from(reason)) {
            return;
        }
        {
            let mut links = peer.links.lock();
            links.abandon(peer, done);
            self.drop_links(&mut links);
        }
        for communicator in self.registry.read(|registry| registry.all()) {
            let Some(rank) = communicator.rank_of(peer.rank) else { continue };
            let (receives, _lost) = {
                let mut matching = communicator.matching.lock();
                matching.failed.push(rank);
                matching.matcher.fail(rank)
            };
            for request in receives {
                let error = Error::PeerFailed { peer: peer.rank, reason: Arc::from(reason) };
                request.complete(Status { source: rank as i32, ..Status::EMPTY }, Some(error), done);
            }
        }
    }

    /// Closes the links to a failed peer once no operation of theirs is under way.
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
                transfer.fail(error.clone());
                transfer.gone = true;
            }
            self.settle_receive(id, done);
        }
    }
}
