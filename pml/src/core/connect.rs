//! Finds peers and the links to them.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use cableway_base::Rank;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::link::Link;
use super::links::Links;
use super::peer::{Gone, PeerState, Slot};
use super::shared::Core;
use crate::error::Error;
use crate::wire::Card;

type Places<A> = Box<[OnceLock<Box<Slot<A>>>]>;

/// The peers of an engine. Each is connected at first use.
pub(crate) struct Peers<A: PeerState> {
    of_job: Places<A>,
    /// Processes of other jobs, numbered after those of this job. Most programs have none.
    of_other_jobs: OnceLock<Places<A>>,
    /// Held while a peer is connected, so that each is connected once.
    meeting: Mutex<()>,
}

impl<A: PeerState> Peers<A> {
    /// Creates the table for a job of `size` processes.
    pub(crate) fn new(size: usize) -> Self {
        let of_job = (0..size).map(|_| OnceLock::new()).collect();
        Peers { of_job, of_other_jobs: OnceLock::new(), meeting: Mutex::new(()) }
    }

    /// Returns a peer that is connected already.
    #[inline]
    pub(crate) fn known(&self, rank: Rank) -> Option<&Slot<A>> {
        match self.of_job.get(rank as usize) {
            Some(place) => place.get().map(|slot| &**slot),
            None => self.known_of_other_jobs(rank),
        }
    }

    #[cold]
    fn known_of_other_jobs(&self, rank: Rank) -> Option<&Slot<A>> {
        let index = (rank as usize).checked_sub(self.of_job.len())?;
        self.of_other_jobs.get()?.get(index)?.get().map(|slot| &**slot)
    }

    /// Returns every connected peer.
    pub(crate) fn met(&self) -> impl Iterator<Item = &Slot<A>> {
        let places = self.of_job.iter().chain(self.of_other_jobs.get().into_iter().flatten());
        places.filter_map(|place| place.get()).map(|slot| &**slot)
    }

    /// Returns how many processes can be connected: those of the job, and those of other jobs that the modex knows.
    pub(crate) fn most(&self, core: &Core) -> usize {
        self.of_job.len() + core.modex.job().foreign_processes as usize
    }

    fn place(&self, core: &Core, rank: Rank) -> Option<&OnceLock<Box<Slot<A>>>> {
        let rank = rank as usize;
        self.of_job.get(rank).or_else(|| {
            let most = core.modex.job().foreign_processes;
            let others = self.of_other_jobs.get_or_init(|| (0..most).map(|_| OnceLock::new()).collect());
            others.get(rank.checked_sub(self.of_job.len())?)
        })
    }

    /// Returns a peer, and connects it first if necessary.
    #[inline]
    pub(crate) fn get(&self, core: &Core, rank: Rank) -> Result<&Slot<A>, Error> {
        match self.known(rank) {
            Some(slot) => Ok(slot),
            None => self.meet(core, rank),
        }
    }

    #[cold]
    fn meet(&self, core: &Core, rank: Rank) -> Result<&Slot<A>, Error> {
        let no_such_rank = || Error::NoSuchRank { rank: rank as i32, size: self.most(core) };
        let place = self.place(core, rank).ok_or_else(no_such_rank)?;
        let _meeting = self.meeting.lock();
        if place.get().is_none() {
            let slot = connect(core, rank)?;
            // The lock is held, so no other thread sets it.
            let _ = place.set(Box::new(slot));
        }
        self.known(rank).ok_or_else(no_such_rank)
    }
}

fn connect<A: PeerState>(core: &Core, rank: Rank) -> Result<Slot<A>, Error> {
    if let Some(reason) = core.modex.refusal(rank)? {
        let slot = Slot::new(rank, Links::new(SmallVec::new(), Vec::new(), 0), core.locking);
        slot.peer.mark_gone(Gone::Unreachable(reason.into()));
        return Ok(slot);
    }
    let unreachable = |reason: String| Error::Unreachable { peer: rank, reason: reason.into() };
    let card = core
        .modex
        .get(rank, Card::KEY)?
        .ok_or_else(|| unreachable("it has not published its address yet".to_owned()))?;
    let card = Card::parse(&card).map_err(&unreachable)?;
    let mut links = links_to(core, rank)?;
    // Sort the best last, so that `pop` yields it.
    links.sort_by_key(|link| std::cmp::Reverse((link.capabilities().exclusivity, u32::MAX - link.serial)));
    links.reverse();
    let Some(best) = links.last().map(|link| link.capabilities().exclusivity) else {
        let tried: Vec<&str> = core.btls.iter().map(|slot| slot.btl.name()).collect();
        return Err(unreachable(format!("no transport of {tried:?} reaches it")));
    };
    let standby_len = links.partition_point(|link| link.capabilities().exclusivity < best);
    let mut active: SmallVec<[Link; 1]> = links.drain(standby_len..).rev().collect();
    // Headers take the link with the least latency.
    active.sort_by_key(|link| link.capabilities().latency);
    for link in &active {
        core.btls[link.btl].links.fetch_add(1, Ordering::Relaxed);
    }
    Ok(Slot::new(rank, Links::new(active, links, card.window), core.locking))
}

fn links_to(core: &Core, rank: Rank) -> Result<Vec<Link>, Error> {
    let mut links = Vec::new();
    // Modules of one name are neighbours and share one card.
    let mut last: Option<(&str, Option<Vec<u8>>)> = None;
    for (index, slot) in core.btls.iter().enumerate() {
        if last.as_ref().is_none_or(|(key, _)| *key != slot.key) {
            last = Some((&slot.key, core.modex.get(rank, &slot.key)?));
        }
        let Some((_, Some(card))) = &last else { continue };
        let endpoints = match slot.btl.connect(rank, card) {
            Ok(endpoints) => endpoints,
            Err(error) => {
                log::warn!("cannot use {} for peer {rank}: {error}", slot.btl.name());
                continue;
            }
        };
        let Some(tag) = slot.tag(rank) else { continue };
        // A header cannot name more links. No known machine has as many.
        for (ordinal, endpoint) in (0..=u8::MAX).zip(endpoints) {
            let serial = core.next_link.fetch_add(1, Ordering::Relaxed);
            links.push(Link { endpoint, btl: index, tag, ordinal, serial, load: 0.0, carried: false });
        }
    }
    Ok(links)
}
