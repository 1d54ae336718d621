//! The receiver's side.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::{Access, Region};
use cableway_common_cuda::Devices;

use super::state::{Expected, GIVEN, Given, Invitations, NONE, ReceiveKey, is_able};
use crate::core::{Completion, Core, Done, Peer};
use crate::protocol::context::Links;
use crate::protocol::transfer::{Channel, Claimed, Incoming, Protocol, Slot, State};
use crate::wire::{Announced, Envelope, Exposed, Header, Id, Invite};

/// Prepares an invitation before a receive in device memory is posted: returns the value that [`invite`] needs if the
/// sender may be invited. Another thread may match or end the receive before that; then no one is invited.
#[inline]
pub(crate) fn expect(core: &Core, slot: &Slot, request: NonNull<Completion>) -> Option<Expected> {
    if slot.peer.hint.load(Relaxed) == NONE || !core.parameters.device_invitations || core.copy_only() {
        return None;
    }
    Some(slot.channel.lock().state.invitations.expect(request))
}

/// Invites the sender of a message to store it in the buffer of a receive that was just posted. Returns false if that
/// does not pay, or is impossible now. Without `message`, other receives may get the message.
///
/// # Safety
/// The region is the buffer of this receive. Nothing else accesses it until the receive completes.
pub(crate) unsafe fn invite(
    core: &Core,
    slot: &Slot,
    (message, key, expected): (Option<Envelope>, ReceiveKey, Expected),
    region: Option<Region>,
) -> bool {
    let mut done = Done::default();
    let (Some(message), Some(region)) = (message, region.filter(|region| region.len != 0)) else {
        slot.with(core, &mut done, |channel, _| {
            let invitations = &mut channel.state.invitations;
            if message.is_none() {
                note_window(invitations);
            }
            invitations.tell(&slot.peer);
        });
        done.run();
        return false;
    };
    // The peer's copy does not wait for this process's default stream.
    let settled = core.devices.settled_since(&region.location, core.devices.moment());
    let invited = slot.with(core, &mut done, |channel, _| {
        let expected = channel.state.invitations.is_expected(expected);
        let may = expected && slot.peer.gone().is_none() && may_invite(channel);
        // SAFETY: the caller's promise. The receive is not matched, or its match waits for the lock and will see the
        // invitation.
        let invited = may && unsafe { tell(channel, &message, key, region, settled) };
        channel.state.invitations.tell(&slot.peer);
        invited
    });
    let open = invited && (settled || open(core, slot, (&message, key), &region, &mut done));
    if open {
        core.counters.invitations.increment();
    }
    done.run();
    open
}

/// Opens the invitation if the default stream is idle. The question takes longer than the peer takes to get ready.
fn open(core: &Core, slot: &Slot, of: (&Envelope, ReceiveKey), region: &Region, done: &mut Done) -> bool {
    let idle = |devices: &Devices| matches!(devices.ask_default_stream(&region.location), Ok(true));
    let idle = idle(&core.devices);
    slot.with(core, done, |channel, _| open_invitation(channel, of, idle))
}

/// Withdraws the invitation to a receive before that is cancelled. Returns false if the peer has claimed it, so that
/// the receive cannot be cancelled.
pub(crate) fn is_withdrawn(core: &Core, slot: &Slot, of: (u32, ReceiveKey), done: &mut Done) -> bool {
    slot.peer.hint.load(Relaxed) != GIVEN
        || slot.with(core, done, |channel, _| {
            let given = channel.state.invitations.given.as_ref();
            !given.is_some_and(|given| (given.envelope.context, given.key) == of) || withdraw(channel)
        })
}

/// Withdraws an invitation to a receive of a communicator that is being removed. Returns the receive if the peer has
/// claimed the invitation.
pub(crate) fn end(core: &Core, slot: &Slot, context: u32) -> Option<ReceiveKey> {
    let mut done = Done::default();
    let claimed = slot.with(core, &mut done, |channel, _| {
        let invitations = &mut channel.state.invitations;
        invitations.expected = None;
        let given = invitations.given.as_ref().filter(|given| given.envelope.context == context);
        let key = given.map(|given| given.key)?;
        if withdraw(channel) { None } else { Some(key) }
    });
    done.run();
    claimed
}

