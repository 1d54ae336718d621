//! Sends the first header of a message.

use cableway_btl::{Error as BtlError, Flags, Operation};
use cableway_common_cuda::DeviceError;

use super::choice;
use super::context::Context;
use super::probe::{Costs, Shape, Start};
use super::rendezvous::{self, Announced, Attempt};
use super::transfer::{Channel, OneCopy, Outgoing, Stage, State};
use super::{eager, eager_fragments, get, settle};
use crate::core::{Core, flow};
use crate::status::{Outcome, Status};
use crate::wire::Id;

/// Sends a new message's first header, or queues it.
#[inline]
pub(crate) fn start(cx: &mut Context<'_>, channel: &mut Channel, mut transfer: Outgoing) -> Outcome {
    let start = choose(cx.core, channel, &mut transfer);
    transfer.stage = Stage::Starting(start);
    let Channel { links, state: State { sends, queues, .. } } = channel;
    links.credit.take(transfer.credit());
    match start {
        Start::Eager | Start::EagerInPlace | Start::EagerDevice | Start::EagerFragments => {
            cx.core.counters.sends_eager.increment();
            cx.core.counters.bytes_eager.add(transfer.len);
        }
        Start::AnnounceWithData => {}
        Start::Expose | Start::Store | Start::Announce => cx.peer.counters.sends_rendezvous.add_exclusively(1),
    }
    // Keep the order of queued messages, although the receiver could restore it.
    let queue = !links.control.waiting.is_empty() || !queues.starts.is_empty();
    let id = sends.insert(transfer);
    match if queue { Attempt::Busy } else { attempt(cx, channel, id) } {
        Attempt::Sent => {
            // The caller learns it from the outcome. The request was never seen active.
            if let Some(transfer) = channel.state.sends.remove(id) {
                transfer.request.retract();
            }
            Outcome::Complete
        }
        Attempt::Started => {
            settle::send(cx, channel, id);
            Outcome::Started
        }
        Attempt::Busy => {
            cx.core.counters.send_queued.increment();
            channel.state.queues.starts.push_back(id);
            Outcome::Started
        }
    }
}

/// Probes the protocols, and has a link register the memory if the cheapest protocol needs that.
fn choose(core: &Core, channel: &mut Channel, transfer: &mut Outgoing) -> Start {
    let Channel { links, state: State { one_copy, page_locked, permits, .. } } = channel;
    let together = links.abilities();
    let shape = Shape::of_run(&transfer.buffer.convertor, together.any);
    let Some(main) = links.active.first() else { return Start::Announce };
    let mut message = rendezvous::message(core, main, transfer, (shape, together));
    message.credit = links.credit.covers(flow::cost(true, transfer.len.min(usize::MAX as u64 / 2) as usize));
    if !shape.on_device
        && let Ok(eager) = eager::probe_send(&message)
    {
        // Nothing is cheaper than host data that travels with its header.
        return eager.how;
    }
    if let Ok(follows) = eager_fragments::probe_send(&message, permits.covers(message.len)) {
        return follows.how;
    }
    transfer.page_locked = page_locked.announce_store(&shape, together.any, message.copy_only);
    if message.may_be_one_copy() {
        message.to_device = !message.is_small() || one_copy.next_is_one_copy();
        let peer_copies = one_copy.peer_copies() || page_locked.peer_fetches();
        message.push_limit = if peer_copies { 0 } else { core.parameters.device_push_limit as u64 };
        if message.to_device && message.len <= message.push_limit {
            let cost = |operation| main.endpoint.cost(operation, transfer.buffer.location());
            message.costs = Costs { get: cost(Operation::Get), put: cost(Operation::Put), ..Costs::NOT_ASKED };
        }
    }
    let mut start = choice::start(&message);
    if start == Start::Expose && shape.on_device {
        message.registrable = get::expose(&mut links.active, transfer, Flags::DEVICE_GET).unwrap_or_else(|error| {
            links.main_broke(error);
            false
        });
        if !message.registrable {
            transfer.one_copy = OneCopy::Unreachable;
            // A link that cannot let the peer read the memory cannot read it either.
            message.push_limit = 0;
            start = choice::start(&message);
        }
    }
    match start {
        Start::Store => transfer.one_copy = OneCopy::Stores,
        Start::Announce if !message.credit && message.is_small() => core.counters.flow_controlled.increment(),
        _ => {}
    }
    start
}

/// Tries the queued first headers in order.
pub(crate) fn advance(cx: &mut Context<'_>, channel: &mut Channel) -> usize {
    let mut moved = 0;
    while let Some(&id) = channel.state.queues.starts.front() {
        match attempt(cx, channel, id) {
            Attempt::Busy => break,
            Attempt::Sent => {
                if let Some(transfer) = channel.state.sends.remove(id) {
                    transfer.request.complete(Status::EMPTY, None, cx.done);
                }
            }
            Attempt::Started => settle::send(cx, channel, id),
        }
        channel.state.queues.starts.pop_front();
        moved += 1;
    }
    moved
}

fn attempt(cx: &mut Context<'_>, channel: &mut Channel, id: Id) -> Attempt {
    let Some(transfer) = channel.state.sends.get_mut(id) else { return Attempt::Started };
    let Stage::Starting(start) = transfer.stage else { return Attempt::Started };
    // The CPU copies the data of the two others, within the call.
    if !matches!(start, Start::Eager | Start::AnnounceWithData | Start::EagerFragments) {
        transfer.request.begin_transfer();
    }
    let attempt = match start {
        Start::Eager => eager::attempt(cx, channel, id, None),
        Start::AnnounceWithData => attempt_with_data(cx, channel, id),
        Start::EagerInPlace => eager::attempt_in_place(cx, channel, id),
        Start::EagerDevice => eager::attempt_device(cx, channel, id),
        Start::EagerFragments => Ok(eager_fragments::attempt(cx, channel, id)),
        Start::Expose => get::attempt(cx, channel, id),
        Start::Store | Start::Announce => Ok(rendezvous::announce(cx, channel, id)),
    };
    attempt.unwrap_or_else(|error| {
        channel.links.main_broke(error);
        Attempt::Busy
    })
}

fn attempt_with_data(cx: &mut Context<'_>, channel: &mut Channel, id: Id) -> Result<Attempt, BtlError> {
    let Some(transfer) = channel.state.sends.get_mut(id) else { return Ok(Attempt::Started) };
    let announced = Announced { len: transfer.len, sender: id, ..Announced::NOTHING };
    let header = rendezvous::rendezvous_bytes(&transfer.envelope, &announced);
    let attempt = eager::attempt(cx, channel, id, Some(&header))?;
    if !matches!(attempt, Attempt::Sent) {
        return Ok(attempt);
    }
    if let Some(transfer) = channel.state.sends.get_mut(id) {
        transfer.stage = Stage::Announced;
    }
    Ok(Attempt::Started)
}

/// Announces a message: the default stream's work on its data is done, or has failed.
pub(crate) fn ordered(cx: &mut Context<'_>, channel: &mut Channel, id: Id, result: Result<(), DeviceError>) {
    let Some(transfer) = channel.state.sends.get_mut(id) else { return };
    transfer.busy -= 1;
    transfer.buffer.settle();
    if let Err(source) = result {
        transfer.fail_on_device(source);
        transfer.stage = Stage::Starting(Start::Announce);
    }
    if !transfer.gone && matches!(attempt(cx, channel, id), Attempt::Busy) {
        channel.state.queues.starts.push_back(id);
    }
    settle::send(cx, channel, id);
}
