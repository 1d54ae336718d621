//! Eager: the header and the data leave in one message, which is copied into the matching receive.
//!
//! The sender copies the data into a fragment, or the link sends it in place. A device first copies its data into a
//! fragment, and messages that are sent meanwhile overtake it.

use std::sync::atomic::Ordering;

use cableway_btl::{Error as BtlError, Fragment, FragmentKind, Received, Sent, SharedBytes, Transfer};
use cableway_common_cuda::{DeviceError, Order};

use super::context::{AfterCopy, Context, Held, Operation, Shared, Step, hold, hold_unexpected};
use super::host_costs;
use super::probe::{Cost, Message, Passes, Probe, Quote, Start};
use super::receive_buffer::ReceiveBuffer;
use super::rendezvous::{self, Attempt, RENDEZVOUS_LEN};
use super::settle;
use super::transfer::{Channel, Slot, Stage, State};
use super::unexpected::UnexpectedMessage;
use crate::core::{Active, Core, CreditHeader, Done};
use crate::error::Error;
use crate::status::Status;
use crate::wire::{self, Id};

/// Offers to send the data along with the header.
#[inline(always)]
pub(crate) fn probe_send(message: &Message) -> Probe<Start> {
    if !message.is_small() {
        return Err("exceeds the eager limit");
    }
    if !message.credit {
        return Err("the receiver holds too much unexpected data: no credit is left");
    }
    let (how, passes, reason) = match (message.from.on_device && message.len != 0, message.synchronous) {
        (true, true) => return Err("synchronous sends of device memory must be announced"),
        (true, false) => (Start::EagerDevice, Passes::Staged, "device memory that fits the eager limit"),
        (false, true) => (Start::AnnounceWithData, Passes::Along, "synchronous, and its data fits the eager limit"),
        (false, false) if message.len + message.header_len() <= message.inline_limit && message.from.contiguous => {
            (Start::Eager, Passes::Along, "fits the inline limit")
        }
        (false, false) if message.in_place && message.from.contiguous => {
            let reason = "fits the eager limit, and the link sends from the user's buffer";
            (Start::EagerInPlace, Passes::Along, reason)
        }
        (false, false) => (Start::Eager, Passes::Along, "fits the eager limit"),
    };
    Ok(Quote { how, cost: Cost { passes, time: message.costs.send, headers: 0 }, reason })
}

/// Sends header and data in one message, copied by the CPU. Without `header`, it sends that of an eager message.
pub(crate) fn attempt(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    id: Id,
    header: Option<&[u8; RENDEZVOUS_LEN]>,
) -> Result<Attempt, BtlError> {
    let Channel { links, state: State { sends, cache_eager, .. } } = channel;
    let (Some(transfer), Some(link)) = (sends.get_mut(id), links.active.first_mut()) else {
        return Ok(Attempt::Busy);
    };
    let eager = wire::match_bytes(&transfer.envelope);
    let header = header.map_or(&eager[..], |header| &header[..]);
    let len = transfer.len as usize;
    let whole = header.len() + len;
    if whole <= link.capabilities().inline_limit
        && let Some(payload) = transfer.host_bytes()
        && link.endpoint.send_inline(header, payload)? == Sent::Done
    {
        link.carried = true;
        return Ok(Attempt::Sent);
    }
    let cache = cache_eager.unwrap_or_else(|| {
        let distance = link.endpoint.distance();
        *cache_eager = distance.map(|distance| host_costs::caches_at(distance, &cx.shared.kept));
        cache_eager.unwrap_or(false)
    });
    let kind = if cache { FragmentKind::Host } else { FragmentKind::Streamed };
    let Some(mut fragment) = link.endpoint.alloc(whole, kind)? else { return Ok(Attempt::Busy) };
    if let Some(payload) = transfer.host_bytes() {
        fragment.fill(header, payload);
    } else {
        fragment.write(0, header);
        transfer.buffer.convertor.set_position(0);
        // SAFETY: the fragment has space for the header and `len` bytes, and nothing else uses it.
        let packed = unsafe { transfer.buffer.convertor.pack(fragment.as_mut_ptr().add(header.len()), len) };
        if let Err(error) = packed {
            transfer.fail(Error::of_copy(error, &transfer.buffer.convertor));
            return Ok(rendezvous::announce(cx, channel, id));
        }
    }
    link.endpoint.send(fragment, whole)?;
    link.carried = true;
    Ok(Attempt::Sent)
}

