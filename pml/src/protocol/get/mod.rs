//! GET: the sender announces a message with a remote key, and the receiver fetches it.

mod header;
mod state;

use cableway_btl::{self as btl, Access, Error, Flags, Transfer};
use cableway_common_cuda::Order;

use super::context::{Context, Links, Operation};
use super::probe::{Announcement, Cost, Data, Message, Passes, Probe, Quote, Start};
use super::rendezvous::{self, Announced, Attempt};
use super::transfer::{Channel, OneCopy, Outgoing, Protocol, Stage, State};
use super::user_buffer::Form;
use super::{fragments, offered, settle};
use crate::core::Link;
use crate::wire::{Exposed, HeaderBuffer, Id};

pub(crate) use header::Get;
pub(crate) use state::{Fetch, Remote};

/// Offers to announce the message with a remote key.
#[inline(always)]
pub(crate) fn probe_send(message: &Message) -> Probe<Start> {
    message.from.reached_by(Flags::GET, Flags::DEVICE_GET, message.copy_only, message.links.any)?;
    message.repays()?;
    if message.from.on_device {
        if message.len == 0 {
            return Err("there is no data");
        }
        if !message.registrable {
            return Err("no link can register this memory");
        }
        if message.is_small() && !message.to_device {
            return Err("the receiver's buffers were in host memory so far");
        }
    }
    let small = message.from.on_device && message.is_small();
    let reason = if small { "one copy between devices is cheaper than two" } else { "the receiver can fetch it" };
    let cost = Cost { passes: Passes::One, time: message.costs.get, headers: 1 };
    Ok(Quote { how: Start::Expose, cost, reason })
}

/// Offers to fetch the data from the memory that the sender exposed.
pub(crate) fn probe_receive(incoming: &Announcement) -> Probe<Data> {
    let &Announcement { to, copy_only, any, .. } = incoming;
    if !incoming.exposed {
        return Err("the sender exposed no memory that this process can access");
    }
    incoming.reaches()?;
    if incoming.page_locked && to.on_device {
        return Err("the sender's device stores it");
    }
    let reason = if incoming.page_locked {
        "the receiver's device fetches it into page-locked memory"
    } else if !incoming.in_blocks && !to.contiguous && to.packed_by(Flags::DEVICE_GET, copy_only, any) {
        "a kernel fetches each block to its place"
    } else {
        to.reached_by(Flags::GET, Flags::DEVICE_GET, copy_only, any)?;
        match (to.on_device, any.contains(Flags::DEVICE_DIRECT)) {
            (true, true) => "the receiver's NIC fetches it",
            (true, false) if incoming.addressable => {
                "the receiver fetches it in one copy (on one device the lower rank copies)"
            }
            _ => "the receiver fetches it in one copy",
        }
    };
    let cost = Cost { passes: Passes::One, time: incoming.costs.get, headers: 0 };
    Ok(Quote { how: Data::Get, cost, reason })
}

/// Registers the data with the first link that can make it reachable for the peer's GET. Returns false if none can.
pub(crate) fn expose(active: &mut [Link], transfer: &mut Outgoing, flag: Flags) -> Result<bool, Error> {
    let Some((region, blocks)) = transfer.buffer.whole(transfer.len, Order::None) else { return Ok(false) };
    let flag = if blocks.is_some() { flag | Flags::DEVICE_STRIDED } else { flag };
    for link in active.iter_mut().filter(|link| link.has(flag)) {
        // SAFETY: the buffer stays valid and unwritten until the request completes. The registration is dropped with
        // the transfer, before that.
        if let Some(registration) = unsafe { link.endpoint.register(region, Access::RemoteRead)? } {
            transfer.one_copy = OneCopy::Exposed(Box::new((link.serial, registration)));
            return Ok(true);
        }
    }
    Ok(false)
}

/// Announces the message with a remote key.
pub(crate) fn attempt(cx: &mut Context<'_>, channel: &mut Channel, id: Id) -> Result<Attempt, Error> {
    let Channel { links: Links { active, .. }, state: State { sends, .. } } = &mut *channel;
    let Some(transfer) = sends.get_mut(id) else { return Ok(Attempt::Started) };
    let on_device = transfer.buffer.is_on_device();
    // A retry after a busy link keeps the earlier registration.
    if !matches!(transfer.one_copy, OneCopy::Exposed(_)) && !on_device {
        expose(active, transfer, Flags::GET)?;
    }
    let addressable = match on_device {
        true => rendezvous::storable(cx.core, active, transfer).0,
        false => active.iter().any(|link| link.has(offered::HALVES)),
    };
    let Some(from) = exposed(active, transfer) else {
        transfer.stage = Stage::Starting(Start::Announce);
        return Ok(rendezvous::announce(cx, channel, id));
    };
    // The peer's copy does not wait for this process's default stream.
    if on_device && !rendezvous::is_ordered(cx, transfer, id) {
        return Ok(Attempt::Started);
    }
    if transfer.failure.is_some() {
        return Ok(rendezvous::announce(cx, channel, id));
    }
    let page_locked = transfer.page_locked;
    let announced =
        Announced { len: transfer.len, sender: id, addressable, on_device, page_locked, ..Announced::NOTHING };
    let header = HeaderBuffer::new(&Get { envelope: transfer.envelope, announced, from });
    Ok(rendezvous::send_header(channel, id, header.as_bytes()))
}

