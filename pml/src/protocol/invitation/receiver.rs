//! The receiver's side.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use super::header::Invite;
use super::state::{Claimed, Expected, Invitations, NONE, ReceiveKey, SENT, SentInvite, is_able};
use crate::core::{Completion, Core, Done, Peer};
use crate::protocol::context::Links;
use crate::protocol::rendezvous::Announced;
use crate::protocol::transfer::{Channel, Incoming, Protocol, Slot, State};
use crate::wire::{Envelope, Exposed, Id};
use cableway_btl::{Access, Region};

/// Prepares an invitation before a receive in device memory is posted. Returns the value that [`invite`] needs, if the
/// sender may be invited. If another thread matches the receive before [`invite`], no invitation is sent.
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
            invitations.publish_hint(&slot.peer);
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
        let invited = may && unsafe { send_invite(channel, &message, key, region, settled) };
        channel.state.invitations.publish_hint(&slot.peer);
        invited
    });
    let open = invited && (settled || open(core, slot, (&message, key), &region, &mut done));
    if open {
        core.counters.invitations.increment();
    }
    done.run();
    open
}

/// Opens the invitation if the default stream is idle. Asking the stream takes longer than the peer needs to prepare,
/// so this happens after the invitation was sent.
fn open(core: &Core, slot: &Slot, of: (&Envelope, ReceiveKey), region: &Region, done: &mut Done) -> bool {
    let idle = matches!(core.devices.ask_default_stream(&region.location), Ok(true));
    slot.with(core, done, |channel, _| open_invitation(channel, of, idle))
}

/// Withdraws the invitation for a receive before the receive is cancelled. Returns false if the peer has claimed the
/// invitation, so that the receive cannot be cancelled.
pub(crate) fn withdraw_before_cancel(core: &Core, slot: &Slot, of: (u32, ReceiveKey), done: &mut Done) -> bool {
    slot.peer.hint.load(Relaxed) != SENT
        || slot.with(core, done, |channel, _| {
            let sent = channel.state.invitations.sent.as_ref();
            !sent.is_some_and(|sent| (sent.envelope.context, sent.key) == of) || withdraw(channel)
        })
}

/// Withdraws an invitation for a receive of a communicator that is being removed. Returns the receive if the peer has
/// claimed the invitation.
pub(crate) fn end(core: &Core, slot: &Slot, context: u32) -> Option<ReceiveKey> {
    let mut done = Done::default();
    let claimed = slot.with(core, &mut done, |channel, _| {
        let invitations = &mut channel.state.invitations;
        invitations.expected = None;
        let sent = invitations.sent.as_ref().filter(|sent| sent.envelope.context == context);
        let key = sent.map(|sent| sent.key)?;
        if withdraw(channel) { None } else { Some(key) }
    });
    done.run();
    claimed
}

/// Returns whether to send an invitation for the next receive. Withdraws an earlier one that is still open.
fn may_invite(channel: &mut Channel) -> bool {
    if channel.state.invitations.sent.is_some() {
        // The earlier receive is still posted. If the peer has claimed that invitation, it will use it.
        if !withdraw(channel) {
            return false;
        }
        channel.state.invitations.backoff.unused();
    }
    let Channel { links, state } = channel;
    is_able(&links.active) && state.invitations.backoff.pays() && links.failover.is_none()
}

/// Registers the buffer, and sends the invitation.
///
/// # Safety
/// As [`invite`].
unsafe fn send_invite(channel: &mut Channel, envelope: &Envelope, key: ReceiveKey, region: Region, open: bool) -> bool {
    let Channel { links, state: State { receives, invitations, .. } } = channel;
    // Another thread may have sent an invitation meanwhile. Queued headers keep their order, so none may wait.
    let free = invitations.sent.is_none() && links.control.waiting.is_empty();
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
    let (envelope, link) = (*envelope, link.serial);
    links.send_control(&Invite { envelope, receiver, len, offer, to });
    let (offer, in_window) = (Some(offer), false);
    let sent = SentInvite { envelope, key, receiver, len, in_window, link, offer, open, registration };
    invitations.sent = Some(Box::new(sent));
    true
}

