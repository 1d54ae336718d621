//! What the core asks of the layers above it.

use cableway_btl::{Error, Received};

use super::completion::Done;
use super::connect::Peers;
use super::peer::{Channel, PeerState, Slot};
use super::shared::Core;
use crate::wire::Malformed;

/// An engine as its core sees it. The layers above handle these events.
pub(crate) trait Host: Sized {
    /// State of a peer in the layers above.
    type PeerState: PeerState;

    fn core(&self) -> &Core;
    fn peers(&self) -> &Peers<Self::PeerState>;

    /// Handles a message that arrived.
    fn received(&self, slot: &Slot<Self::PeerState>, message: &Received<'_>, done: &mut Done) -> Result<(), Malformed>;

    /// Handles the end of an operation of a link.
    fn completed(
        &self,
        slot: &Slot<Self::PeerState>,
        channel: &mut Channel<Self::PeerState>,
        operation: <Self::PeerState as PeerState>::Operation,
        result: Result<(), Error>,
        done: &mut Done,
    );

    /// Continues what waits for the peer's links, whose control queue is empty. Returns how much left.
    fn advance(&self, slot: &Slot<Self::PeerState>, channel: &mut Channel<Self::PeerState>, done: &mut Done) -> usize;

    /// Ends the transfers of a peer that is gone.
    fn abandon(&self, slot: &Slot<Self::PeerState>, channel: &mut Channel<Self::PeerState>, done: &mut Done);

    /// Ends everything else that waits for a peer that is gone. The peer's lock is free.
    fn ended(&self, slot: &Slot<Self::PeerState>, done: &mut Done);

    /// Returns whether device copies are under way.
    fn has_copies(&self) -> bool;

    /// Runs the next steps of copies that ended. Returns how many. Their control messages gather, and the caller sends
    /// them by handling waiting peers.
    fn poll_copies(&self) -> usize;
}
