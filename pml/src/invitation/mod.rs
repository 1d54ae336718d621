//! Invitations: a receiver tells a sender where a posted receive has its buffer, before the message is announced.
//!
//! A message between devices that its sender stores is announced, and answered with the name of the receiver's buffer:
//! two passages, and all that is done in each, before the copy begins. But which message will go to a receive is known
//! as soon as that is posted, if no other receive fits that message: the next one of its source, provided that the tag
//! fits. So the receiver says that much, and its [`Invite`] is the answer to an announcement that is on its way, or has
//! yet to be made (in UCX and the literature: ready to receive, RTR).
//!
//! ```text
//! receiver: post ─ Invite(seq) ─┬─ default stream idle? ─ open ─┐    Rendezvous(seq, invitable): matched, nothing to answer
//! sender:                send ──┴─ Rendezvous(seq) ─────────────┴─ claim ─ copy ─ Stored
//! ```
//!
//! All that follows is as if the receiver had asked for the data ([`Header::Put`](crate::wire::Header::Put)). Which of the two happened must be
//! known to both: a sender claims the [`Offer`] that comes with an invitation before it copies, and a receiver that
//! cancels the receive, or wants the data otherwise, withdraws it; one of the two can happen. While the receiver asks about
//! its default stream the offer is only prepared, so that the sender has all else done when it is opened. Where the announcement
//! says that the sender takes an invitation, and the receiver would answer it by a request to store all of it, the
//! invitation is this request, whether the sender has seen it yet or not.
//!
//! There is one at a time for each peer, whose stores of whole messages make another likely. Who posts several receives
//! at once waits for a window of messages, whose answers leave together, and whose copies are made together; the first
//! one is not to be made apart. So nobody is invited for a while then.

mod give;
mod take;

pub(crate) use give::is_able;

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::{Offer, Registration};

use crate::links::Peer;
use crate::matching::PostKey;
use crate::request::{ANY, Request};
use crate::wire::{Envelope, Id, Invite};

/// So many invitations in a row that nobody took, or one to the first receive of several, and none is given for a while:
/// until so many messages were stored without, twice as many each time that it happens again.
const PATIENCE: u32 = 8;
const PAUSE: u32 = 64;
const MOST_DOUBLED: u32 = 7;

/// Those between this process and one peer.
#[derive(Default)]
pub(crate) struct Invitations {
    /// The peer may take it.
    given: Option<Box<Given>>,
    /// What the peer has given, for a message that has not been announced.
    taken: Option<Box<Invite>>,
    /// The same for messages that were, where the peer is to see first whether its buffer is free.
    pending: Vec<(Id, Box<Invite>)>,
    /// The receive that may come with the next one.
    expected: Option<Expected>,
    /// How many were.
    last: u64,
    worth: Worth,
}

/// What is known of a peer's invitations without its lock: none is worth giving and none is given, one is worth it, or one
/// is given. May be late.
pub(crate) const NONE: u8 = 0;
const WORTH: u8 = 1;
const GIVEN: u8 = 2;

impl Invitations {
    /// Lets that be known.
    fn tell(&self, peer: &Peer) {
        let state = match (&self.given, self.worth.pays()) {
            (Some(_), _) => GIVEN,
            (None, true) => WORTH,
            (None, false) => NONE,
        };
        peer.invitations.store(state, Relaxed);
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
    envelope: Envelope,
    /// The receive.
    key: PostKey,
    /// What the peer knows the message's transfer by.
    receiver: Id,
    len: u64,
    /// Other receives were posted before its message came.
    in_window: bool,
    /// The serial of the link whose offer it is.
    link: u32,
    /// None once the peer was found to have claimed it.
    offer: Option<Offer>,
    /// The default stream was found to be idle: the peer may claim it.
    open: bool,
    registration: Registration,
}

/// A receive that is about to be posted, for which the sender may be invited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Its request's address, which tells it from others while it is active; and a number, for the next one there.
    request: usize,
    number: u64,
}

impl Invitations {
    fn expect(&mut self, request: NonNull<Request>) -> Expected {
        self.last += 1;
        let expected = Expected { request: request.as_ptr() as usize, number: self.last };
        *self.expected.insert(expected)
    }

    fn is_expected(&mut self, expected: Expected) -> bool {
        self.expected.take_if(|other| *other == expected).is_some()
    }

    /// A receive has got an announced message: its sender is invited no more.
    pub(crate) fn note_matched(&mut self, request: &Request) {
        if self.expected.is_some_and(|expected| expected.request == std::ptr::from_ref(request) as usize) {
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

/// What a message that is stored by invitation keeps until it is settled.
pub(crate) struct Claimed {
    link: u32,
    offer: Offer,
}

/// Whether invitations pay.
#[derive(Debug, Default)]
struct Worth {
    /// The peer stores its messages.
    stores: bool,
    /// Invitations in a row that nobody took.
    missed: u32,
    /// Stored messages that have yet to come before the next invitation.
    pause: u32,
    /// Pauses since one was of use.
    pauses: u32,
}

impl Worth {
    fn pays(&self) -> bool {
        self.stores && self.pause == 0
    }

    /// The peer stored a message that it was asked for.
    fn stored(&mut self) {
        self.stores = true;
        self.pause = self.pause.saturating_sub(1);
    }

    fn missed(&mut self) {
        self.missed += 1;
        if self.missed == PATIENCE {
            self.rest();
        }
    }

    fn rest(&mut self) {
        (self.missed, self.pause) = (0, PAUSE << self.pauses);
        self.pauses = (self.pauses + 1).min(MOST_DOUBLED);
    }

    fn taken(&mut self) {
        (self.missed, self.pauses) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored_until_it_pays(worth: &mut Worth) -> u32 {
        let mut count = 0;
        while !worth.pays() {
            worth.stored();
            count += 1;
        }
        count
    }

    #[test]
    fn invitations_that_nobody_takes_are_given_now_and_then() {
        let mut worth = Worth::default();
        assert_eq!(stored_until_it_pays(&mut worth), 1, "the peer has stored nothing before");
        for round in 0..10 {
            for _ in 0..PATIENCE {
                assert!(worth.pays());
                worth.missed();
            }
            assert_eq!(stored_until_it_pays(&mut worth), PAUSE << round.min(MOST_DOUBLED));
        }
        for _ in 0..PATIENCE * 2 {
            worth.missed();
            worth.taken();
            assert!(worth.pays());
        }
        worth.rest();
        assert_eq!(stored_until_it_pays(&mut worth), PAUSE);
    }
}