/// Has the link send the data in place.
pub(crate) fn attempt_in_place(cx: &mut Context<'_>, channel: &mut Channel, id: Id) -> Result<Attempt, BtlError> {
    let Channel { links, state: State { sends, .. } } = &mut *channel;
    let (Some(transfer), Some(link)) = (sends.get_mut(id), links.active.first_mut()) else {
        return Ok(Attempt::Busy);
    };
    let Some(region) = transfer.buffer.region(0, transfer.len, Order::None) else {
        return attempt(cx, channel, id, None);
    };
    let header = wire::match_bytes(&transfer.envelope);
    let sent = cx.peer.start(&mut links.operations, Operation::SendMessage(id), |token| {
        // SAFETY: the buffer stays valid and unwritten until the request completes, which waits for the operation.
        unsafe { link.endpoint.send_in_place(&header, region, token) }
    });
    match sent? {
        Transfer::Busy => Ok(Attempt::Busy),
        Transfer::Done => {
            link.carried = true;
            Ok(Attempt::Sent)
        }
        Transfer::Started => {
            link.carried = true;
            transfer.busy += 1;
            transfer.stage = Stage::Leaving;
            Ok(Attempt::Started)
        }
    }
}

/// Has the device copy the data into a fragment, which leaves afterwards. Messages sent meanwhile overtake it; sequence
/// numbers let the receiver restore the order.
pub(crate) fn attempt_device(cx: &mut Context<'_>, channel: &mut Channel, id: Id) -> Result<Attempt, BtlError> {
    let Channel { links, state: State { sends, .. } } = &mut *channel;
    let (Some(transfer), Some(link)) = (sends.get_mut(id), links.active.first_mut()) else {
        return Ok(Attempt::Busy);
    };
    let header = wire::match_bytes(&transfer.envelope);
    let (len, whole) = (transfer.len as usize, header.len() + transfer.len as usize);
    let kind = link.device_kind();
    let Some(mut fragment) = link.endpoint.alloc(whole, kind)? else { return Ok(Attempt::Busy) };
    fragment.write(0, &header);
    let order = transfer.buffer.next_order(&cx.core.devices);
    // SAFETY: the fragment has space for the header.
    let to = unsafe { fragment.as_mut_ptr().add(header.len()) };
    let then = |fragment| cx.then(id, Step::SendMessage { link: link.serial, fragment, len: whole });
    if let Some(region) = transfer.buffer.region(0, transfer.len, order) {
        // SAFETY: the fragment has space for `len` more bytes and nothing else uses it. The buffer stays unchanged
        // while the transfer is busy.
        unsafe { cx.shared.gather_out(cx.core, region, to, kind == FragmentKind::Device, then(fragment)) };
    } else {
        // SAFETY: the fragment has space for `len` more bytes, nothing else uses it, and it is kept with the
        // completion.
        match unsafe { transfer.buffer.convertor.start_pack(to, len, order) } {
            Ok((_, completion)) => cx.shared.copies.follow(cx.core, completion, len as u64, then(fragment)),
            Err(error) => {
                drop(fragment);
                transfer.fail(Error::of_copy(error, &transfer.buffer.convertor));
                return Ok(rendezvous::announce(cx, channel, id));
            }
        }
    }
    transfer.busy += 1;
    transfer.stage = Stage::Leaving;
    Ok(Attempt::Started)
}

/// Handles that the copy of a message's data off the device is done.
pub(crate) fn message_copied(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (id, serial): (Id, u32),
    (fragment, len): (Fragment, usize),
    result: Result<(), DeviceError>,
) {
    let Channel { links, state: State { sends, .. } } = &mut *channel;
    let Some(transfer) = sends.get_mut(id) else { return };
    transfer.busy -= 1;
    match result {
        Err(source) => {
            transfer.fail_on_device(source);
            if !transfer.gone && matches!(rendezvous::announce(cx, channel, id), Attempt::Busy) {
                channel.state.queues.starts.push_back(id);
            }
        }
        Ok(()) if transfer.gone => {}
        Ok(()) => links.send_copied(serial, fragment, len),
    }
    settle::send(cx, channel, id);
}

