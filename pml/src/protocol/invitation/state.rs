//! What is known of invitations between this process and one peer.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::{Flags, Offer, Registration};

use crate::core::{Completion, Link, Peer};
use crate::status::ANY;
use crate::wire::{Envelope, Id, Invite};

/// So many invitations in a row that nobody took, or one to the first receive of several, and none is given for a while:
/// until so many messages were stored without, twice as many each time that it happens again.
const PATIENCE: u32 = 8;
const PAUSE: u32 = 64;
const MOST_DOUBLED: u32 = 7;

/// A posted receive, as the layer of receives knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveKey {
    pub(crate) node: u32,
    pub(crate) number: u64,
}

/// Those between this process and one peer.
#[derive(Default)]
pub(crate) struct Invitations {
    /// The peer may take it.
    pub(super) given: Option<Box<Given>>,
    /// What the peer has given, for a message that has not been announced.
    pub(super) taken: Option<Box<Invite>>,
    /// The same for messages that were, where the peer is to see first whether its buffer is free.
    pub(super) pending: Vec<(Id, Box<Invite>)>,
    /// The receive that may come with the next one.
    pub(super) expected: Option<Expected>,
    /// How many were.
    pub(super) last: u64,
    pub(super) backoff: Backoff,
}

/// What [`Peer::hint`] says without the peer's lock: no invitation is given and none pays, one pays, or one is given. The
/// hint may be late.
pub(super) const NONE: u8 = 0;
const PAYS: u8 = 1;
pub(super) const GIVEN: u8 = 2;

impl Invitations {
    /// Lets that be known.
    pub(super) fn tell(&self, peer: &Peer) {
        let state = match (&self.given, self.backoff.pays()) {
            (Some(_), _) => GIVEN,
            (None, true) => PAYS,
            (None, false) => NONE,
        };
        peer.hint.store(state, Relaxed);
    }

    /// Whether the peer has told where this message goes.
    pub(crate) fn is_invited(&self, message: &Envelope) -> bool {
        self.taken.as_ref().is_some_and(|invite| invite.envelope.names(message))
    }

    /// Whether a buffer is waited for.
    #[inline]
    pub(crate) fn are_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// An invitation of ours.
pub(crate) struct Given {
    /// The message; its tag may be any.
    pub(super) envelope: Envelope,
    /// The receive.
    pub(super) key: ReceiveKey,
    /// What the peer knows the message's transfer by.
    pub(super) receiver: Id,
    pub(super) len: u64,
    /// Other receives were posted before its message came.
    pub(super) in_window: bool,
    /// The serial of the link whose offer it is.
    pub(super) link: u32,
    /// None once the peer was found to have claimed it.
    pub(super) offer: Option<Offer>,
    /// The default stream was found to be idle: the peer may claim it.
    pub(super) open: bool,
    pub(super) registration: Registration,
}

/// A receive that is about to be posted, for which the sender may be invited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Its request's address, which tells it from others while it is active; and a number, for the next one there.
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

    /// A receive has got an announced message: its sender is invited no more.
    pub(crate) fn note_matched(&mut self, request: NonNull<Completion>) {
        if self.expected.is_some_and(|expected| expected.request == request.as_ptr() as usize) {
            self.expected = None;
        }
    }
}

impl Envelope {
    /// Whether this message is the one that an invitation, whose envelope has any tag or one, is for.
    pub(crate) fn names(&self, message: &Envelope) -> bool {
        let fits = self.tag == message.tag || (self.tag == ANY && message.tag >= 0);
        fits && Envelope { tag: self.tag, ..*message } == *self
    }
}

/// The peer stored all of a message that it was asked for.
pub(crate) fn note_stored_whole(peer: &Peer, invitations: &mut Invitations) {
    invitations.backoff.stored();
    invitations.tell(peer);
}

/// What a link must be able to do.
const ABLE: Flags = Flags::DEVICE_PUT.union(Flags::OFFER);

/// Whether the only link can, and is one of those that are gone for good when they break: of what was claimed through it
/// nothing needs to be known later.
pub(crate) fn is_able(active: &[Link]) -> bool {
    matches!(active, [link] if link.has(ABLE) && !link.has(Flags::FAILOVER))
}

/// Whether invitations pay: pauses that double each time that one was of no use.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// The peer stores its messages.
    stores: bool,
    /// Invitations in a row that nobody took.
    missed: u32,
    /// Stored messages that have yet to come before the next invitation.
    pause: u32,
    /// Pauses since one was of use.
    pauses: u32,
}

impl Backoff {
    pub(super) fn pays(&self) -> bool {
        self.stores && self.pause == 0
    }

    /// The peer stored a message that it was asked for.
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
