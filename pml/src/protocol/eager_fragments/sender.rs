//! The sender: announces the message, and sends its data without waiting.

use cableway_btl::Flags;

use crate::protocol::context::Context;
use crate::protocol::fragments;
use crate::protocol::probe::{Cost, Message, Passes, Probe, Quote, Start};
use crate::protocol::rendezvous::{self, Announced, Attempt};
use crate::protocol::transfer::{Answer, Channel, Stage};
use crate::wire::Id;

/// Offers to send the data after the announcement. `permitted`: the receiver has measured that this is the fastest way.
pub(crate) fn probe_send(message: &Message, permitted: bool) -> Probe<Start> {
    if !permitted || !message.links.any.contains(Flags::OFFER) {
        return Err("the receiver asks for data of this size");
    }
    if message.from.on_device {
        return Err("device memory is never sent without a request");
    }
    if message.synchronous {
        return Err("synchronous sends must be answered");
    }
    if !message.credit {
        return Err("the receiver holds too much unexpected data: no credit is left");
    }
    let cost = Cost { passes: Passes::Along, time: message.costs.send, headers: 1 };
    Ok(Quote { how: Start::EagerFragments, cost, reason: "was the fastest way for earlier messages of the size" })
}

/// Announces a message, and sends its data as far as the link takes it. The rest is queued as requested data is.
pub(crate) fn attempt(cx: &mut Context<'_>, channel: &mut Channel, id: Id) -> Attempt {
    let Some(transfer) = channel.state.sends.get_mut(id) else { return Attempt::Started };
    let len = transfer.len;
    let announced = Announced { len, sender: id, follows: true, ..Announced::NOTHING };
    let header = rendezvous::rendezvous_bytes(&transfer.envelope, &announced);
    if matches!(rendezvous::send_header(channel, id, &header), Attempt::Busy) {
        return Attempt::Busy;
    }
    channel.state.permits.take(len);
    if let Some(transfer) = channel.state.sends.get_mut(id) {
        transfer.stage = Stage::Moving(Answer::unasked(id, len));
    }
    fragments::resume(cx, channel, id);
    Attempt::Started
}