fn exposed(active: &[Link], transfer: &Outgoing) -> Option<Exposed> {
    let OneCopy::Exposed(exposed) = &transfer.one_copy else { return None };
    let (serial, registration) = &**exposed;
    let link = active.iter().find(|link| link.serial == *serial)?;
    let blocks = transfer.buffer.whole(transfer.len, Order::None)?.1;
    Some(Exposed { btl: link.tag, ordinal: link.ordinal, handle: *registration.handle(), blocks })
}

/// Starts to fetch a message, or to offer it to its sender.
pub(crate) fn begin(cx: &mut Context<'_>, channel: &mut Channel, (id, from): (Id, Remote), offering: bool) {
    let State { receives, queues, .. } = &mut channel.state;
    if let Some(transfer) = receives.get_mut(id) {
        if !offering {
            cx.core.counters.protocol_get.increment();
            cx.core.counters.bytes_get.add(transfer.wanted);
        }
        transfer.protocol = Protocol::Get(Box::new(Fetch::new(from, transfer.wanted, offering)));
        transfer.owes_fin = !offering;
    }
    queues.gets.push_back(id);
    advance(cx, channel);
}

/// Continues queued fetches. Returns how many pieces the links took.
pub(crate) fn advance(cx: &mut Context<'_>, channel: &mut Channel) -> usize {
    let mut pieces = 0;
    loop {
        let Some(&id) = channel.state.queues.gets.front() else {
            if offered::take_back_stored(channel) {
                continue;
            }
            break;
        };
        match next(cx, channel, id) {
            Ok(Some(Transfer::Busy)) => break,
            Ok(Some(Transfer::Done | Transfer::Started)) => pieces += 1,
            Ok(None) => {
                let State { receives, queues, .. } = &mut channel.state;
                queues.gets.pop_front();
                if let Some(fetch) = receives.get_mut(id).and_then(|transfer| transfer.fetch()) {
                    fetch.queued = false;
                }
                settle_fetch(cx, channel, id);
            }
            Err(broken) => {
                channel.links.broken = Some(broken);
                break;
            }
        }
    }
    pieces
}

/// Offers or fetches the message's next piece. Returns `None` if there is nothing to do now.
fn next(cx: &Context<'_>, channel: &mut Channel, id: Id) -> Result<Option<Transfer>, (usize, Error)> {
    let parameters = &cx.core.parameters;
    let State { receives, offers, .. } = &mut channel.state;
    let attentive = offers.attentive(cx.peer);
    let Some(transfer) = receives.get_mut(id) else { return Ok(None) };
    let deep = transfer.busy >= parameters.pml_pipeline_depth.max(1) || transfer.failure.is_some();
    let Some(fetch) = transfer.fetch().filter(|fetch| !deep && !fetch.ranges.is_empty()) else { return Ok(None) };
    if fetch.offering {
        let left: u64 = fetch.ranges.iter().map(|(from, to)| to - from).sum();
        if attentive && offered::offer_range(channel, id, parameters.pml_offer_window.max(1) as u64) {
            return Ok(Some(Transfer::Started));
        }
        if attentive && !channel.state.offers.is_empty() {
            return Ok(Some(Transfer::Busy));
        }
        cx.core.counters.protocol_get.increment();
        cx.core.counters.bytes_get.add(left);
    }
    fetch_piece(cx, channel, id)
}

