//! The sender: announces a message, and handles its FIN.

use cableway_btl::Flags;

use super::header::{Announced, Fin, rendezvous_bytes};
use crate::core::{Abilities, Core, Link};
use crate::error::Error;
use crate::protocol::context::{Context, Step, default_stream};
use crate::protocol::probe::{Cost, Costs, Message, Passes, Quote, Shape, Start};
use crate::protocol::transfer::{Channel, OneCopy, Outgoing, Stage, State};
use crate::protocol::{put, settle};
use crate::wire::{Id, Malformed};

/// Offers to announce the message and to leave the rest to the receiver, which may have to fall back to fragments.
#[inline(always)]
pub(crate) fn probe_send(message: &Message) -> Quote<Start> {
    let cost = Cost { passes: Passes::Staged, time: message.costs.send, headers: 1 };
    let reason = match put::can_pack(message) {
        true => "announced: a kernel can pack the data into one run of device memory",
        false => "announced",
    };
    Quote { how: Start::Announce, cost, reason }
}

/// Outcome of an attempt to send a first header.
pub(crate) enum Attempt {
    /// The link is busy or broken: try again later.
    Busy,
    /// The message has left and its buffer is free.
    Sent,
    /// The transfer has started. An operation, a copy or the receiver continues it.
    Started,
}

/// Announces the message without data. A failed message is announced too: its sequence number is taken, and its
/// receiver waits for it.
pub(crate) fn announce(cx: &mut Context<'_>, channel: &mut Channel, id: Id) -> Attempt {
    let Channel { links, state: State { sends, .. } } = channel;
    let Some(transfer) = sends.get_mut(id) else { return Attempt::Busy };
    links.credit.refund(transfer.credit());
    transfer.stage = Stage::Starting(Start::Announce);
    let able = transfer.failure.is_none();
    let stores = matches!(transfer.one_copy, OneCopy::Stores);
    let (addressable, packs) = match able {
        false => (false, false),
        // Chosen to be stored, so it is addressable.
        true if stores => (true, false),
        true => storable(cx.core, &links.active, transfer),
    };
    // The NIC that stores the data does not wait for the stream, and no kernel that waits is launched.
    let waits = || packs || links.active.iter().any(|link| link.has(Flags::DEVICE_DIRECT));
    if addressable && transfer.buffer.is_on_device() && waits() && !is_ordered(cx, transfer, id) {
        return Attempt::Started;
    }
    // The wait for the stream may have failed the message.
    let able = transfer.failure.is_none();
    let (addressable, packs) = (addressable && able, packs && able);
    if packs {
        transfer.one_copy = OneCopy::Packs;
    } else if matches!(transfer.one_copy, OneCopy::Packs) {
        transfer.one_copy = OneCopy::None;
    }
    let announced = Announced {
        len: transfer.len,
        sender: id,
        addressable,
        packs,
        on_device: transfer.buffer.is_on_device(),
        page_locked: transfer.page_locked && able,
        follows: false,
    };
    let header = rendezvous_bytes(&transfer.envelope, &announced);
    let unordered = Some(*transfer.buffer.location()).filter(|at| at.on_device() && !transfer.buffer.is_settled());
    let attempt = send_header(channel, id, &header);
    if let (Attempt::Started, Some(location)) = (&attempt, unordered) {
        cx.core.orders.note_announced(&location);
    }
    attempt
}

/// Sends the header that announces a message.
pub(crate) fn send_header(channel: &mut Channel, id: Id, header: &[u8]) -> Attempt {
    if !channel.links.send_small(header) {
        return Attempt::Busy;
    }
    if let Some(transfer) = channel.state.sends.get_mut(id) {
        transfer.stage = Stage::Announced;
    }
    Attempt::Started
}

/// Returns whether the receiver may request a PUT of the message, and whether a kernel packs it then.
pub(crate) fn storable(core: &Core, active: &[Link], transfer: &Outgoing) -> (bool, bool) {
    let Some(main) = active.first() else { return (false, false) };
    let together = Abilities::of(active);
    // The NIC cannot send memory that it cannot read.
    if matches!(transfer.one_copy, OneCopy::Unreachable) && together.any.contains(Flags::DEVICE_DIRECT) {
        return (false, false);
    }
    let shape = Shape::of(&transfer.buffer.convertor, together.any, false, &core.devices);
    let message = message(core, main, transfer, (shape, together));
    (put::is_addressable(&message), put::can_pack(&message))
}

/// Describes a message to the sender's probes, with enough credit and with one copy allowed.
pub(crate) fn message(core: &Core, main: &Link, transfer: &Outgoing, (from, links): (Shape, Abilities)) -> Message {
    let main = main.capabilities();
    Message {
        len: transfer.len,
        from,
        synchronous: transfer.synchronous,
        credit: true,
        copy_only: core.copy_only(),
        eager_limit: main.eager_limit as u64,
        inline_limit: main.inline_limit as u64,
        in_place: main.flags.contains(Flags::SEND_IN_PLACE),
        links,
        registrable: true,
        push_limit: 0,
        to_device: true,
        costs: Costs::NOT_ASKED,
    }
}

/// Returns whether the default stream's work on a device's data is done, or the question failed the message. Otherwise
/// the first header is retried once the work is done.
pub(crate) fn is_ordered(cx: &mut Context<'_>, transfer: &mut Outgoing, id: Id) -> bool {
    if transfer.buffer.is_settled() {
        return true;
    }
    match default_stream(cx.core, transfer.buffer.location()) {
        Ok(Some(completion)) => {
            transfer.busy += 1;
            cx.shared.copies.follow(cx.core, completion, 0, cx.then(id, Step::Announce));
            return false;
        }
        Ok(None) => transfer.buffer.settle(),
        Err(source) => transfer.fail_on_device(source),
    }
    true
}

/// Handles the receiver's FIN: it has everything that it wants, or gave up. Receivers in device memory send theirs in
/// batches (`batched`).
pub(crate) fn fin(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    Fin { sender: id, result }: Fin,
    batched: bool,
) -> Result<(), Malformed> {
    let what = "a FIN";
    let State { sends, one_copy, page_locked, .. } = &mut channel.state;
    let transfer = sends.get_mut(id).ok_or(Malformed::NoTransfer { what, id: id.0 })?;
    if matches!(transfer.stage, Stage::Starting(_) | Stage::Leaving) || transfer.fin_received {
        return Err(Malformed::OutOfTurn { what, id: id.0 });
    }
    transfer.fin_received = true;
    if let OneCopy::Exposed(_) = std::mem::replace(&mut transfer.one_copy, OneCopy::None)
        && result.is_ok()
        && transfer.buffer.is_on_device()
    {
        page_locked.note_peer_fetches(!batched);
        // Small messages to host memory are better sent eagerly.
        if batched { one_copy.succeeded() } else { one_copy.missed() }
    }
    if let Err(reason) = result {
        transfer.fail(Error::PeerAborted { peer: cx.peer.rank, len: transfer.len, reason });
    }
    settle::send(cx, channel, id);
    Ok(())
}
