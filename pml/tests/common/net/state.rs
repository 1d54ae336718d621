//! What is under way in the network, and how it breaks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cableway_btl::{Rank, Region, Token};

use super::transfer::Copying;

/// How an offer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferState {
    Prepared,
    Open,
    Claimed,
}
/// A message on its way.
pub(super) type Bytes = Arc<[u8]>;
#[derive(Default)]
pub(super) struct State {
    pub(super) published: HashMap<(Rank, String), Vec<u8>>,
    /// By sender, receiver, transport and link.
    pub(super) queues: HashMap<(Rank, Rank, usize, usize), VecDeque<Bytes>>,
    pub(super) registered: HashMap<u64, Region>,
    pub(super) next_handle: u64,
    /// One-sided operations to be carried out for a rank.
    pub(super) operations: Vec<(Rank, usize, Token, Copying, Region, Region)>,
    /// Operations of kernels so far.
    pub(super) packed: u32,
    pub(super) dead: HashMap<Rank, Vec<(Rank, usize)>>,
    /// Who has ended in good order, and which transports of whom are still to be told.
    pub(super) left: HashMap<Rank, Vec<(Rank, usize)>>,
    /// Who has never been there.
    pub(super) unreachable: Vec<Rank>,
    /// A transport that delivers nothing for a while.
    pub(super) held: Option<usize>,
    /// Who has asked to be connected to whom.
    pub(super) reached: Vec<(Rank, Rank)>,
    /// A transport that does not work.
    pub(super) broken: Option<usize>,
    /// The message (counted from now) and its bit that will be flipped.
    pub(super) corrupt: Option<(usize, usize)>,
    /// Offers that have not been ended, and how they stand.
    pub(super) offers: HashMap<u64, (Rank, OfferState)>,
    pub(super) next_offer: u64,
    /// What was sent by links with `FAILOVER`, by sender, receiver and transport, and how much of it was handed up.
    pub(super) history: HashMap<(Rank, Rank, usize), (Vec<Bytes>, usize)>,
    /// The transports whose links are to break, or are broken.
    pub(super) severed: Vec<Severed>,
    /// Whose transports say that a broken link's peer broke the rules.
    pub(super) blaming: Option<Rank>,
    /// Messages that each transport was given.
    pub(super) carried: HashMap<usize, usize>,
    pub(super) random: u64,
}
/// A transport that breaks in the course of events.
pub(super) struct Severed {
    pub(super) btl: usize,
    /// How many of its events still happen; then it is broken.
    pub(super) after: usize,
    /// Who notices by himself.
    pub(super) noticing: Vec<Rank>,
    /// And whose messages are lost.
    pub(super) senders_notice: bool,
    /// Who has been told, or notices.
    pub(super) told: Vec<Rank>,
    pub(super) reported: Vec<Rank>,
    pub(super) asked: Vec<Rank>,
    /// Operations that will fail when that is reported.
    pub(super) failing: Vec<(Rank, Token)>,
}

impl State {
    /// An event of a transport is about to happen.
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

    /// Whether the transport is broken.
    pub(super) fn is_severed(&self, btl: usize) -> bool {
        self.severed.iter().any(|severed| severed.btl == btl && severed.is_broken())
    }

    /// Whether it is, and `rank` knows.
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
