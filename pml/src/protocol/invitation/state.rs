//! State of the invitations between this process and one peer.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::{Flags, Offer, Registration};

use super::header::Invite;
use crate::core::{Completion, Link, Peer};
use crate::status::ANY;
use crate::wire::{Envelope, Id};

/// Unused invitations in a row that start a pause. An invitation for the first of several receives also starts one.
const PATIENCE: u32 = 8;
/// Stored messages in the first pause. Each further pause is twice as long, up to [`MOST_DOUBLED`] times.
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
    /// The invitation sent to the peer.
    pub(super) sent: Option<Box<SentInvite>>,
    /// The peer's last invitation, if it is for a message that has not been announced.
    pub(super) received: Option<Box<Invite>>,
    /// The peer's invitations for announced messages, until the peer opens or withdraws them.
    pub(super) pending: Vec<(Id, Box<Invite>)>,
    /// The receive for which the next invitation may be sent.
    pub(super) expected: Option<Expected>,
    /// The number of the last expected receive.
    pub(super) last: u64,
    pub(super) backoff: Backoff,
}

/// Values of [`Peer::hint`], which is read without the peer's lock and may be out of date: invitations do not pay, an
/// invitation pays, or an invitation was sent.
pub(super) const NONE: u8 = 0;
const PAYS: u8 = 1;
pub(super) const SENT: u8 = 2;

impl Invitations {
    /// Updates the hint.
    pub(super) fn publish_hint(&self, peer: &Peer) {
        let state = match (&self.sent, self.backoff.pays()) {
            (Some(_), _) => SENT,
            (None, true) => PAYS,
            (None, false) => NONE,
        };
        peer.hint.store(state, Relaxed);
    }

    /// Returns whether the peer has invited this message.
    pub(crate) fn is_invited(&self, message: &Envelope) -> bool {
        self.received.as_ref().is_some_and(|invite| invite.envelope.names(message))
    }

    /// Returns whether a message waits for an invitation to open.
    #[inline]
    pub(crate) fn are_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// An invitation sent by this process.
pub(crate) struct SentInvite {
    /// The message's envelope. The tag may be [`ANY`].
    pub(super) envelope: Envelope,
    /// The posted receive.
    pub(super) key: ReceiveKey,
    /// The receiver's transfer, as the peer names it in headers.
    pub(super) receiver: Id,
    pub(super) len: u64,
    /// Whether other receives were posted before its message arrived.
    pub(super) in_window: bool,
    /// The serial of the link that made the offer.
    pub(super) link: u32,
    /// `None` after an attempt to withdraw it failed because the peer had claimed it.
    pub(super) offer: Option<Offer>,
    /// Whether the default stream was idle, so that the peer may claim it.
    pub(super) open: bool,
    pub(super) registration: Registration,
}

/// State of an invited message until it is settled.
pub(crate) struct Claimed {
    pub(crate) link: u32,
    pub(crate) offer: Offer,
}

/// A receive that is about to be posted. Its sender may be invited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The address of its request, which identifies an active receive.
    request: usize,
    /// A serial number, because a later receive may use the same request.
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

    /// Notes that a receive has matched an announced message. Its sender is not invited any more.
    pub(crate) fn note_matched(&mut self, request: NonNull<Completion>) {
        if self.expected.is_some_and(|expected| expected.request == request.as_ptr() as usize) {
            self.expected = None;
        }
    }
}

impl Envelope {
    /// Returns whether an invitation with this envelope is for the message. The envelope's tag may be [`ANY`].
    pub(crate) fn names(&self, message: &Envelope) -> bool {
        let fits = self.tag == message.tag || (self.tag == ANY && message.tag >= 0);
        fits && Envelope { tag: self.tag, ..*message } == *self
    }
}

/// Notes that the peer stored a whole message on request.
pub(crate) fn note_stored_whole(peer: &Peer, invitations: &mut Invitations) {
    invitations.backoff.stored();
    invitations.publish_hint(peer);
}

/// The flags that a link needs.
const ABLE: Flags = Flags::DEVICE_PUT.union(Flags::OFFER);

/// Returns whether the only link has these flags and cannot fail over, so that claims need not survive it.
pub(crate) fn is_able(active: &[Link]) -> bool {
    matches!(active, [link] if link.has(ABLE) && !link.has(Flags::FAILOVER))
}

/// Decides whether invitations pay. Pauses after unused invitations, each time for twice as long.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Whether the peer stores its messages.
    stores: bool,
    /// Unused invitations in a row.
    unused: u32,
    /// Messages to be stored before the next invitation.
    pause: u32,
    /// Pauses since the last used invitation.
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

    pub(super) fn unused(&mut self) {
        self.unused += 1;
        if self.unused == PATIENCE {
            self.pause();
        }
    }

    pub(super) fn pause(&mut self) {
        (self.unused, self.pause) = (0, PAUSE << self.pauses);
        self.pauses = (self.pauses + 1).min(MOST_DOUBLED);
    }

    pub(super) fn used(&mut self) {
        (self.unused, self.pauses) = (0, 0);
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
    fn unused_invitations_pause_for_longer_each_time() {
        let mut backoff = Backoff::default();
        assert_eq!(stored_until_it_pays(&mut backoff), 1, "the peer has stored nothing before");
        for round in 0..10 {
            for _ in 0..PATIENCE {
                assert!(backoff.pays());
                backoff.unused();
            }
            assert_eq!(stored_until_it_pays(&mut backoff), PAUSE << round.min(MOST_DOUBLED));
        }
        for _ in 0..PATIENCE * 2 {
            backoff.unused();
            backoff.used();
            assert!(backoff.pays());
        }
        backoff.pause();
        assert_eq!(stored_until_it_pays(&mut backoff), PAUSE);
    }
}