/// Opens the invitation if the default stream is idle, and withdraws it otherwise. Returns whether it is open.
fn open_invitation(channel: &mut Channel, (envelope, key): (&Envelope, ReceiveKey), idle: bool) -> bool {
    let Channel { links, state: State { invitations, .. } } = channel;
    // Another thread may have received the message meanwhile.
    let of = |sent: &&mut Box<SentInvite>| (&sent.envelope, sent.key) == (envelope, key);
    let Some(sent) = invitations.sent.as_mut().filter(of) else { return false };
    if !idle {
        withdraw(channel);
        return false;
    }
    if let Some((link, offer)) = links.by_serial(sent.link).zip(sent.offer) {
        link.endpoint.open_offer(offer);
        sent.open = true;
    }
    sent.open
}

/// Withdraws the invitation, if there is one. Returns false if the peer has claimed it.
fn withdraw(channel: &mut Channel) -> bool {
    let Channel { links: Links { active, broken, .. }, state: State { receives, invitations, .. } } = channel;
    let Some(sent) = &mut invitations.sent else { return true };
    // A failed withdrawal has consumed the offer: the peer has claimed it.
    let Some(offer) = sent.offer.take() else { return false };
    let withdrawn = match active.iter_mut().find(|link| link.serial == sent.link) {
        Some(link) => link.endpoint.withdraw(offer).unwrap_or_else(|error| {
            *broken = Some((link.btl, error));
            false
        }),
        None => true,
    };
    if withdrawn {
        receives.release(sent.receiver);
        invitations.sent = None;
    }
    withdrawn
}

/// Returns the invitation for the receive of this message if it answers the announcement, or if the peer has claimed it
/// anyway. Otherwise withdraws it. `would_put` says whether the receiver would request a PUT of the whole message.
pub(crate) fn answer(
    channel: &mut Channel,
    envelope: &Envelope,
    announced: &Announced,
    would_put: bool,
) -> Option<Box<SentInvite>> {
    let sent = channel.state.invitations.sent.as_ref().filter(|sent| sent.envelope.names(envelope))?;
    let in_window = sent.in_window;
    let answers = would_put && sent.open && announced.invitable && announced.len <= sent.len;
    if !answers && withdraw(channel) {
        channel.state.invitations.backoff.unused();
        return None;
    }
    let invitations = &mut channel.state.invitations;
    if !in_window {
        invitations.backoff.used();
    }
    invitations.sent.take()
}

/// Notes that several receives are posted: the open invitation was for the first receive of a window.
fn note_window(invitations: &mut Invitations) {
    if let Some(sent) = &mut invitations.sent
        && !std::mem::replace(&mut sent.in_window, true)
    {
        invitations.backoff.pause();
    }
}

/// Starts the transfer of a message that the peer stores by invitation. The peer may not have seen the invitation yet.
pub(crate) fn receive(channel: &mut Channel, sent: SentInvite, mut transfer: Incoming) -> Id {
    let SentInvite { receiver, link, offer, registration, .. } = sent;
    transfer.note_asked(transfer.wanted);
    let claimed = offer.map(|offer| Claimed { link, offer });
    transfer.protocol = Protocol::Put { keepers: registration.into_keeper().into_iter().collect(), claimed };
    channel.state.receives.fill(receiver, transfer);
    receiver
}

/// Drops the invitations of a peer that is gone.
pub(crate) fn forget(channel: &mut Channel, peer: &Peer) {
    let State { receives, invitations, .. } = &mut channel.state;
    if let Some(sent) = invitations.sent.take() {
        receives.release(sent.receiver);
    }
    *invitations = Invitations::default();
    invitations.publish_hint(peer);
}
