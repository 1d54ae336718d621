//! The memory of this process that peers may access directly: pure state.
//!
//! A grant keeps the memory registered, here and with the transports, until the peer has released it or is gone.

use std::collections::{HashMap, HashSet};

use ahash::RandomState;
use cableway_base::Rank;

use super::exposures::Ticket;

/// Grants of `G`, which keeps the memory reachable.
pub(super) struct Grants<G> {
    /// By slot of the registration.
    slots: HashMap<u32, Vec<Grant<G>>, RandomState>,
    /// Peers that are gone.
    gone: HashSet<Rank, RandomState>,
    closed: bool,
}

struct Grant<G> {
    peer: Rank,
    generation: u32,
    /// `None` while it is made. Then the peer is not told of a revocation, because the grant must reach it first.
    held: Option<G>,
    told: bool,
}

/// Why nothing is granted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoGrant {
    /// The peer holds this grant already, so it must not ask.
    Twice,
    /// Nothing is granted any more, or not to this peer.
    Closed,
}

impl<G> Default for Grants<G> {
    fn default() -> Self {
        Grants { slots: HashMap::default(), gone: HashSet::default(), closed: false }
    }
}

impl<G> Grants<G> {
    /// Reserves a grant to a peer. [`hold`](Self::hold) or [`remove`](Self::remove) follows.
    pub(super) fn reserve(&mut self, peer: Rank, ticket: Ticket) -> Result<(), NoGrant> {
        let mut grants = self.slots.get(&ticket.slot).into_iter().flatten();
        if grants.any(|grant| grant.peer == peer) {
            return Err(NoGrant::Twice);
        }
        if self.closed || self.gone.contains(&peer) {
            return Err(NoGrant::Closed);
        }
        let grant = Grant { peer, generation: ticket.generation, held: None, told: false };
        self.slots.entry(ticket.slot).or_default().push(grant);
        Ok(())
    }

    /// Completes a grant, about which the peer was told. Returns what to drop if the peer is gone.
    #[must_use]
    pub(super) fn hold(&mut self, peer: Rank, ticket: Ticket, held: G) -> Option<G> {
        match self.grant(peer, ticket) {
            Some(grant) => {
                grant.held = Some(held);
                None
            }
            None => Some(held),
        }
    }

    /// Returns the peers that must be told that memory is revoked, each once.
    #[must_use]
    pub(super) fn revoke(&mut self, slot: u32) -> Vec<Rank> {
        let grants = self.slots.get_mut(&slot).into_iter().flatten();
        grants.filter_map(|grant| grant.tell().then_some(grant.peer)).collect()
    }

    /// Grants nothing any more. Returns every peer that must be told that memory is revoked, each once.
    #[must_use]
    pub(super) fn close(&mut self) -> Vec<(Rank, Ticket)> {
        self.closed = true;
        let all = self.slots.iter_mut().flat_map(|(&slot, grants)| grants.iter_mut().map(move |grant| (slot, grant)));
        let untold = all.filter_map(|(slot, grant)| {
            let ticket = Ticket { slot, generation: grant.generation };
            grant.tell().then_some((grant.peer, ticket))
        });
        untold.collect()
    }

    /// Removes a grant. Returns what kept the memory reachable, or `None` if there is no such grant, or none that the
    /// peer was told of.
    #[must_use]
    pub(super) fn remove(&mut self, peer: Rank, ticket: Ticket) -> Option<G> {
        let grants = self.slots.get_mut(&ticket.slot)?;
        let which = |grant: &Grant<G>| grant.peer == peer && grant.generation == ticket.generation;
        let held = grants.swap_remove(grants.iter().position(which)?).held;
        if grants.is_empty() {
            self.slots.remove(&ticket.slot);
        }
        held
    }

    /// Removes all grants to a peer that is gone, and makes no more.
    #[must_use]
    pub(super) fn lose(&mut self, peer: Rank) -> Vec<G> {
        self.gone.insert(peer);
        let lost = self.slots.values_mut().flat_map(|grants| grants.extract_if(.., |grant| grant.peer == peer));
        let lost = lost.filter_map(|grant| grant.held).collect();
        self.slots.retain(|_, grants| !grants.is_empty());
        lost
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn grant(&mut self, peer: Rank, ticket: Ticket) -> Option<&mut Grant<G>> {
        let mut grants = self.slots.get_mut(&ticket.slot)?.iter_mut();
        grants.find(|grant| grant.peer == peer && grant.generation == ticket.generation)
    }
}

impl<G> Grant<G> {
    /// Returns whether the peer must be told of the revocation now.
    fn tell(&mut self) -> bool {
        self.held.is_some() && !std::mem::replace(&mut self.told, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ticket = Ticket { slot: 1, generation: 4 };
    const B: Ticket = Ticket { slot: 2, generation: 1 };

    #[test]
    fn a_peer_is_told_once_and_only_of_what_it_knows() {
        let mut grants = Grants::default();
        assert!(grants.is_empty());
        grants.reserve(7, A).unwrap();
        assert_eq!(grants.reserve(7, A), Err(NoGrant::Twice));
        assert_eq!(grants.revoke(A.slot), [], "the peer does not know of it yet");
        assert_eq!(grants.hold(7, A, "a"), None);
        grants.reserve(8, A).unwrap();
        assert_eq!(grants.hold(8, A, "b"), None);
        assert_eq!(grants.revoke(B.slot), []);
        assert_eq!(grants.revoke(A.slot), [7, 8]);
        assert_eq!(grants.revoke(A.slot), []);
        assert_eq!(grants.remove(7, Ticket { generation: 3, ..A }), None, "another generation");
        assert_eq!(grants.remove(9, A), None, "another peer");
        assert_eq!(grants.remove(7, A), Some("a"));
        assert_eq!(grants.remove(7, A), None);
        assert!(!grants.is_empty());
        assert_eq!(grants.remove(8, A), Some("b"));
        assert!(grants.is_empty());
    }

    #[test]
    fn peers_that_are_gone_hold_and_get_nothing() {
        let mut grants = Grants::default();
        grants.reserve(7, A).unwrap();
        assert_eq!(grants.hold(7, A, 1), None);
        grants.reserve(7, B).unwrap();
        grants.reserve(8, B).unwrap();
        assert_eq!(grants.hold(8, B, 2), None);
        assert_eq!(grants.lose(7), [1]);
        assert_eq!(grants.hold(7, B, 3), Some(3), "it went while the grant was made");
        assert_eq!(grants.reserve(7, A), Err(NoGrant::Closed));
        assert_eq!(grants.close(), [(8, B)]);
        assert_eq!(grants.reserve(9, A), Err(NoGrant::Closed));
        assert_eq!(grants.remove(8, B), Some(2));
        assert!(grants.is_empty(), "refusals leave nothing to wait for");
    }
}
