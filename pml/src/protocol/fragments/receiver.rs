//! The receiver: requests ranges, and copies the fragments into the user's buffer.

use cableway_btl::Received;
use cableway_common_cuda::DeviceError;

use super::header::{Ack, FRAGMENT_LEN};
use crate::error::Error;
use crate::protocol::context::{Context, Held, Step, hold};
use crate::protocol::probe::{Announcement, Cost, Data, Passes, Quote};
use crate::protocol::settle;
use crate::protocol::transfer::{Channel, Incoming, Protocol, State};
use crate::wire::{Id, Malformed};

/// Offers to move the data through internal buffers, which is always possible.
pub(crate) fn probe_receive(incoming: &Announcement) -> Quote<Data> {
    let cost = Cost { passes: Passes::Staged, time: incoming.costs.send, headers: 1 };
    Quote { how: Data::Fragments, cost, reason: "copied through internal buffers" }
}

/// Requests ranges from the sender. Without `ranges` it requests everything.
pub(crate) fn ask(channel: &mut Channel, id: Id, ranges: &[(u64, u64)]) {
    let Channel { links, state: State { receives, .. } } = channel;
    let Some(transfer) = receives.get_mut(id) else { return };
    // If part of the message was fetched, only request the rest.
    let fetch = match std::mem::replace(&mut transfer.protocol, Protocol::Fragments) {
        Protocol::Get(fetch) => Some(fetch),
        Protocol::Ordering(_) | Protocol::Fragments => None,
        other => {
            transfer.protocol = other;
            None
        }
    };
    // If the sender has sent some before, it learned then that everything may be requested.
    let total = match &fetch {
        Some(fetch) if !fetch.offered_any => transfer.wanted - fetch.fetched,
        _ => transfer.wanted,
    };
    let whole = [(0, transfer.wanted)];
    let ranges = if ranges.is_empty() { &whole } else { ranges };
    transfer.note_asked(ranges.iter().map(|(from, to)| to - from).sum::<u64>());
    // A device may fail after the sender considers the message done, so send it a FIN.
    let &mut Incoming { sender, fetches, stream, cache_eager, unasked, .. } = transfer;
    let to_device = transfer.buffer.is_on_device();
    transfer.owes_fin = to_device || fetch.is_some_and(|fetch| fetch.offered_any && fetch.fetched != 0);
    for &(from, to) in ranges {
        links.send_control(&Ack {
            sender,
            receiver: id,
            from,
            to,
            total,
            to_device,
            fetches,
            stream,
            cache_eager,
            unasked,
            offer: None,
        });
    }
}

/// Handles a requested fragment for `offset`.
pub(crate) fn arrived(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (id, offset, most): (Id, u64, u64),
    message: &Received<'_>,
) -> Result<(), Malformed> {
    let payload = message.bytes().skip(FRAGMENT_LEN);
    let len = (payload.len() as u64).min(most);
    let transfer = awaiting(channel, id, "a fragment", (offset, len))?;
    transfer.awaited -= len;
    transfer.buffer.convertor.set_position(offset);
    let on_device = transfer.buffer.is_on_device();
    if transfer.failure.is_some() {
        transfer.arrived += len;
    } else if let Some(held) = on_device.then(|| hold(cx.core, message, FRAGMENT_LEN)).flatten() {
        copy_in(cx, transfer, id, (offset, len), held);
    } else {
        // SAFETY: the payload is readable and not part of a user's buffer.
        if let Err(error) = unsafe { transfer.buffer.convertor.unpack(payload.as_ptr(), len as usize) } {
            transfer.fail(Error::of_copy(error, &transfer.buffer.convertor));
        }
        transfer.arrived += len;
    }
    // If the message failed meanwhile, give up the ranges that were not requested again.
    transfer.abort_pieces_after_failure();
    Ok(())
}

/// Has the device copy a fragment's data into the user's buffer. The range lies within the wanted length.
fn copy_in(cx: &Context<'_>, transfer: &mut Incoming, id: Id, (offset, len): (u64, u64), held: Held) {
    let order = transfer.buffer.next_order(&cx.core.devices);
    let then = |source| cx.then(id, Step::Arrived { bytes: len, source });
    if let Some(region) = transfer.buffer.region(offset, len, order) {
        transfer.busy += 1;
        // SAFETY: the buffer belongs to the transfer while that is busy.
        return unsafe { cx.shared.gather_in(cx.core, held, region, then) };
    }
    let Held { address: from, source } = held;
    // SAFETY: the source keeps the bytes readable and moves along with the completion.
    match unsafe { transfer.buffer.convertor.start_unpack(from, len as usize, order) } {
        Ok((_, completion)) => {
            transfer.busy += 1;
            cx.shared.copies.follow(cx.core, completion, len, then(source));
        }
        Err(error) => {
            transfer.arrived += len;
            transfer.fail(Error::of_copy(error, &transfer.buffer.convertor));
        }
    }
}

/// Handles that a copy of fragment data into the user's buffer is done.
pub(crate) fn copied_in(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (id, bytes): (Id, u64),
    result: Result<(), DeviceError>,
) {
    let Some(transfer) = channel.state.receives.get_mut(id) else { return };
    transfer.busy -= 1;
    transfer.arrived += bytes;
    if let Err(source) = result {
        transfer.fail_on_device(source);
        transfer.abort_pieces_after_failure();
    }
    settle::receive(cx, channel, id);
}

/// Returns the transfer of a range, if the range was requested.
pub(crate) fn awaiting<'c>(
    channel: &'c mut Channel,
    id: Id,
    what: &'static str,
    (offset, len): (u64, u64),
) -> Result<&'c mut Incoming, Malformed> {
    let transfer = channel.state.receives.get_mut(id).ok_or(Malformed::NoTransfer { what, id: id.0 })?;
    let to = offset.saturating_add(len);
    if to > transfer.wanted {
        return Err(Malformed::Range { from: offset, to, total: transfer.wanted });
    }
    if len > transfer.awaited {
        return Err(Malformed::OutOfTurn { what, id: id.0 });
    }
    Ok(transfer)
}
