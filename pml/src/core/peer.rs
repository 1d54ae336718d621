//! A peer: what is known of it without a lock, and the state that its lock guards.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use cableway_base::counters::Counter;
use cableway_base::lock::{Lock, Locking, Sum};
use cableway_base::{Counters, Rank};
use cableway_btl::{Error as BtlError, Token, Transfer};
use slab::Slab;

use super::completion::Done;
use super::links::Links;
use super::shared::Core;
use crate::error::Error;

/// Why a process is gone.
#[derive(Clone, Debug)]
pub(crate) enum Gone {
    /// It died, or was disconnected.
    Failed(Arc<str>),
    /// It ended in good order, and everything it sent has arrived.
    Left,
    /// It was never connected.
    Unreachable(Arc<str>),
}

/// A process that exchanges messages with this one.
pub(crate) struct Peer {
    pub(crate) rank: Rank,
    gone: OnceLock<Gone>,
    /// Cost of the eager messages received from this peer.
    pub(crate) consumed: Sum,
    /// Credit returned to the peer.
    pub(crate) credited: AtomicU64,
    /// Cost of its messages that wait here.
    pub(crate) stored: Sum,
    /// Counts its messages, except eager ones.
    pub(crate) heard: AtomicU64,
    /// Counters under the peer's lock, in addition to the engine's.
    pub(crate) counters: PeerCounters,
}

/// Counters that one peer's lock serialises, so that counting needs no atomic read-modify-write. They lie outside the
/// lock, because readers hold none.
#[derive(Default)]
pub(crate) struct PeerCounters {
    pub(crate) sends_eager: Counter,
    pub(crate) bytes_eager: Counter,
    pub(crate) sends_rendezvous: Counter,
    pub(crate) device_direct: Counter,
}

impl PeerCounters {
    /// Adds these counters to a sum over all peers.
    pub(crate) fn add_to(&self, sum: &Counters) {
        sum.sends_eager.add(self.sends_eager.get());
        sum.bytes_eager.add(self.bytes_eager.get());
        sum.sends_rendezvous.add(self.sends_rendezvous.get());
        sum.device_direct.add(self.device_direct.get());
    }
}

impl Peer {
    /// Returns why the peer is gone, if it is.
    #[inline]
    pub(crate) fn gone(&self) -> Option<&Gone> {
        self.gone.get()
    }

    pub(crate) fn has_left(&self) -> bool {
        matches!(self.gone.get(), Some(Gone::Left))
    }

    /// Marks the peer gone. Returns false if it was already.
    pub(crate) fn mark_gone(&self, gone: Gone) -> bool {
        self.gone.set(gone).is_ok()
    }

    /// # Errors
    /// The peer is gone.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.gone.get() {
            None => Ok(()),
            Some(gone) => Err(self.error(gone)),
        }
    }

    #[cold]
    fn error(&self, gone: &Gone) -> Error {
        let peer = self.rank;
        match gone {
            Gone::Failed(reason) => Error::PeerFailed { peer, reason: reason.clone() },
            Gone::Left => Error::PeerLeft { peer },
            Gone::Unreachable(reason) => Error::Unreachable { peer, reason: reason.clone() },
        }
    }

    /// Starts an operation of a link. If it is under way afterwards, `operations` keeps `operation` for its completion.
    pub(crate) fn start<O>(
        &self,
        operations: &mut Slab<O>,
        operation: O,
        start: impl FnOnce(Token) -> Result<Transfer, BtlError>,
    ) -> Result<Transfer, BtlError> {
        let index = operations.insert(operation);
        let started = start(Token(u64::from(self.rank) << 32 | index as u64));
        if !matches!(started, Ok(Transfer::Started)) {
            operations.remove(index);
        }
        started
    }
}

/// State of a peer in the layers above, under the peer's lock.
pub(crate) trait PeerState: Default + Send {
    /// Their state of an operation of a link.
    type Operation: Send;

    /// Returns whether nothing waits for a retry.
    fn is_idle(&self) -> bool;

    /// Handles that the links were suspended and will be replaced.
    fn links_put_away(&mut self);

    /// Drops everything that waits for a link.
    fn clear_queues(&mut self);
}

/// The state that a peer's lock guards.
pub(crate) struct Channel<A: PeerState> {
    pub(crate) links: Links<A::Operation>,
    pub(crate) state: A,
}

impl<A: PeerState> Channel<A> {
    /// Returns whether nothing waits for a retry.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.links.are_idle() && self.state.is_idle()
    }
}

/// A peer and its channel.
pub(crate) struct Slot<A: PeerState> {
    pub(crate) peer: Peer,
    /// Serialises messages to this peer, and its transfers. Never held together with a matching lock.
    pub(crate) channel: Lock<Channel<A>>,
}

impl<A: PeerState> Slot<A> {
    pub(crate) fn new(rank: Rank, links: Links<A::Operation>, locking: Locking) -> Self {
        Slot {
            peer: Peer {
                rank,
                gone: OnceLock::new(),
                consumed: Sum::new(locking),
                credited: AtomicU64::new(0),
                stored: Sum::new(locking),
                heard: AtomicU64::new(0),
                counters: PeerCounters::default(),
            },
            channel: Lock::new(locking, Channel { links, state: A::default() }),
        }
    }

    /// Runs `act` with the peer's channel. Progress handles what it leaves behind: queued work, a broken link.
    #[inline]
    pub(crate) fn with<R>(&self, core: &Core, done: &mut Done, act: impl FnOnce(&mut Channel<A>, &mut Done) -> R) -> R {
        let mut channel = self.channel.lock();
        let result = act(&mut channel, done);
        if channel.links.control.has_gathered() && !done.gathers {
            channel.links.flush_control();
        }
        self.note_work(core, &mut channel);
        result
    }

    /// Lists the peer if it has waiting work.
    #[inline]
    pub(crate) fn note_work(&self, core: &Core, channel: &mut Channel<A>) {
        if !channel.is_idle() && !channel.links.listed {
            channel.links.listed = true;
            core.waiting.add(self.peer.rank);
        }
    }
}
