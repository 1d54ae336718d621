//! State of the invitations between this process and one peer.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::{Flags, Offer, Registration};

use crate::core::{Completion, Link, Peer};
use crate::status::ANY;
use crate::wire::{Envelope, Id, Invite};

/// Unused invitations in a row that start a pause, as does one to the first receive of several. The pause lasts for a
/// number of stored messages, which doubles each time.
const PATIENCE: u32 = 8;
const PAUSE: u32 = 64;
const MOST_DOUBLED: u32 = 7;

/// A posted receive, as the tag layer identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveKey {
    pub(crate) node: u32,
    pub(crate) number: u64,
}

/// The invitations between this process and one peer.
#[derive(Default)]
pub(crate) struct Invitations {
    /// The open invitation to the peer.
    pub(super) given: Option<Box<Given>>,
    /// Invitations by the peer for messages that have not been announced.
    pub(super) taken: Option<Box<Invite>>,
    /// Invitations for announced messages that wait for the peer to open them.
    pub(super) pending: Vec<(Id, Box<Invite>)>,
    /// The receive that may come with the next one.
    pub(super) expected: Option<Expected>,
    /// The number of invitations given.
    pub(super) last: u64,
    pub(super) backoff: Backoff,
}

/// The meaning of [`Peer::hint`], which is read without the peer's lock: invitations do not pay, one pays, or one is
/// given. The hint may be late.
pub(super) const NONE: u8 = 0;
const PAYS: u8 = 1;
pub(super) const GIVEN: u8 = 2;

impl Invitations {
    /// Publishes the hint.
    pub(super) fn tell(&self, peer: &Peer) {
        let state = match (&self.given, self.backoff.pays()) {
            (Some(_), _) => GIVEN,
            (None, true) => PAYS,
            (None, false) => NONE,
        };
        peer.hint.store(state, Relaxed);
    }

    /// Returns whether the peer has named the memory for this message.
    pub(crate) fn is_invited(&self, message: &Envelope) -> bool {
        self.taken.as_ref().is_some_and(|invite| invite.envelope.names(message))
    }

    /// Returns whether a message waits for an invitation to open.
    #[inline]
    pub(crate) fn are_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// An invitation given by this process.
pub(crate) struct Given {
    /// The message; its tag may be any.
    pub(super) envelope: Envelope,
    /// The receive.
    pub(super) key: ReceiveKey,
    /// The peer's name for the message's transfer.
    pub(super) receiver: Id,
    pub(super) len: u64,
    /// Whether other receives were posted before its message came.
    pub(super) in_window: bool,
    /// The serial of the link that made the offer.
    pub(super) link: u32,
    /// `None` once the peer has claimed it.
    pub(super) offer: Option<Offer>,
    /// Whether the default stream was idle, so that the peer may claim it.
    pub(super) open: bool,
    pub(super) registration: Registration,
}

/// A receive that is about to be posted, for which the sender may be invited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The address of its request, which identifies an active receive, and a number, for the next receive at that
    /// address.
    request: usize,
    number: u64,
}

impl Invitations {
    pub(super) fn expect(&mut self, request: NonNull<Completion>) -> Expected {
        self.last += 1;
        let expected = Expected { request: request.as_ptr() as usize, number: self.last };
        *self.expected.insert(expected)
    }

    pub(super) fn is_expected(&mut self, expected: Expected) -> bool {
        self.expected.take_if(|other| *other == expected).is_some()
    }

    /// Notes that a receive has matched an announced message, so that its sender is not invited any more.
    pub(crate) fn note_matched(&mut self, request: NonNull<Completion>) {
        if self.expected.is_some_and(|expected| expected.request == request.as_ptr() as usize) {
            self.expected = None;
        }
    }
}

impl Envelope {
    /// Returns whether an invitation, with a tag or any, is for this message.
    pub(crate) fn names(&self, message: &Envelope) -> bool {
        let fits = self.tag == message.tag || (self.tag == ANY && message.tag >= 0);
        fits && Envelope { tag: self.tag, ..*message } == *self
    }
}

/// Notes that the peer stored a whole message on request.
pub(crate) fn note_stored_whole(peer: &Peer, invitations: &mut Invitations) {
    invitations.backoff.stored();
    invitations.tell(peer);
}

/// The flags that a link needs.
const ABLE: Flags = Flags::DEVICE_PUT.union(Flags::OFFER);

/// Returns whether the only link has these flags and cannot fail over, so that claims need not survive it.
pub(crate) fn is_able(active: &[Link]) -> bool {
    matches!(active, [link] if link.has(ABLE) && !link.has(Flags::FAILOVER))
}

/// Decides whether invitations pay, with pauses that double each time that one was useless.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Whether the peer stores its messages.
    stores: bool,
    /// Unused invitations in a row.
    missed: u32,
    /// Messages to be stored before the next invitation.
    pause: u32,
    /// Pauses since a useful invitation.
    pauses: u32,
}

impl Backoff {
    pub(super) fn pays(&self) -> bool {
        self.stores && self.pause == 0
    }

    /// Notes that the peer stored a message on request.
    pub(super) fn stored(&mut self) {
        self.stores = true;
        self.pause = self.pause.saturating_sub(1);
    }

    pub(super) fn missed(&mut self) {
        self.missed += 1;
        if self.missed == PATIENCE {
            self.rest();
        }
    }

    pub(super) fn rest(&mut self) {
        (self.missed, self.pause) = (0, PAUSE << self.pauses);
        self.pauses = (self.pauses + 1).min(MOST_DOUBLED);
    }

    pub(super) fn taken(&mut self) {
        (self.missed, self.pauses) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored_until_it_pays(backoff: &mut Backoff) -> u32 {
        let mut count = 0;
        while !backoff.pays() {
            backoff.stored();
            count += 1;
        }
        count
    }

    #[test]
    fn invitations_that_nobody_takes_are_given_now_and_then() {
        let mut backoff = Backoff::default();
        assert_eq!(stored_until_it_pays(&mut backoff), 1, "the peer has stored nothing before");
        for round in 0..10 {
            for _ in 0..PATIENCE {
                assert!(backoff.pays());
                backoff.missed();
            }
            assert_eq!(stored_until_it_pays(&mut backoff), PAUSE << round.min(MOST_DOUBLED));
        }
        for _ in 0..PATIENCE * 2 {
            backoff.missed();
            backoff.taken();
            assert!(backoff.pays());
        }
        backoff.rest();
        assert_eq!(stored_until_it_pays(&mut backoff), PAUSE);
    }
}
