//! The sender's side.

use super::header::Invite;
use super::state::Invitations;
use crate::protocol::context::{Context, Links};
use crate::protocol::put::{self, Put};
use crate::protocol::transfer::{Channel, OneCopy, Outgoing, State};
use crate::wire::{Exposed, Id, Malformed, WholePut};

/// Handles the receiver's invitation, which names the memory for a message.
pub(crate) fn invited(cx: &mut Context<'_>, channel: &mut Channel, invite: Invite) -> Result<(), Malformed> {
    let State { sends, invitations, .. } = &mut channel.state;
    match sends.find(|sent| sent.is_announced() && invite.envelope.names(&sent.envelope)) {
        Some(id) => accept(cx, channel, id, Box::new(invite)),
        None => {
            // The message will be announced later, or took another protocol. The receiver knows which.
            invitations.received = Some(Box::new(invite));
            Ok(())
        }
    }
}

/// Stores a message that was just announced, if the peer has invited it already.
#[inline]
pub(crate) fn announced(cx: &mut Context<'_>, channel: &mut Channel, id: Id) {
    if channel.state.invitations.received.is_some() {
        take(cx, channel, id);
    }
}

#[inline(never)]
fn take(cx: &mut Context<'_>, channel: &mut Channel, id: Id) {
    let State { sends, invitations, .. } = &mut channel.state;
    let Some(sent) = sends.get_mut(id).filter(|sent| sent.is_announced()) else { return };
    if let Some(invite) = invitations.received.take_if(|invite| invite.envelope.names(&sent.envelope)) {
        // The message was not requested in any other way, and this requests all of it.
        let accepted = accept(cx, channel, id, invite);
        debug_assert!(accepted.is_ok(), "{accepted:?}");
    }
}

/// Stores an announced message now, or as soon as the receiver opens the invitation. Ignores an invitation that does
/// not fit the message; the receiver then requests the data another way.
fn accept(cx: &mut Context<'_>, channel: &mut Channel, id: Id, invite: Box<Invite>) -> Result<(), Malformed> {
    let Channel { links: Links { active, .. }, state: State { sends, invitations, .. } } = channel;
    let invitable = |sent: &Outgoing| matches!(sent.one_copy, OneCopy::Stores { invitable: true });
    let Some(sent) = sends.get_mut(id).filter(|sent| invitable(sent) && sent.len <= invite.len) else {
        return Ok(());
    };
    if !active.iter_mut().any(|link| link.endpoint.claim(invite.offer)) {
        // Wait until the offer opens, or until the receiver withdraws it and requests the data another way.
        invitations.pending.push((id, invite));
        return Ok(());
    }
    let (len, receiver) = (sent.len, invite.receiver);
    let Exposed { btl, ordinal, ref handle, .. } = invite.to;
    if put::store_whole(cx, channel, &WholePut { sender: id, receiver, len, handle }, (btl, ordinal), true)? {
        cx.core.counters.protocol_put.increment();
        cx.core.counters.bytes_put.add(len);
        return Ok(());
    }
    put::asked(cx, channel, &Put { sender: id, receiver, offset: 0, len, total: len, to: invite.to })
}

/// Stores the messages whose invitations have opened. Returns how many invitations do not wait any more.
#[inline]
pub(crate) fn advance(cx: &mut Context<'_>, channel: &mut Channel) -> usize {
    if channel.state.invitations.are_pending() { advance_pending(cx, channel) } else { 0 }
}

fn advance_pending(cx: &mut Context<'_>, channel: &mut Channel) -> usize {
    let Invitations { pending, .. } = &mut channel.state.invitations;
    let pending = std::mem::take(pending);
    let before = pending.len();
    for (id, invite) in pending {
        if channel.state.sends.get_mut(id).is_some_and(|sent| sent.is_announced()) {
            let accepted = accept(cx, channel, id, invite);
            debug_assert!(accepted.is_ok(), "{accepted:?}");
        }
    }
    before - channel.state.invitations.pending.len()
}
