//! The receiver: answers an announced message by the protocol that it chooses for the data.

use std::time::Instant;

use cableway_btl::{self as btl, Access, Flags, Mover};
use cableway_common_cuda::{DeviceError, Order};

use super::header::{AbortHeader, Fin};
use crate::core::{Active, Link};
use crate::error::Error;
use crate::protocol::context::{Context, Links, Step, default_stream};
use crate::protocol::get::Remote;
use crate::protocol::host_costs::{HostCosts, Reach, Way};
use crate::protocol::pieces::Pieces;
use crate::protocol::probe::{Announcement, Costs, Data, Shape};
use crate::protocol::receive_buffer::ReceiveBuffer;
use crate::protocol::transfer::{AfterOrder, Channel, Incoming, Protocol, State};
use crate::protocol::unexpected::Rendezvous;
use crate::protocol::{choice, eager_fragments, fragments, get, halves, offered, page_locked, pieces, put, settle};
use crate::status::Status;
use crate::wire::{Id, MATCH_LEN, Malformed};

/// Requests the data of a message that was matched.
pub(crate) fn begin(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (request, buffer): (Active, ReceiveBuffer),
    status: Status,
    rendezvous: &Rendezvous,
) {
    let Some((convertor, posted)) = buffer.into_convertor(&cx.core.devices) else { return };
    let announced = &rendezvous.announced;
    if announced.follows {
        return eager_fragments::begin(cx, channel, (request, convertor, posted), status, announced.sender);
    }
    let mut transfer = Incoming::new(request, convertor, posted, status, announced.sender);
    if let Err(error) = cx.peer.check() {
        transfer.request.complete(status, Some(error), cx.done);
        return;
    }
    if transfer.wanted == 0 {
        channel.links.send_control(&Fin { sender: transfer.sender, result: Ok(()) });
        let truncated = transfer.truncated();
        transfer.request.complete(status, truncated, cx.done);
        return;
    }
    let shape = Shape::of(&transfer.buffer.convertor, channel.links.abilities().any, announced.packs, &cx.core.devices);
    if shape.on_device {
        cx.core.orders.note_message(false);
    }
    let page_locked = moves_page_locked(cx, channel, &mut transfer, rendezvous, &shape);
    let remote = remote(&channel.links, rendezvous, shape, page_locked);
    let incoming = announcement(cx, channel, &transfer, rendezvous, (shape, remote, page_locked));
    let data = choose(cx, channel, &mut transfer, incoming);
    // Neither the NIC nor a kernel waits for a stream.
    let direct = || channel.links.abilities().any.contains(Flags::DEVICE_DIRECT);
    let after = match (data, remote) {
        (Data::Get, Some(remote)) if !shape.contiguous || (shape.on_device && direct()) => {
            Some(AfterOrder::Fetch(remote))
        }
        (Data::Put, remote) if shape.on_device => Some(AfterOrder::Expose(remote)),
        // Kernels may have become unavailable since the probe.
        (Data::Pieces, _) => transfer
            .buffer
            .convertor
            .spread(&cx.core.devices)
            .map(|spread| AfterOrder::AskForPieces(Pieces::new(spread))),
        _ => None,
    };
    let ordered = after.map(|after| transfer.protocol = Protocol::Ordering(Box::new(after))).is_some();
    let id = channel.state.receives.insert(transfer);
    match (data, remote) {
        _ if ordered => move_in_order(cx, channel, id),
        (Data::Get | Data::Offered, Some(remote)) => get::begin(cx, channel, (id, remote), data == Data::Offered),
        (Data::Halves, Some(remote)) => halves::begin(cx, channel, id, remote),
        (Data::Put, _) => put::expose(channel, id, None),
        _ => fragments::ask(channel, id, &[]),
    }
}

