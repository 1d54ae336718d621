//! Pieces: moves data with several runs into blocks that only this process's kernels can address. The sender packs it
//! piece by piece into scratch memory here. Each piece is unpacked while the next ones come.

mod state;

use cableway_btl::{Access, Flags};
use cableway_common_cuda::{Completion, DeviceError, Direction, Location, Order, Packing, Within};
use smallvec::SmallVec;

use super::context::{Context, Links, Step};
use super::probe::{Announcement, Cost, Data, Passes, Probe, Quote};
use super::put::Put;
use super::transfer::{Channel, Incoming, State};
use super::{fragments, settle};
use crate::wire::{Exposed, Id};

pub(crate) use state::Pieces;
use state::{DEPTH, Lane, LaneState};

/// Offers to receive the data in scratch memory, piece by piece.
pub(crate) fn probe_receive(incoming: &Announcement) -> Probe<Data> {
    let &Announcement { to, copy_only, any, .. } = incoming;
    if to.contiguous && !incoming.packs {
        return Err("the buffer needs no kernel to unpack");
    }
    if !incoming.addressable {
        return Err("the sender cannot store");
    }
    incoming.reaches()?;
    if !to.packed_by(Flags::DEVICE_PUT, copy_only, any) {
        return Err("no kernel can unpack into this buffer");
    }
    if !incoming.scratch {
        return Err("there is no scratch memory");
    }
    let cost = Cost { passes: Passes::Packed, time: incoming.costs.put, headers: 2 };
    Ok(Quote { how: Data::Pieces, cost, reason: "the sender stores it in scratch memory, and a kernel unpacks it" })
}

/// Requests as many pieces as scratch memory can hold. Without scratch memory it requests fragments.
pub(crate) fn ask(cx: &mut Context<'_>, channel: &mut Channel, id: Id) {
    // Keep the order of requests.
    channel.links.send_gathered();
    let Channel { links, state: State { receives, .. } } = channel;
    let Some(transfer) = receives.get_mut(id).filter(|transfer| transfer.failure.is_none() && !transfer.gone) else {
        return;
    };
    let (sender, wanted, at) = (transfer.sender, transfer.wanted, *transfer.buffer.location());
    let Some(pieces) = transfer.pieces() else { return };
    // Copy engines are slow for short blocks, so they only get what is under way.
    let able = cx.core.devices.packs_between(&at, &pieces.spread);
    let slot_len = cx.shared.scratch.slot() as u64;
    let mut asked = 0;
    while able
        && pieces.next < wanted
        && let Some(lane) = free_lane(cx, links, &mut pieces.lanes, &at)
    {
        let (offset, len) = (pieces.next, (wanted - pieces.next).min(slot_len));
        lane.slot.expose(true);
        lane.holds = LaneState::Asked(offset, len);
        let ((btl, ordinal), handle) = (lane.via, *lane.registration.handle());
        pieces.next += len;
        asked += len;
        let to = Exposed { btl, ordinal, handle, blocks: None };
        links.queue_control(&Put { sender, receiver: id, offset, len, total: wanted, to, offer: None });
    }
    let stuck = pieces.next < wanted && pieces.lanes.iter().all(|lane| lane.holds == LaneState::Nothing);
    if stuck {
        // Other messages use all scratch memory, no kernel is available, or no link takes pieces.
        let rest = (std::mem::replace(&mut pieces.next, wanted), wanted);
        pieces.refused.push(rest);
    }
    transfer.note_asked(asked);
    if stuck {
        ask_for_refused(channel, id);
    }
    channel.links.flush_control();
}

/// Returns a free lane. It makes one if scratch memory and a link to register it with are available.
fn free_lane<'p>(
    cx: &Context<'_>,
    links: &mut Links,
    lanes: &'p mut SmallVec<[Lane; DEPTH]>,
    at: &Location,
) -> Option<&'p mut Lane> {
    let flags = Flags::DEVICE_PUT | Flags::DEVICE_PACKED;
    let link = links.active.iter_mut().find(|link| link.has(flags))?;
    if let Some(free) = lanes.iter().position(|lane| lane.holds == LaneState::Nothing) {
        return lanes.get_mut(free);
    }
    if lanes.len() == DEPTH {
        return None;
    }
    let slot = cx.shared.scratch.take(&cx.core.devices, at)?;
    // SAFETY: nothing else uses the slot, and it outlives the registration, which is dropped with the lane. So nothing
    // else uses memory that a peer may be storing to.
    let registration = unsafe { link.endpoint.register(slot.region(), Access::RemoteWrite) }.ok()??;
    lanes.push(Lane { registration, slot, via: (link.tag, link.ordinal), holds: LaneState::Nothing });
    lanes.last_mut()
}

