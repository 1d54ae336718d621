//! The receiver's side.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::{Access, Flags, Region};

use super::{Claimed, Expected, GIVEN, Given, NONE};
use crate::communicator::Communicator;
use crate::completion::Done;
use crate::engine::Engine;
use crate::links::{Link, Links, Peer};
use crate::matching::{Pattern, PostKey};
use crate::receive::ReceiveTransfer;
use crate::request::Request;
use crate::wire::{Announced, Envelope, Exposed, Header, Id, Invite};

/// What a link must be able to do.
const ABLE: Flags = Flags::DEVICE_PUT.union(Flags::OFFER);

impl Engine {
    /// To be called before a receive in device memory is posted: if its sender may be invited, what [`invite`](Self::invite)
    /// takes. Until then the receive may have been matched by another thread, or ended, and nobody is to be invited.
    #[inline]
    pub(crate) fn expect_to_invite(
        &self,
        on: &Communicator,
        source: i32,
        request: NonNull<Request>,
    ) -> Option<Expected> {
        let peer = self.source(on, source).filter(|peer| peer.invitations.load(Relaxed) != NONE)?;
        if !self.parameters.device_invitations || self.copy_only() {
            return None;
        }
        Some(peer.links.lock().invitations.expect(request))
    }

    /// Invites the sender of the message `seq` to store it in the buffer of a receive that was just posted; false if that
    /// does not pay, or cannot be now. None for `seq`: other receives may get the message.
    ///
    /// # Safety
    /// The region is the buffer of this receive, which is not touched by anybody else until the receive completes.
    pub(crate) unsafe fn invite(
        &self,
        on: &Communicator,
        (pattern, key, expected): (Pattern, PostKey, Expected),
        (seq, region): (Option<u32>, Option<Region>),
    ) -> bool {
        let Some(peer) = self.source(on, pattern.source) else { return false };
        let mut done = Done::default();
        let (Some(seq), Some(region)) = (seq, region.filter(|region| region.len != 0)) else {
            self.with_links(peer, &mut done, |links, _| {
                if seq.is_none() {
                    links.note_window();
                }
                links.invitations.tell(peer);
            });
            done.run();
            return false;
        };
        let epoch = on.member(pattern.source.cast_unsigned()).epoch;
        let envelope = Envelope { context: on.context(), epoch, tag: pattern.tag, seq };
        // The peer's copy knows nothing of our default stream.
        let settled = self.devices.settled_since(&region.location, self.devices.moment());
        let invited = self.with_links(peer, &mut done, |links, _| {
            let may = links.invitations.is_expected(expected) && peer.gone().is_none() && links.may_invite();
            // SAFETY: the caller's promise. The receive has not been matched, or that has not got as far as the lock, and
            // will find the invitation.
            let invited = may && unsafe { links.invite(&envelope, key, region, settled) };
            links.invitations.tell(peer);
            invited
        });
        // The question takes longer than the peer does to get ready.
        let open = invited
            && (settled || {
                let idle = matches!(self.devices.ask_default_stream(&region.location), Ok(true));
                self.with_links(peer, &mut done, |links, _| links.open_invitation((&envelope, key), idle))
            });
        if open {
            self.counters.invitations.increment();
        }
        done.run();
        open
    }

    fn source(&self, on: &Communicator, source: i32) -> Option<&Peer> {
        let process = usize::try_from(source).ok().and_then(|source| on.group().get(source))?;
        self.known_peer(*process)
    }

    /// Takes an invitation back before its receive is cancelled: false if the peer has taken it, so that the receive cannot
    /// be.
    pub(crate) fn may_cancel(&self, request: &Request) -> bool {
        let (context, key) = (request.context().load(Relaxed), request.posted());
        let mut done = Done::default();
        let free = self.met().filter(|peer| peer.invitations.load(Relaxed) == GIVEN).all(|peer| {
            self.with_links(peer, &mut done, |links, _| {
                let given = links.invitations.given.as_ref();
                !given.is_some_and(|given| (given.envelope.context, given.key) == (context, key))
                    || links.withdraw_invitation()
            })
        });
        done.run();
        free
    }

    /// Takes back every invitation to a communicator's receives, of which no more are posted. What a peer is storing by one
    /// is announced, and gets its receive first.
    pub(crate) fn end_invitations(&self, on: &Communicator) {
        for peer in self.met() {
            self.wait_until(|| {
                let mut done = Done::default();
                let claimed = self.with_links(peer, &mut done, |links, _| {
                    links.invitations.expected = None;
                    let given = links.invitations.given.as_ref().filter(|given| given.envelope.context == on.context());
                    let key = given.map(|given| given.key)?;
                    if links.withdraw_invitation() { None } else { Some(key) }
                });
                done.run();
                // Of a peer that claims and then sends something else, nothing more is waited for.
                let awaited = |key| on.matching.lock().matcher.is_posted(key);
                peer.gone().is_some() || !claimed.is_some_and(awaited)
            });
        }
    }
}

/// Whether the only link can, and is one of those that are gone for good when they break: of what was claimed through it
/// nothing needs to be known later.
pub(crate) fn is_able(active: &[Link]) -> bool {
    let able = |link: &Link| {
        let flags = link.capabilities().flags;
        flags.contains(ABLE) && !flags.contains(Flags::FAILOVER)
    };
    matches!(active, [link] if able(link))
}