/// The payload of a matched message within its upcall, and the length of the header before it.
pub(crate) struct Payload<'m> {
    pub(crate) message: &'m Received<'m>,
    pub(crate) header_len: usize,
}

/// Copies a message within its upcall into its receive.
#[inline(never)]
pub(crate) fn deliver(
    (core, shared): (&Core, &Shared),
    (request, buffer): (Active, ReceiveBuffer),
    status: Status,
    Payload { message, header_len }: Payload<'_>,
    done: &mut Done,
) {
    if buffer.is_on_device()
        && let Some(held) = hold(core, message, header_len)
    {
        deliver_to_device((core, shared), (request, buffer), status, held, done);
    } else {
        deliver_now((request, buffer), status, message.bytes().skip(header_len), done);
    }
}

/// Copies an unexpected message into its receive.
pub(crate) fn deliver_unexpected(
    (core, shared): (&Core, &Shared),
    (request, buffer): (Active, ReceiveBuffer),
    status: Status,
    unexpected: UnexpectedMessage,
    done: &mut Done,
) {
    if buffer.is_on_device() && !unexpected.payload.is_empty() {
        let held = hold_unexpected(core, unexpected);
        deliver_to_device((core, shared), (request, buffer), status, held, done);
    } else {
        deliver_now((request, buffer), status, SharedBytes::from_private(&unexpected.payload), done);
    }
}

/// Copies the message, and waits for the copy if it goes to a device.
#[inline]
fn deliver_now(
    (request, mut buffer): (Active, ReceiveBuffer),
    status: Status,
    payload: SharedBytes<'_>,
    done: &mut Done,
) {
    let space = buffer.len();
    let len = space.min(payload.len() as u64) as usize;
    match buffer.fill(payload, len) {
        Ok(()) if len == payload.len() => request.succeed(status, done),
        Ok(()) => request.complete(status, Error::truncated(&status, space), done),
        Err(error) => request.complete(status, Some(error), done),
    }
}

/// Starts a copy of the message to the device. The request completes when the copy does.
#[cold]
fn deliver_to_device(
    (core, shared): (&Core, &Shared),
    (request, mut buffer): (Active, ReceiveBuffer),
    status: Status,
    held: Held,
    done: &mut Done,
) {
    core.orders.note_message(true);
    request.begin_transfer();
    let space = buffer.len();
    let len = space.min(status.len) as usize;
    let (truncated, address) = (Error::truncated(&status, space), buffer.address());
    if let Some(region) = buffer.region(len, &core.devices) {
        let then = |source| AfterCopy::Received { request, status, truncated, address, source };
        // SAFETY: the buffer belongs to the request until that completes.
        return unsafe { shared.gather_in(core, held, region, then) };
    }
    let Held { address: from, source } = held;
    // SAFETY: the source keeps the bytes readable and moves along with the completion.
    match unsafe { buffer.start_fill(from, len, &core.devices) } {
        Ok(completion) => {
            let then = AfterCopy::Received { request, status, truncated, address, source };
            shared.copies.follow(core, completion, len as u64, then);
        }
        Err(error) => request.complete(status, Some(error), done),
    }
}

/// Returns credit to the sender, in instalments of half the window.
#[inline(always)]
pub(crate) fn consume(core: &Core, slot: &Slot, cost: u64, done: &mut Done) {
    let consumed = slot.peer.consumed.add(cost);
    if consumed.wrapping_sub(slot.peer.credited.load(Ordering::Relaxed)) >= core.instalment {
        give_credit(core, slot, done);
    }
}

/// Returns credit as [`consume`] does, while the caller holds the peer's channel.
pub(crate) fn consume_within(cx: &Context<'_>, channel: &mut Channel, cost: Option<u64>) {
    let Some(cost) = cost else { return };
    let consumed = cx.peer.consumed.add(cost);
    if consumed.wrapping_sub(cx.peer.credited.load(Ordering::Relaxed)) >= cx.core.instalment {
        cx.peer.credited.store(consumed, Ordering::Relaxed);
        channel.links.send_control(&CreditHeader { consumed });
    }
}

#[cold]
fn give_credit(core: &Core, slot: &Slot, done: &mut Done) {
    slot.with(core, done, |channel, _| {
        let consumed = slot.peer.consumed.get();
        slot.peer.credited.store(consumed, Ordering::Relaxed);
        channel.links.send_control(&CreditHeader { consumed });
    });
}