/// Chooses the protocol for the data. Between two processes of a node, the times of earlier messages decide.
fn choose(cx: &Context<'_>, channel: &mut Channel, transfer: &mut Incoming, mut incoming: Announcement) -> Data {
    let Channel { links, state: State { host_costs, .. } } = channel;
    transfer.cache_eager = host_costs.as_ref().is_some_and(|costs| costs.caches());
    let trials = cx.core.parameters.pml_host_trials as u32;
    if trials == 0
        || !incoming.is_between_hosts()
        || !incoming.to.one_run
        || !links.abilities().any.contains(Flags::OFFER)
    {
        return choice::data(&incoming);
    }
    let kept = &cx.shared.kept;
    let host_costs = host_costs.get_or_insert_with(|| {
        let (pause, only) = (cx.core.parameters.pml_host_pause as u32, &cx.core.parameters.pml_host_way);
        Box::new(HostCosts::new(trials, links.distance(), kept).with(pause, only))
    });
    let reach = Reach::of(incoming.exposed, incoming.addressable && !cx.core.crowded);
    let now = Instant::now();
    let expected = host_costs.expect(incoming.len, reach, now);
    let cost = |time| btl::Cost { fixed: time, bytes_per_second: f64::INFINITY };
    let (send, get, halves) = (cost(expected.fragments), cost(expected.get), cost(expected.halves));
    incoming.costs = Costs { send, get, halves, ..Costs::NOT_ASKED };
    incoming.timed = true;
    let data = choice::data(&incoming);
    let way = match (data, expected.stream) {
        (Data::Get, _) => Way::Get,
        (Data::Halves, _) => Way::Halves,
        (Data::Offered | Data::Fragments, true) => Way::Streamed,
        (Data::Offered | Data::Fragments, false) => Way::Cached,
        (Data::Put | Data::Pieces, _) => return data,
    };
    transfer.unasked = host_costs.begin(incoming.len, way, expected, now);
    (transfer.stream, transfer.timed) = (expected.stream, true);
    data
}

/// Returns whether one of the buffers is on a device, the other one is page-locked, and a device of its process copies.
fn moves_page_locked(
    cx: &Context<'_>,
    channel: &mut Channel,
    transfer: &mut Incoming,
    Rendezvous { announced, exposed }: &Rendezvous,
    shape: &Shape,
) -> bool {
    let (any, copy_only) = (channel.links.abilities().any, cx.core.copy_only());
    let state = &mut channel.state.page_locked;
    match (announced.on_device, shape.on_device) {
        (true, false) => {
            let in_one_run = exposed.as_ref().is_some_and(|exposed| exposed.blocks.is_none());
            // The sender announces what it could send eagerly now and then, to learn where the receiver's buffers are.
            let eager_limit = channel.links.active.first().map_or(0, |main| main.capabilities().eager_limit);
            let large = transfer.wanted.saturating_add(MATCH_LEN as u64) > eager_limit as u64;
            let fetched = in_one_run && large && state.fetch(shape, any, copy_only);
            transfer.fetches = fetched || state.would_fetch(shape, any, copy_only);
            fetched
        }
        (false, true) => announced.page_locked && shape.one_run && page_locked::able(any, copy_only),
        _ => false,
    }
}

/// Returns the memory that the sender exposed, if this process can fetch from it.
fn remote(
    links: &Links,
    Rendezvous { announced, exposed }: &Rendezvous,
    shape: Shape,
    page_locked: bool,
) -> Option<Remote> {
    let by_device = shape.on_device || (announced.on_device && page_locked);
    let mut flag = if by_device { Flags::DEVICE_GET } else { Flags::GET };
    let exposed = exposed.as_ref()?;
    let theirs = exposed.blocks.is_some();
    // The CPU cannot read blocks of device memory.
    if theirs && !shape.on_device {
        return None;
    }
    if shape.packed && !shape.contiguous {
        flag |= Flags::DEVICE_PACKED;
    } else if theirs || (shape.on_device && !shape.one_run) {
        flag |= Flags::DEVICE_STRIDED;
    }
    let link = links.named(exposed.btl, exposed.ordinal, |link| link.has(flag))?;
    Some(Remote { link, handle: exposed.handle, blocks: exposed.blocks, by_device })
}

/// Describes the announcement to the receiver's probes.
fn announcement(
    cx: &Context<'_>,
    channel: &Channel,
    transfer: &Incoming,
    Rendezvous { announced, exposed }: &Rendezvous,
    (shape, remote, page_locked): (Shape, Option<Remote>, bool),
) -> Announcement {
    let Channel { links, state } = channel;
    let abilities = links.abilities();
    let both = remote.filter(|_| announced.addressable && shape.on_device);
    let by = both.and_then(|remote| Some((links.active.iter().find(|link| link.serial == remote.link)?, remote)));
    let pieces = announced.addressable && shape.packed && !cx.core.copy_only();
    Announcement {
        len: transfer.wanted,
        exposed: remote.is_some(),
        in_blocks: exposed.as_ref().is_some_and(|exposed| exposed.blocks.is_some()),
        addressable: announced.addressable,
        packs: announced.packs,
        scratch: pieces && cx.shared.scratch.promises(transfer.buffer.location()),
        to: shape,
        copy_only: cx.core.copy_only(),
        attentive: !cx.core.crowded && state.sends.is_empty() && state.offers.attentive(cx.peer),
        any: abilities.any,
        too_large: transfer.wanted > abilities.device_max_rdma_size as u64,
        timed: false,
        mixed: announced.on_device != shape.on_device,
        page_locked,
        waits_for_turn: by.is_some_and(|(link, remote)| {
            link.endpoint.waits_for_turn(transfer.buffer.location(), &remote.handle, transfer.wanted)
        }),
        costs: by.map_or(Costs::NOT_ASKED, |(link, remote)| copy_costs(link, transfer, &remote)),
    }
}