/// Handles a FIN for a PUT if it belongs to a piece, and returns whether it does.
pub(crate) fn fin(cx: &Context<'_>, channel: &mut Channel, id: Id, piece: (u64, u64), stored: bool) -> bool {
    let (offset, len) = piece;
    let Some(transfer) = channel.state.receives.get_mut(id) else { return false };
    let (failed, wanted) = (transfer.failure.is_some(), transfer.wanted);
    let Some(pieces) = transfer.pieces() else { return false };
    let Some(lane) = pieces.asked(offset, len) else { return false };
    pieces.put_down(lane);
    if failed {
        transfer.arrived += len;
        if !stored {
            // The piece is not requested again. The sender counts it as not sent, so it must learn that this is the
            // end.
            transfer.asked -= len;
            transfer.owes_fin = true;
        }
    } else if stored {
        unpack(cx, transfer, id, lane, piece);
        transfer.abort_pieces_after_failure();
    } else {
        // The sender would not store the rest either.
        let rest = (std::mem::replace(&mut pieces.next, wanted), wanted);
        pieces.refused.push((offset, offset + len));
        pieces.refused.extend((rest.0 != rest.1).then_some(rest));
        transfer.asked -= len;
    }
    ask_for_refused(channel, id);
    true
}

/// Starts a kernel, or else copy engines, to unpack a piece into the user's buffer.
fn unpack(cx: &Context<'_>, transfer: &mut Incoming, id: Id, lane: usize, piece: (u64, u64)) {
    let at = *transfer.buffer.location();
    let Some(pieces) = transfer.pieces() else { return };
    match begin_unpack(cx, pieces, &at, lane, piece) {
        Ok(completion) => {
            pieces.lanes[lane].holds = LaneState::Unpacking;
            transfer.busy += 1;
            let then = cx.then(id, Step::Unpacked { lane, bytes: piece.1 });
            cx.shared.copies.follow(cx.core, completion, piece.1, then);
        }
        Err(source) => {
            transfer.arrived += piece.1;
            transfer.fail_on_device(source);
        }
    }
}

fn begin_unpack(
    cx: &Context<'_>,
    pieces: &Pieces,
    at: &Location,
    lane: usize,
    (position, len): (u64, u64),
) -> Result<Completion, DeviceError> {
    // The transfer waited for the default stream before the first request.
    let mut batch = cx.core.devices.batch(at, Direction::DeviceToDevice, Order::None)?;
    batch.reachable(Within::OneDevice);
    let (user, spread, packed) = (pieces.user, pieces.spread.clone(), pieces.lanes[lane].slot.region().address);
    let packing = Packing { user, spread, position, packed, len, unpack: true, by_engines: true };
    // SAFETY: the buffer and the slot belong to the transfer until it is settled, which waits for the copy. Both lie on
    // the context's device, and no two blocks of a receive's buffer overlap.
    unsafe { batch.copy_packed(packing) };
    batch.finish()
}

/// Handles that a piece has reached the user's buffer.
pub(crate) fn unpacked(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (id, lane, bytes): (Id, usize, u64),
    result: Result<(), DeviceError>,
) {
    let Some(transfer) = channel.state.receives.get_mut(id) else { return };
    transfer.busy -= 1;
    transfer.arrived += bytes;
    if let Some(pieces) = transfer.pieces() {
        pieces.put_down(lane);
    }
    if let Err(source) = result {
        transfer.fail_on_device(source);
    }
    transfer.abort_pieces_after_failure();
    ask(cx, channel, id);
    settle::receive(cx, channel, id);
}

/// Requests the ranges that could not be stored as fragments, one by one, once nothing else is awaited. A sender that
/// fails meanwhile forgets the message, and must not be asked for more of it.
pub(crate) fn ask_for_refused(channel: &mut Channel, id: Id) {
    let Some(transfer) = channel.state.receives.get_mut(id).filter(|transfer| transfer.awaited == 0) else { return };
    if transfer.failure.is_some() || transfer.gone {
        return;
    }
    if let Some(range) = transfer.pieces().and_then(|pieces| pieces.refused.pop()) {
        fragments::ask(channel, id, &[range]);
    }
}