/// Returns whether the next receive should come with an invitation.
fn may_invite(channel: &mut Channel) -> bool {
    if channel.state.invitations.given.is_some() {
        // Another message matched its receive, or the address belongs to another receive. The peer will use what it has
        // claimed.
        if !withdraw(channel) {
            return false;
        }
        channel.state.invitations.backoff.missed();
    }
    let Channel { links, state } = channel;
    is_able(&links.active) && state.invitations.backoff.pays() && links.failover.is_none()
}

/// # Safety
/// As [`invite`].
unsafe fn tell(channel: &mut Channel, envelope: &Envelope, key: ReceiveKey, region: Region, open: bool) -> bool {
    let Channel { links, state: State { receives, invitations, .. } } = channel;
    // Two threads may have posted at once. Queued headers keep their order.
    let free = invitations.given.is_none() && links.control.waiting.is_empty();
    let ([link], true) = (links.active.as_mut_slice(), free) else { return false };
    // SAFETY: the buffer belongs to the receive until that completes, which withdraws this registration first.
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
    links.send_control(&Header::Invite(Invite { envelope, receiver, len, offer, to }));
    true
}

/// Opens the invitation if the default stream is idle, and withdraws it otherwise. Returns false if the peer is not to
/// store the message.
fn open_invitation(channel: &mut Channel, (envelope, key): (&Envelope, ReceiveKey), idle: bool) -> bool {
    let Channel { links, state: State { invitations, .. } } = channel;
    // Another thread may have received its message meanwhile.
    let of = |given: &&mut Box<Given>| (&given.envelope, given.key) == (envelope, key);
    let Some(given) = invitations.given.as_mut().filter(of) else { return false };
    if !idle {
        withdraw(channel);
        return false;
    }
    if let Some((link, offer)) = links.by_serial(given.link).zip(given.offer) {
        link.endpoint.open_offer(offer);
        given.open = true;
    }
    given.open
}

/// Withdraws the invitation, if there is one. Returns false if the peer has claimed it.
fn withdraw(channel: &mut Channel) -> bool {
    let Channel { links: Links { active, broken, .. }, state: State { receives, invitations, .. } } = channel;
    let Some(given) = &mut invitations.given else { return true };
    // An offer ends once.
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

/// Returns the invitation to the receive of this message, if it answers the announcement. `would_ask` says whether the
/// receiver would request a PUT of the whole message. An invitation that is not the answer is withdrawn.
pub(crate) fn answer(
    channel: &mut Channel,
    envelope: &Envelope,
    announced: &Announced,
    would_ask: bool,
) -> Option<Box<Given>> {
    let given = channel.state.invitations.given.as_ref().filter(|given| given.envelope.names(envelope))?;
    let in_window = given.in_window;
    let answers = would_ask && given.open && announced.invitable && announced.len <= given.len;
    if !answers && withdraw(channel) {
        channel.state.invitations.backoff.missed();
        return None;
    }
    let invitations = &mut channel.state.invitations;
    if !in_window {
        invitations.backoff.taken();
    }
    invitations.given.take()
}

/// Notes that several receives are posted. An open invitation was to the first of a window.
fn note_window(invitations: &mut Invitations) {
    if let Some(given) = &mut invitations.given
        && !std::mem::replace(&mut given.in_window, true)
    {
        invitations.backoff.rest();
    }
}

/// Has the peer store a message by an invitation, which it may not have seen yet.
pub(crate) fn receive(channel: &mut Channel, given: Given, mut transfer: Incoming) -> Id {
    let Given { receiver, link, offer, registration, .. } = given;
    transfer.note_asked(transfer.wanted);
    let claimed = offer.map(|offer| Claimed { link, offer });
    transfer.protocol = Protocol::Put { keepers: registration.into_keeper().into_iter().collect(), claimed };
    channel.state.receives.fill(receiver, transfer);
    receiver
}

/// Drops the invitations of a peer that is gone.
pub(crate) fn forget(channel: &mut Channel, peer: &Peer) {
    let State { receives, invitations, .. } = &mut channel.state;
    if let Some(given) = invitations.given.take() {
        receives.release(given.receiver);
    }
    *invitations = Invitations::default();
    invitations.tell(peer);
}