impl Links {
    /// Whether the next receive should come with an invitation.
    fn may_invite(&mut self) -> bool {
        if self.invitations.given.is_some() {
            // Its receive was matched by something else, or is another's. What the peer has claimed it will come to.
            if !self.withdraw_invitation() {
                return false;
            }
            self.invitations.worth.missed();
        }
        is_able(&self.active) && self.invitations.worth.pays() && self.failover.is_none()
    }

    /// # Safety
    /// As [`Engine::invite`].
    unsafe fn invite(&mut self, envelope: &Envelope, key: PostKey, region: Region, open: bool) -> bool {
        let Links { active, receives, invitations, queues, .. } = self;
        // Two threads may have posted at once. Nothing overtakes what waits.
        let ([link], true, true) = (active.as_mut_slice(), invitations.given.is_none(), queues.control.is_empty())
        else {
            return false;
        };
        // SAFETY: the buffer is the receive's until that completes, which takes this registration back first.
        let Ok(Some(registration)) = (unsafe { link.endpoint.register(region, Access::RemoteWrite) }) else {
            return false;
        };
        let Some(offer) = link.endpoint.prepare_offer() else { return false };
        if open {
            link.endpoint.open_offer(offer);
        }
        let (receiver, len) = (receives.reserve(), region.len as u64);
        let to = Exposed { btl: link.tag, ordinal: link.ordinal, handle: *registration.handle(), blocks: None };
        let (link, told, envelope, in_window) = (link.serial, Some(offer), *envelope, false);
        let given = Given { envelope, key, receiver, len, in_window, link, offer: told, open, registration };
        invitations.given = Some(Box::new(given));
        self.control(&Header::Invite(Invite { envelope, receiver, len, offer, to }));
        true
    }

    /// The default stream is idle, so that the peer may store; or it is not, and the invitation is taken back. False if the
    /// receive of this number is not to be stored so.
    fn open_invitation(&mut self, (envelope, key): (&Envelope, PostKey), idle: bool) -> bool {
        let Links { active, invitations, .. } = self;
        // Its message may have come meanwhile, by another thread.
        let of = |given: &&mut Box<Given>| (&given.envelope, given.key) == (envelope, key);
        let Some(given) = invitations.given.as_mut().filter(of) else { return false };
        if !idle {
            self.withdraw_invitation();
            return false;
        }
        let link = active.iter_mut().find(|link| link.serial == given.link);
        if let Some((link, offer)) = link.zip(given.offer) {
            link.endpoint.open_offer(offer);
            given.open = true;
        }
        given.open
    }

    /// Takes the invitation back, if there is one: false if the peer has claimed it.
    fn withdraw_invitation(&mut self) -> bool {
        let Links { active, receives, invitations, broken, .. } = self;
        let Some(given) = &mut invitations.given else { return true };
        // An offer is ended once.
        let Some(offer) = given.offer.take() else { return false };
        let withdrawn = match active.iter_mut().find(|link| link.serial == given.link) {
            Some(link) => link.endpoint.withdraw(offer).unwrap_or_else(|error| {
                *broken = Some((link.btl, error));
                false
            }),
            None => true,
        };
        if withdrawn {
            receives.release(given.receiver);
            invitations.given = None;
        }
        withdrawn
    }

    /// What the sender was told of the receive of this message, if that is the answer to its announcement; `would_ask` says
    /// whether the sender would be asked to store all of it. What is no answer is taken back.
    pub(crate) fn invitation_to(
        &mut self,
        envelope: &Envelope,
        announced: &Announced,
        would_ask: bool,
    ) -> Option<Box<Given>> {
        let given = self.invitations.given.as_ref().filter(|given| given.envelope.names(envelope))?;
        let in_window = given.in_window;
        let answers = would_ask && given.open && announced.invitable && announced.len <= given.len;
        if !answers && self.withdraw_invitation() {
            self.invitations.worth.missed();
            return None;
        }
        if !in_window {
            self.invitations.worth.taken();
        }
        self.invitations.given.take()
    }

    /// A receive was posted that is not alone: an invitation that is out was to the first of a window.
    fn note_window(&mut self) {
        if let Some(given) = &mut self.invitations.given
            && !std::mem::replace(&mut given.in_window, true)
        {
            self.invitations.worth.rest();
        }
    }

    /// Has a message stored as it was told. The peer need not have seen that yet.
    pub(crate) fn receive_as_told(&mut self, given: Given, mut transfer: ReceiveTransfer) -> Id {
        let Given { receiver, link, offer, registration, .. } = given;
        transfer.asked = transfer.wanted;
        transfer.awaited = transfer.wanted;
        transfer.keepers.extend(registration.into_keeper());
        transfer.claimed = offer.map(|offer| Claimed { link, offer });
        self.receives.fill(receiver, transfer);
        receiver
    }

    /// The message is here, or its sender is gone.
    pub(crate) fn end_claim(&mut self, Claimed { link, offer }: Claimed) {
        if let Some(link) = self.active.iter_mut().find(|other| other.serial == link)
            && let Err(error) = link.endpoint.withdraw(offer)
        {
            self.broken = Some((link.btl, error));
        }
    }

    /// The peer is gone.
    pub(crate) fn forget_invitations(&mut self, peer: &Peer) {
        if let Some(given) = self.invitations.given.take() {
            self.receives.release(given.receiver);
        }
        self.invitations = super::Invitations::default();
        self.invitations.tell(peer);
    }

    /// The peer stored all of a message that it was asked for.
    pub(crate) fn note_stored_whole(&mut self, peer: &Peer) {
        self.invitations.worth.stored();
        self.invitations.tell(peer);
    }
}
