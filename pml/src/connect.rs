//! Finding peers and the links to them.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use cableway_base::Rank;
use smallvec::SmallVec;

use crate::engine::Engine;
use crate::error::Error;
use crate::links::{Gone, Link, Links, Peer};
use crate::wire::Card;

impl Engine {
    /// A peer that was met before.
    #[inline]
    pub(crate) fn known_peer(&self, rank: Rank) -> Option<&Peer> {
        match self.peers.get(rank as usize) {
            Some(place) => place.get().map(|peer| &**peer),
            None => self.known_stranger(rank),
        }
    }

    #[cold]
    fn known_stranger(&self, rank: Rank) -> Option<&Peer> {
        let index = (rank as usize).checked_sub(self.peers.len())?;
        self.strangers.get()?.get(index)?.get().map(|peer| &**peer)
    }

    /// How many processes could be met: those of the job, and strangers.
    pub(crate) fn most_peers(&self) -> usize {
        self.peers.len() + self.modex.job().strangers as usize
    }

    /// Where a peer is kept.
    fn place(&self, rank: Rank) -> Option<&OnceLock<Box<Peer>>> {
        let rank = rank as usize;
        self.peers.get(rank).or_else(|| {
            let most = self.modex.job().strangers;
            let strangers = self.strangers.get_or_init(|| (0..most).map(|_| OnceLock::new()).collect());
            strangers.get(rank.checked_sub(self.peers.len())?)
        })
    }

    /// A peer; met now if it was not before.
    #[inline]
    pub(crate) fn peer(&self, rank: Rank) -> Result<&Peer, Error> {
        match self.known_peer(rank) {
            Some(peer) => Ok(peer),
            None => self.meet(rank),
        }
    }

    #[cold]
    fn meet(&self, rank: Rank) -> Result<&Peer, Error> {
        let size = self.most_peers();
        let place = self.place(rank).ok_or(Error::NoSuchRank { rank: rank as i32, size })?;
        let _meeting = self.meeting.lock();
        if place.get().is_none() {
            let peer = self.connect(rank)?;
            // Nobody else sets it: we hold the lock.
            let _ = place.set(Box::new(peer));
        }
        self.known_peer(rank).ok_or(Error::NoSuchRank { rank: rank as i32, size })
    }

    fn connect(&self, rank: Rank) -> Result<Peer, Error> {
        if let Some(reason) = self.modex.refusal(rank)? {
            let peer = Peer::new(rank, Links::new(SmallVec::new(), Vec::new(), 0), self.locking);
            peer.mark_gone(Gone::Unreachable(reason.into()));
            return Ok(peer);
        }
        let unreachable = |reason: String| Error::Unreachable { peer: rank, reason: reason.into() };
        let card =
            self.modex.get(rank, Card::KEY)?.ok_or_else(|| unreachable("it published no address yet".to_owned()))?;
        let card = Card::parse(&card).map_err(&unreachable)?;
        let mut links = self.links_to(rank)?;
        // The best last, so that `pop` yields it.
        links.sort_by_key(|link| std::cmp::Reverse((link.capabilities().exclusivity, u32::MAX - link.serial)));
        links.reverse();
        let Some(best) = links.last().map(|link| link.capabilities().exclusivity) else {
            let tried: Vec<&str> = self.btls.iter().map(|slot| slot.btl.name()).collect();
            return Err(unreachable(format!("none of the transports {tried:?} leads to it")));
        };
        let standby_len = links.partition_point(|link| link.capabilities().exclusivity < best);
        let mut active: SmallVec<[Link; 1]> = links.drain(standby_len..).rev().collect();
        // Headers take the link with the least latency.
        active.sort_by_key(|link| link.capabilities().latency);
        for link in &active {
            self.btls[link.btl].links.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Peer::new(rank, Links::new(active, links, card.window), self.locking))
    }

    fn links_to(&self, rank: Rank) -> Result<Vec<Link>, Error> {
        let mut links = Vec::new();
        // Modules of one name, which are neighbours, have one card.
        let mut last: Option<(&str, Option<Vec<u8>>)> = None;
        for (index, slot) in self.btls.iter().enumerate() {
            if last.as_ref().is_none_or(|(key, _)| *key != slot.key) {
                last = Some((&slot.key, self.modex.get(rank, &slot.key)?));
            }
            let Some((_, Some(card))) = &last else { continue };
            let endpoints = match slot.btl.connect(rank, card) {
                Ok(endpoints) => endpoints,
                Err(error) => {
                    log::warn!("peer {rank} will not be reached by {}: {error}", slot.btl.name());
                    continue;
                }
            };
            let Some(tag) = slot.tag(rank) else { continue };
            // More links than a header can name are more than anybody has.
            for (ordinal, endpoint) in (0..=u8::MAX).zip(endpoints) {
                let serial = self.next_link.fetch_add(1, Ordering::Relaxed);
                links.push(Link { endpoint, btl: index, tag, ordinal, serial, load: 0.0, carried: false });
            }
        }
        Ok(links)
    }
}