/// Passes the message's next piece to its link.
fn fetch_piece(cx: &Context<'_>, channel: &mut Channel, id: Id) -> Result<Option<Transfer>, (usize, Error)> {
    let Channel { links: Links { active, operations, .. }, state: State { receives, page_locked, .. } } = channel;
    let Some(transfer) = receives.get_mut(id) else { return Ok(None) };
    let on_device = transfer.buffer.is_on_device();
    let one_run = transfer.buffer.convertor.contiguous().is_some();
    let Some(fetch) = transfer.fetch() else { return Ok(None) };
    fetch.offering = false;
    let from = fetch.from;
    let Some(link) = active.iter_mut().find(|link| link.serial == from.link) else {
        // The link is gone. The rest comes as fragments.
        fetch.refuse_rest();
        return Ok(None);
    };
    let limit = if from.by_device { link.capabilities().device_rdma_limit } else { link.capabilities().get_limit };
    let form = match from.blocks.is_some() || (on_device && !one_run) {
        true if from.blocks.is_none() && transfer.buffer.convertor.strided().is_none() => Form::Packed,
        true => Form::Blocks,
        false => Form::Run,
    };
    let Some((offset, end)) = transfer.fetch().and_then(|fetch| fetch.take(form.most(limit))) else { return Ok(None) };
    let len = end - offset;
    let found = transfer.buffer.find(form, &cx.core.devices);
    let local = transfer.buffer.local((form, &found), (offset, len), transfer.buffer.order(&cx.core.devices));
    let Protocol::Get(fetch) = &mut transfer.protocol else { return Ok(None) };
    let Some(local) = local else {
        // Kernels are no longer available, for the rest of the message too.
        fetch.refuse((offset, end));
        return Ok(None);
    };
    // The sender will not have sent everything itself.
    transfer.owes_fin = true;
    let remote = btl::Remote { handle: &from.handle, offset, blocks: from.blocks };
    let got = cx.peer.start(operations, Operation::Get { id, offset, len }, |token| {
        // SAFETY: the buffer belongs to the transfer until it is settled, which waits for the operation.
        unsafe { link.endpoint.get(&local, &remote, token) }
    });
    link.carried |= matches!(got, Ok(Transfer::Started | Transfer::Done));
    match got {
        Ok(Transfer::Busy) => fetch.ranges.push((offset, end)),
        Ok(Transfer::Done) => {
            transfer.arrived += len;
            fetch.fetched += len;
        }
        Ok(Transfer::Started) => transfer.busy += 1,
        Err(Error::Unavailable { .. }) => {
            if from.by_device && !on_device {
                page_locked.moved(false, false);
            }
            // The link would refuse the rest too.
            fetch.refuse((offset, end));
            return Ok(None);
        }
        Err(error) => {
            fetch.ranges.push((offset, end));
            return Err((link.btl, error));
        }
    }
    Ok(got.ok())
}

/// Handles that a piece is done.
pub(crate) fn completed(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (id, offset, len): (Id, u64, u64),
    result: Result<(), Error>,
) {
    let State { receives, queues, page_locked, .. } = &mut channel.state;
    let Some(transfer) = receives.get_mut(id) else { return };
    transfer.busy -= 1;
    let by_device = transfer.fetch().is_some_and(|fetch| fetch.from.by_device);
    if by_device && !transfer.buffer.is_on_device() {
        page_locked.moved(false, result.is_ok());
    }
    match (result, transfer.fetch()) {
        (Ok(()), fetch) => {
            if let Some(fetch) = fetch {
                fetch.fetched += len;
            }
            transfer.arrived += len;
            if by_device {
                cx.core.counters.device_direct.increment();
            }
        }
        (Err(Error::Unavailable { .. }), Some(fetch)) => fetch.refused.push((offset, offset + len)),
        (Err(error), _) => {
            transfer.arrived += len;
            transfer.fail(error.into());
        }
    }
    if let Some(fetch) = transfer.fetch()
        && !fetch.queued
        && !fetch.ranges.is_empty()
    {
        fetch.queued = true;
        queues.gets.push_back(id);
    }
    settle_fetch(cx, channel, id);
    advance(cx, channel);
}

/// Ends a fetch without operations under way. Ranges that were refused come as fragments.
pub(crate) fn settle_fetch(cx: &mut Context<'_>, channel: &mut Channel, id: Id) {
    if channel.state.receives.get_mut(id).is_some_and(|transfer| transfer.failure.is_some()) {
        offered::take_back(channel, Some(id));
    }
    let State { receives, offers, .. } = &mut channel.state;
    let on_offer = offers.of(id);
    let Some(transfer) = receives.get_mut(id) else { return };
    if transfer.busy == 0 && !transfer.gone {
        let (failed, awaited) = (transfer.failure.is_some(), transfer.awaited);
        if let Some(fetch) = transfer.fetch() {
            if failed {
                // Fetch nothing more.
                transfer.abort_rest();
            } else if fetch.ranges.is_empty()
                && !on_offer
                && !fetch.refused.is_empty()
                // The sender may still store.
                && (!fetch.halves || awaited == 0)
            {
                let refused = std::mem::take(&mut fetch.refused);
                return fragments::ask(channel, id, &refused);
            }
        }
    }
    settle::receive(cx, channel, id);
}