/// Returns the cost of a GET from the memory that the sender exposed, and of a PUT by the sender.
fn copy_costs(link: &Link, transfer: &Incoming, remote: &Remote) -> Costs {
    let cost = |mover| link.endpoint.transfer_cost(mover, transfer.buffer.location(), &remote.handle);
    Costs { get: cost(Mover::Fetches), put: cost(Mover::PeerStores), ..Costs::NOT_ASKED }
}

/// Starts a PUT to or a GET into device memory once the default stream's work on it is done. The peer, the NIC and
/// kernels do not know that stream.
fn move_in_order(cx: &mut Context<'_>, channel: &mut Channel, id: Id) {
    let Some(transfer) = channel.state.receives.get_mut(id) else { return };
    if transfer.buffer.order(&cx.core.devices) == Order::None {
        return move_ordered(cx, channel, id);
    }
    match default_stream(cx.core, transfer.buffer.location()) {
        Ok(Some(completion)) => {
            transfer.busy += 1;
            cx.shared.copies.follow(cx.core, completion, 0, cx.then(id, Step::Move));
        }
        Ok(None) => move_ordered(cx, channel, id),
        // The copies of fragments will report the error.
        Err(_) => fragments::ask(channel, id, &[]),
    }
}

/// Handles that the default stream's work on the buffer is done.
pub(crate) fn ordered(cx: &mut Context<'_>, channel: &mut Channel, id: Id, result: Result<(), DeviceError>) {
    let Some(transfer) = channel.state.receives.get_mut(id) else { return };
    transfer.busy -= 1;
    if !transfer.gone && transfer.failure.is_none() {
        match result {
            Ok(()) => move_ordered(cx, channel, id),
            Err(_) => fragments::ask(channel, id, &[]),
        }
    }
    settle::receive(cx, channel, id);
}

fn move_ordered(cx: &mut Context<'_>, channel: &mut Channel, id: Id) {
    let Some(transfer) = channel.state.receives.get_mut(id) else { return };
    let remote = match std::mem::replace(&mut transfer.protocol, Protocol::Fragments) {
        Protocol::Ordering(after) => match *after {
            AfterOrder::AskForPieces(pieces) => {
                transfer.protocol = Protocol::Pieces(pieces);
                return pieces::ask(cx, channel, id);
            }
            AfterOrder::Fetch(remote) => return get::begin(cx, channel, (id, remote), false),
            AfterOrder::Expose(None) => return put::expose(channel, id, None),
            AfterOrder::Expose(Some(remote)) => remote,
        },
        other => {
            transfer.protocol = other;
            return;
        }
    };
    let whole = transfer.buffer.whole(transfer.wanted, Order::None).map(|whole| whole.0);
    let registered = whole.zip(channel.links.by_serial(remote.link)).and_then(|(region, link)| {
        // SAFETY: the buffer belongs to the transfer until it is settled, which drops the registration first. Otherwise
        // the registration is dropped before a peer learns of it.
        unsafe { link.endpoint.register(region, Access::RemoteWrite) }.ok().flatten()
    });
    match registered {
        Some(registration) => put::expose(channel, id, Some((remote.link, registration))),
        None => get::begin(cx, channel, (id, remote), false),
    }
}

/// Handles that the sender aborts. It still sent `sent` bytes of what was requested.
pub(crate) fn aborted(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    AbortHeader { receiver: id, sent, reason }: AbortHeader,
) -> Result<(), Malformed> {
    let what = "an abort";
    offered::take_back(channel, Some(id));
    let transfer = channel.state.receives.get_mut(id).ok_or(Malformed::NoTransfer { what, id: id.0 })?;
    // Some of the data sent may still be on other links.
    let coming = sent.checked_sub(transfer.asked - transfer.awaited).filter(|&coming| coming <= transfer.awaited);
    let coming = coming.ok_or(Malformed::OutOfTurn { what, id: id.0 })?;
    transfer.arrived += transfer.awaited - coming;
    let dropped = std::mem::replace(&mut transfer.awaited, coming) - coming;
    if let Some(pieces) = transfer.pieces() {
        pieces.put_down_asked();
    }
    transfer.abort_rest();
    transfer.fail(Error::PeerAborted { peer: cx.peer.rank, len: transfer.status.len, reason });
    transfer.owes_fin = false;
    channel.state.offers.forget(dropped);
    settle::receive(cx, channel, id);
    Ok(())
}
