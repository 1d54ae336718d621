//! What the core asks of the layers above it.

use cableway_btl::{Error, Received};

use super::completion::Done;
use super::connect::Peers;
use super::peer::{Channel, PeerState, Slot};
use super::shared::Core;
use crate::wire::Malformed;

/// An engine, as its core sees it: what the layers above do with what happens.
pub(crate) trait Host: Sized {
    /// What they keep of a peer.
    type PeerState: PeerState;

    fn core(&self) -> &Core;
    fn peers(&self) -> &Peers<Self::PeerState>;

    /// A message has arrived.
    fn received(&self, slot: &Slot<Self::PeerState>, message: &Received<'_>, done: &mut Done) -> Result<(), Malformed>;

    /// An operation of a link has ended.
    fn completed(
        &self,
        slot: &Slot<Self::PeerState>,
        channel: &mut Channel<Self::PeerState>,
        operation: <Self::PeerState as PeerState>::Operation,
        result: Result<(), Error>,
        done: &mut Done,
    );

    /// Goes on with what waited for the peer's links, whose control queue is empty; returns how much left.
    fn advance(&self, slot: &Slot<Self::PeerState>, channel: &mut Channel<Self::PeerState>, done: &mut Done) -> usize;

    /// The peer is gone: ends its transfers.
    fn abandon(&self, slot: &Slot<Self::PeerState>, channel: &mut Channel<Self::PeerState>, done: &mut Done);

    /// The peer is gone, and its lock free: ends what else waits for it.
    fn ended(&self, slot: &Slot<Self::PeerState>, done: &mut Done);

    /// Whether device copies are under way.
    fn has_copies(&self) -> bool;

    /// Sees to copies that have ended; returns how many.
    fn poll_copies(&self) -> usize;
}
