//! Ends transfers.

use std::time::Instant;

use super::context::Context;
use super::rendezvous::{AbortHeader, Fin};
use super::transfer::{Channel, Incoming, Outgoing, Stage, State};
use crate::abort::Abort;
use crate::error::Error;
use crate::status::Status;
use crate::wire::Id;

/// Completes a send if nothing is left to do for it.
pub(crate) fn send(cx: &mut Context<'_>, channel: &mut Channel, id: Id) {
    let Channel { links, state: State { sends, .. } } = channel;
    if !sends.get_mut(id).is_some_and(|transfer| transfer.is_over()) {
        return;
    }
    let Some(transfer) = sends.remove(id) else { return };
    let Outgoing { request, stage, failure, gone, fin_received, one_copy, .. } = transfer;
    // The peer must not reach the buffer once the request is complete.
    drop(one_copy);
    if let (Stage::Moving(answer), true, false, false) = (&stage, failure.is_some(), gone, fin_received)
        && !answer.unasked
    {
        let (receiver, sent) = (answer.receiver, answer.settled);
        links.send_control(&AbortHeader { receiver, sent, reason: Abort::Device });
    }
    request.end(Status::EMPTY, failure, cx.done);
}

/// Completes a receive if nothing is left to do for it.
pub(crate) fn receive(cx: &mut Context<'_>, channel: &mut Channel, id: Id) {
    let Channel { links, state: State { receives, host_costs, .. } } = channel;
    if !receives.get_mut(id).is_some_and(|transfer| transfer.is_over()) {
        return;
    }
    let Some(transfer) = receives.remove(id) else { return };
    if let (true, Some(costs)) = (transfer.timed, host_costs) {
        costs.end(transfer.wanted, transfer.failure.is_some(), Instant::now(), &cx.shared.kept);
    }
    let (on_device, truncated) = (transfer.buffer.is_on_device(), transfer.truncated());
    let Incoming { request, status, sender, protocol, owes_fin, failure, gone, .. } = transfer;
    // Withdraws the registrations, before the sender learns of the end.
    drop(protocol);
    if owes_fin && !gone {
        let result = match failure.as_deref() {
            None => Ok(()),
            Some(Error::Btl(_) | Error::PeerFailed { .. }) => Err(Abort::Transport),
            Some(_) => Err(Abort::Device),
        };
        match result {
            Ok(()) if on_device => links.send_fin(sender),
            result => links.send_control(&Fin { sender, result }),
        }
    }
    request.end(status, failure.or_else(|| truncated.map(Box::new)), cx.done);
}

/// Ends every transfer of a peer that is gone, unless an operation or copy is under way. The last of those ends the
/// transfer.
pub(crate) fn abandon(cx: &mut Context<'_>, channel: &mut Channel) {
    let Err(error) = cx.peer.check() else { return };
    channel.state.offers.abort();
    for id in channel.state.sends.ids() {
        if let Some(transfer) = channel.state.sends.get_mut(id) {
            transfer.fail(error.clone());
            transfer.gone = true;
        }
        send(cx, channel, id);
    }
    for id in channel.state.receives.ids() {
        if let Some(transfer) = channel.state.receives.get_mut(id) {
            // If all data has come, only copies are left.
            if !(cx.peer.has_left() && transfer.has_arrived()) {
                transfer.fail(error.clone());
            }
            transfer.gone = true;
        }
        receive(cx, channel, id);
    }
}
