//! Pieces: a message to blocks that only this process's kernels find, from data that is not one run. The sender packs it
//! into scratch memory here, piece by piece, and each is unpacked from there while the next ones come.

use cableway_btl::{Access, Flags};
use cableway_common_cuda::{Completion, DeviceError, Direction, Location, Order, Packing, Within};

use smallvec::SmallVec;

use super::context::{AfterCopy, Context, Links};
use super::probe::{Announcement, Cost, Data, Passes, Probe, Quote};
use super::transfer::{Channel, DEPTH, Incoming, Lane, LaneState, Pieces, State};
use super::{fragments, settle};
use crate::wire::{Exposed, Header, Id, Put};

/// Offers to receive the data in scratch memory, piece by piece.
pub(crate) fn probe_receive(incoming: &Announcement) -> Probe<Data> {
    let &Announcement { to, copy_only, any, .. } = incoming;
    if to.contiguous && !incoming.packs {
        return Err("no kernel needs to unpack it");
    }
    if !incoming.addressable {
        return Err("the sender cannot store");
    }
    incoming.reaches()?;
    if !to.packed_by(Flags::DEVICE_PUT, copy_only, any) {
        return Err("no kernel unpacks into this buffer");
    }
    if !incoming.scratch {
        return Err("there is no scratch memory");
    }
    let cost = Cost { passes: Passes::Packed, time: incoming.costs.put, headers: 2 };
    Ok(Quote { how: Data::Pieces, cost, reason: "stored in scratch memory, from where a kernel unpacks it" })
}

/// Asks for as many pieces as there is room for; where there is none at all, for fragments.
pub(crate) fn ask(cx: &mut Context<'_>, channel: &mut Channel, id: Id) {
    // In the order in which it is said.
    channel.links.send_gathered();
    let Channel { links, state: State { receives, .. } } = channel;
    let Some(transfer) = receives.get_mut(id).filter(|transfer| transfer.failure.is_none() && !transfer.gone) else {
        return;
    };
    let (sender, wanted, at) = (transfer.sender, transfer.wanted, *transfer.convertor.location());
    let Some(pieces) = transfer.pieces() else { return };
    // Copy engines take ever so long for short blocks: they are to have what is under way at most.
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
        links.queue_control(&Header::Put(Put { sender, receiver: id, offset, len, total: wanted, to }));
    }
    let stuck = pieces.next < wanted && pieces.lanes.iter().all(|lane| lane.holds == LaneState::Nothing);
    if stuck {
        // Others have all the room, no kernel is to be had, or no link is left that takes pieces.
        let rest = (std::mem::replace(&mut pieces.next, wanted), wanted);
        pieces.refused.push(rest);
    }
    transfer.note_asked(asked);
    if stuck {
        ask_for_refused(channel, id);
    }
    channel.links.flush_control();
}

/// A lane that holds nothing; made now if there is scratch memory, and a link to register it with.
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
    // SAFETY: the slot is ours alone, and outlives the registration, which is dropped with the lane: what a peer may be
    // storing in is used by nobody else.
    let registration = unsafe { link.endpoint.register(slot.region(), Access::RemoteWrite) }.ok()??;
    lanes.push(Lane { registration, slot, via: (link.tag, link.ordinal), holds: LaneState::Nothing });
    lanes.last_mut()
}

/// Whether what the sender has stored, or could not store, is a piece; then it is dealt with.
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
            // It is not asked for again: the sender, to whom it counts as not sent, must hear that this is the end.
            transfer.asked -= len;
            transfer.owes_fin = true;
        }
    } else if stored {
        unpack(cx, transfer, id, lane, piece);
        transfer.give_up_pieces_after_failure();
    } else {
        // Nor would it store the rest.
        let rest = (std::mem::replace(&mut pieces.next, wanted), wanted);
        pieces.refused.push((offset, offset + len));
        pieces.refused.extend((rest.0 != rest.1).then_some(rest));
        transfer.asked -= len;
    }
    ask_for_refused(channel, id);
    true
}

/// Has a kernel, or copy engines in its stead, bring a piece to where it belongs.
fn unpack(cx: &Context<'_>, transfer: &mut Incoming, id: Id, lane: usize, piece: (u64, u64)) {
    let at = *transfer.convertor.location();
    let Some(pieces) = transfer.pieces() else { return };
    match begin_unpack(cx, pieces, &at, lane, piece) {
        Ok(completion) => {
            pieces.lanes[lane].holds = LaneState::Unpacking;
            transfer.busy += 1;
            let then = AfterCopy::Unpacked { peer: cx.peer.rank, id, lane, bytes: piece.1 };
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
    // The default stream was waited for before anything was asked for.
    let mut batch = cx.core.devices.batch(at, Direction::DeviceToDevice, Order::None)?;
    batch.reachable(Within::OneDevice);
    let (user, spread, packed) = (pieces.user, &pieces.spread, pieces.lanes[lane].slot.region().address);
    let packing = Packing { user, spread, position, packed, len, unpack: true, by_engines: true };
    // SAFETY: the buffer is the transfer's until it is settled, which waits for the copy, as does the slot; both lie on the
    // context's device, and no two blocks of a receive's buffer coincide.
    unsafe { batch.copy_packed(&packing) }?;
    batch.finish()
}

/// A piece is where it belongs.
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
    transfer.give_up_pieces_after_failure();
    ask(cx, channel, id);
    settle::receive(cx, channel, id);
}

/// Asks for what could not be stored as fragments, range by range, once nothing else is awaited: a sender that fails
/// meanwhile forgets the message, and must not be asked for more of it.
pub(crate) fn ask_for_refused(channel: &mut Channel, id: Id) {
    let Some(transfer) = channel.state.receives.get_mut(id).filter(|transfer| transfer.awaited == 0) else { return };
    if transfer.failure.is_some() || transfer.gone {
        return;
    }
    if let Some(range) = transfer.pieces().and_then(|pieces| pieces.refused.pop()) {
        fragments::ask(channel, id, &[range]);
    }
}
