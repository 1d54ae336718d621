//! The state of the network: messages under way, and faults.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cableway_btl::{Rank, Region, Token};

use super::transfer::Copying;

/// The state of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferState {
    Open,
    Claimed,
}
/// A message on the wire.
pub(super) type Bytes = Arc<[u8]>;
#[derive(Default)]
pub(super) struct State {
    pub(super) published: HashMap<(Rank, String), Vec<u8>>,
    /// Messages on the wire, by sender, receiver, transport and link.
    pub(super) queues: HashMap<(Rank, Rank, usize, usize), VecDeque<Bytes>>,
    pub(super) registered: HashMap<u64, Region>,
    pub(super) next_handle: u64,
    /// Pending one-sided operations of each rank.
    pub(super) operations: Vec<(Rank, usize, Token, Copying, Region, Region)>,
    /// Number of kernel operations so far.
    pub(super) packed: u32,
    pub(super) dead: HashMap<Rank, Vec<(Rank, usize)>>,
    /// Ranks that ended in good order, and the transports that have not reported it yet.
    pub(super) left: HashMap<Rank, Vec<(Rank, usize)>>,
    /// Ranks that are unreachable.
    pub(super) unreachable: Vec<Rank>,
    /// A transport that delivers nothing at present.
    pub(super) held: Option<usize>,
    /// Connections that were asked for, as sender and receiver.
    pub(super) reached: Vec<(Rank, Rank)>,
    /// A transport whose use fails.
    pub(super) broken: Option<usize>,
    /// The message (counted from now) and its bit that will be flipped.
    pub(super) corrupt: Option<(usize, usize)>,
    /// Offers that have not ended, with their states.
    pub(super) offers: HashMap<u64, (Rank, OfferState)>,
    pub(super) next_offer: u64,
    /// Messages of links with `FAILOVER`, by sender, receiver and transport, and the number of those delivered.
    pub(super) history: HashMap<(Rank, Rank, usize), (Vec<Bytes>, usize)>,
    /// Transports whose links will break or are broken.
    pub(super) severed: Vec<Severed>,
    /// The rank whose transport reports malformed bytes instead of a broken link.
    pub(super) blaming: Option<Rank>,
    /// Number of messages that each transport carried.
    pub(super) carried: HashMap<usize, usize>,
    pub(super) random: u64,
}
/// A transport that breaks after a number of events.
pub(super) struct Severed {
    pub(super) btl: usize,
    /// Events before it breaks.
    pub(super) after: usize,
    /// Ranks that notice the break.
    pub(super) noticing: Vec<Rank>,
    /// Whether a rank whose messages were lost notices the break.
    pub(super) senders_notice: bool,
    /// Ranks that were told of the break or noticed it.
    pub(super) told: Vec<Rank>,
    pub(super) reported: Vec<Rank>,
    pub(super) asked: Vec<Rank>,
    /// Operations that fail when the break is reported.
    pub(super) failing: Vec<(Rank, Token)>,
}

impl State {
    /// Counts an event of a transport before it happens.
    pub(super) fn tick(&mut self, btl: usize) {
        let Some(severed) = self.severed.iter_mut().find(|severed| severed.btl == btl && !severed.is_broken()) else {
            return;
        };
        severed.after -= 1;
        if severed.is_broken() {
            severed.told = severed.noticing.clone();
            if severed.senders_notice {
                let lost = self.queues.iter().filter(|(key, queue)| key.2 == btl && !queue.is_empty());
                severed.told.extend(lost.map(|(key, _)| key.0));
            }
            self.queues.retain(|key, _| key.2 != btl);
            let operations = std::mem::take(&mut self.operations);
            let (lost, others): (Vec<_>, Vec<_>) = operations.into_iter().partition(|operation| operation.1 == btl);
            self.operations = others;
            severed.failing = lost.into_iter().map(|operation| (operation.0, operation.2)).collect();
        }
    }

    /// Returns whether the transport is broken.
    pub(super) fn is_severed(&self, btl: usize) -> bool {
        self.severed.iter().any(|severed| severed.btl == btl && severed.is_broken())
    }

    /// Returns whether the transport is broken and `rank` knows it.
    pub(super) fn knows_severed(&self, btl: usize, rank: Rank) -> bool {
        self.severed.iter().any(|severed| severed.btl == btl && severed.is_broken() && severed.told.contains(&rank))
    }
}

impl Severed {
    pub(super) fn is_broken(&self) -> bool {
        self.after == 0
    }
}

impl State {
    pub(super) fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.random >> 33) as usize) % below.max(1)
    }
}
