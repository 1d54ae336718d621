//! Fragments: moves an announced message's data through internal buffers, or in place if the link can.
//!
//! The receiver requests ranges. The sender keeps some fragments under way, on the link with the least work.

use cableway_btl::{Error as BtlError, Flags, Fragment, FragmentKind, Received, Region, Transfer};
use cableway_common_cuda::{Completion, DeviceError, Devices, Order};
use smallvec::SmallVec;

use super::context::{AfterCopy, Context, Held, Links, Operation, hold};
use super::probe::{Announcement, Cost, Data, Passes, Quote};
use super::settle;
use super::transfer::{Answer, Channel, Incoming, OneCopy, Outgoing, Protocol, Stage, State};
use crate::core::Link;
use crate::error::Error;
use crate::wire::{Ack, FRAGMENT_LEN, Header, HeaderBuffer, Id, Malformed};

/// Offers to move the data through internal buffers, which is always possible.
pub(crate) fn probe_receive(incoming: &Announcement) -> Quote<Data> {
    let cost = Cost { passes: Passes::Staged, time: incoming.costs.send, headers: 1 };
    Quote { how: Data::Fragments, cost, reason: "copied through internal buffers" }
}

/// Outcome of an attempt to send one fragment.
enum Step {
    /// The fragment has left, or is being copied.
    Sent,
    /// No link takes a fragment.
    Busy,
    /// Enough of this message is in flight: its completions continue it.
    Deep,
    /// The message has nothing more to send.
    Empty,
}

/// Sends fragments, the oldest message first, until the links are full. Returns how many.
pub(crate) fn advance(cx: &mut Context<'_>, channel: &mut Channel) -> usize {
    let mut sent = 0;
    while let Some(&id) = channel.state.queues.streams.front() {
        match send(cx, channel, id) {
            Ok(Step::Sent) => sent += 1,
            Ok(Step::Busy) => break,
            Ok(Step::Deep | Step::Empty) => {
                channel.state.queues.streams.pop_front();
                if let Some(answer) = channel.state.sends.get_mut(id).and_then(Outgoing::answer) {
                    answer.queued = false;
                }
                settle::send(cx, channel, id);
            }
            Err(broken) => {
                channel.links.broken = Some(broken);
                break;
            }
        }
    }
    sent
}

/// Continues a message after a fragment has left or the receiver has requested some, and settles it if it is done.
pub(crate) fn resume(cx: &mut Context<'_>, channel: &mut Channel, id: Id) {
    settle::send(cx, channel, id);
    let State { sends, queues, .. } = &mut channel.state;
    if let Some(answer) = sends.get_mut(id).and_then(Outgoing::answer)
        && !answer.queued
        && !answer.ranges.is_empty()
    {
        answer.queued = true;
        queues.streams.push_back(id);
    }
    advance(cx, channel);
}

fn send(cx: &mut Context<'_>, channel: &mut Channel, id: Id) -> Result<Step, (usize, BtlError)> {
    let Channel { links: Links { active, operations, .. }, state: State { sends, .. } } = channel;
    let Some(transfer) = sends.get_mut(id) else { return Ok(Step::Empty) };
    let on_device = transfer.is_on_device();
    let Stage::Moving(Answer { receiver, ranges, to_device, .. }) = &transfer.stage else { return Ok(Step::Empty) };
    let Some(&(from, to)) = ranges.front() else { return Ok(Step::Empty) };
    // A device copy has a fixed cost for each fragment on either side, so devices use larger fragments.
    let copied = on_device || *to_device;
    let parameters = &cx.core.parameters;
    let depth = if copied { parameters.device_chunks } else { parameters.pml_pipeline_depth };
    if transfer.busy >= depth.max(1) {
        return Ok(Step::Deep);
    }
    let header = HeaderBuffer::new(&Header::Fragment { receiver: *receiver, offset: from });
    for at in by_load(active) {
        let link = &mut active[at];
        let btl = link.btl;
        let caps = link.capabilities();
        let in_place = !on_device && caps.flags.contains(Flags::SEND_IN_PLACE);
        let kind = if copied { link.device_kind() } else { FragmentKind::Host };
        let capacity = match kind {
            FragmentKind::Device => {
                let piece = device_piece(parameters.device_chunk_size, transfer.len);
                caps.device_max_send_size.saturating_sub(FRAGMENT_LEN).min(piece)
            }
            _ => caps.max_send_size.saturating_sub(FRAGMENT_LEN),
        };
        let len = (to - from).min(capacity.max(1) as u64);
        if in_place && let Some(region) = transfer.region(from, len, Order::None) {
            let operation = operations.insert(Operation::SendFragment(id, len));
            let token = cx.peer.token(operation);
            // SAFETY: the buffer stays valid and unwritten until the request completes, which waits for the operation.
            let sent = unsafe { link.endpoint.send_in_place(header.as_bytes(), region, token) };
            if !matches!(sent, Ok(Transfer::Started)) {
                operations.remove(operation);
            }
            match sent.map_err(|error| (btl, error))? {
                Transfer::Busy => continue,
                Transfer::Done => transfer.note_settled(len),
                Transfer::Started => transfer.busy += 1,
            }
        } else {
            let whole = FRAGMENT_LEN + len as usize;
            let Some(mut fragment) = link.endpoint.alloc(whole, kind).map_err(|error| (btl, error))? else {
                continue;
            };
            let (peer, serial) = (cx.peer.rank, link.serial);
            let then = |fragment| AfterCopy::SendFragment { peer, link: serial, id, fragment, len: whole };
            match pack(transfer, &mut fragment, header.as_bytes(), (from, len), &cx.core.devices) {
                Ok(Packed::Done) => {
                    link.endpoint.send(fragment, whole).map_err(|error| (btl, error))?;
                    transfer.note_settled(len);
                }
                Ok(Packed::Copying(completion)) => {
                    transfer.busy += 1;
                    cx.shared.copies.follow(cx.core, completion, len, then(fragment));
                }
                Ok(Packed::By { to, region }) => {
                    transfer.busy += 1;
                    // SAFETY: only this function uses the fragment, and the buffer stays unchanged while busy.
                    unsafe {
                        cx.shared.gather_out(cx.core, region, to, kind == FragmentKind::Device, then(fragment));
                    }
                }
                Err(error) => {
                    drop(fragment);
                    transfer.fail(Error::of_copy(error, &transfer.convertor));
                    return Ok(Step::Empty);
                }
            }
        }
        link.load += len as f64 / link.capabilities().bandwidth.max(1.0);
        link.carried = true;
        if let Some(answer) = transfer.answer() {
            match answer.ranges.front_mut() {
                Some(front) if from + len < to => front.0 = from + len,
                _ => drop(answer.ranges.pop_front()),
            }
        }
        return Ok(Step::Sent);
    }
    Ok(Step::Busy)
}

/// Returns how many of `len` bytes a device copies at a time. Pieces let the copies of both sides overlap, but each has
/// a fixed cost, equal to the time of some hundred thousand bytes.
fn device_piece(largest: usize, len: u64) -> usize {
    usize::try_from(len.div_ceil(2)).unwrap_or(largest).clamp(largest.div_ceil(2), largest)
}

/// How data gets into a fragment.
enum Packed {
    /// The data is in the fragment.
    Done,
    /// A device copies it.
    Copying(Completion),
    /// A copy that can be batched with others.
    By { to: *mut u8, region: Region },
}

/// Writes the header and `len` bytes from `from` on into the fragment, or starts to.
fn pack(
    transfer: &mut Outgoing,
    fragment: &mut Fragment,
    header: &[u8],
    (from, len): (u64, u64),
    devices: &Devices,
) -> Result<Packed, cableway_datatype::Error> {
    let (start, end) = (from as usize, (from + len) as usize);
    if let Some(bytes) = transfer.host_bytes() {
        fragment.fill(header, &bytes[start..end]);
        return Ok(Packed::Done);
    }
    fragment.write(0, header);
    transfer.convertor.set_position(from);
    // SAFETY: the fragment has space for the header and `len` bytes, nothing else uses it, and it is kept with the
    // completion.
    unsafe {
        let to = fragment.as_mut_ptr().add(header.len());
        if !transfer.is_on_device() {
            return transfer.convertor.pack(to, len as usize).map(|_| Packed::Done);
        }
        let order = transfer.next_order(devices);
        match transfer.region(from, len, order) {
            Some(region) => Ok(Packed::By { to, region }),
            None => {
                let started = transfer.convertor.start_pack(to, len as usize, order);
                started.map(|(_, completion)| Packed::Copying(completion))
            }
        }
    }
}

/// Handles that a fragment's copy off the device is done.
pub(crate) fn copied(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (id, serial): (Id, u32),
    (mut fragment, len): (Fragment, usize),
    result: Result<(), DeviceError>,
) {
    let Channel { links, state: State { sends, .. } } = &mut *channel;
    let Some(transfer) = sends.get_mut(id) else { return };
    transfer.busy -= 1;
    match result {
        Err(source) => transfer.fail_on_device(source),
        // A failed range is not sent. The receiver learns at the end what is missing.
        Ok(()) if transfer.failure.is_some() => {}
        Ok(()) => {
            if let Some(link) = links.by_serial(serial) {
                transfer.note_settled((len - FRAGMENT_LEN) as u64);
                if let Err(error) = link.endpoint.send(fragment, len) {
                    links.broken = Some((link.btl, error));
                }
            } else if !transfer.gone {
                transfer.note_settled((len - FRAGMENT_LEN) as u64);
                links.control.late.push_back(fragment.copied(len));
            }
        }
    }
    resume(cx, channel, id);
}

/// Handles that a `send_in_place` of a message or of a fragment of `len` bytes is done.
pub(crate) fn left_in_place(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (id, fragment): (Id, Option<u64>),
    result: Result<(), BtlError>,
) {
    let Some(transfer) = channel.state.sends.get_mut(id) else { return };
    transfer.busy -= 1;
    match result {
        Ok(()) => transfer.note_settled(fragment.unwrap_or(0)),
        Err(error) => transfer.fail(error.into()),
    }
    resume(cx, channel, id);
}

/// Handles the receiver's request for a range as fragments.
pub(crate) fn asked(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    Ack { sender: id, receiver, from, to, total, to_device, offer }: &Ack,
) -> Result<(), Malformed> {
    let what = "an acknowledgement";
    let transfer = channel.state.sends.get_mut(*id).ok_or(Malformed::NoTransfer { what, id: id.0 })?;
    let failed = transfer.failure.is_some();
    let answer = transfer.ask(what, (*id, *receiver), (*from, *to), *total)?;
    answer.to_device |= to_device;
    if !failed && from != to {
        answer.ranges.push_back((*from, *to));
        cx.core.counters.protocol_fragments.increment();
        cx.core.counters.bytes_fragments.add(to - from);
    }
    // A receiver that requests fragments neither fetches the data nor has it stored.
    if offer.is_none() && matches!(transfer.one_copy, OneCopy::Exposed(_) | OneCopy::Stores { .. }) {
        transfer.one_copy = OneCopy::None;
        if transfer.is_on_device() {
            channel.state.one_copy.missed();
        }
    }
    resume(cx, channel, *id);
    Ok(())
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
    let (sender, to_device) = (transfer.sender, transfer.is_on_device());
    transfer.owes_fin = to_device || fetch.is_some_and(|fetch| fetch.offered_any && fetch.fetched != 0);
    for &(from, to) in ranges {
        links.send_control(&Header::Ack(Ack { sender, receiver: id, from, to, total, to_device, offer: None }));
    }
}

/// Handles a requested fragment for `offset`.
pub(crate) fn arrived(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (id, offset): (Id, u64),
    message: &Received<'_>,
    header_len: usize,
) -> Result<(), Malformed> {
    let payload = message.bytes().skip(header_len);
    let len = payload.len() as u64;
    let transfer = awaiting(channel, id, "a fragment", (offset, len))?;
    transfer.awaited -= len;
    transfer.convertor.set_position(offset);
    let on_device = transfer.is_on_device();
    if transfer.failure.is_some() {
        transfer.arrived += len;
    } else if let Some(held) = on_device.then(|| hold(cx.core, message, header_len)).flatten() {
        copy_in(cx, transfer, id, (offset, len), held);
    } else {
        // SAFETY: the payload is readable and not part of a user's buffer.
        if let Err(error) = unsafe { transfer.convertor.unpack(payload.as_ptr(), payload.len()) } {
            transfer.fail(Error::of_copy(error, &transfer.convertor));
        }
        transfer.arrived += len;
    }
    // If the message failed meanwhile, give up the ranges that were not requested again.
    transfer.give_up_pieces_after_failure();
    Ok(())
}

/// Has the device copy a fragment's data into the user's buffer. The range lies within the wanted length.
fn copy_in(cx: &Context<'_>, transfer: &mut Incoming, id: Id, (offset, len): (u64, u64), held: Held) {
    let order = transfer.next_order(&cx.core.devices);
    let then = |source| AfterCopy::Arrived { peer: cx.peer.rank, id, bytes: len, source };
    if let Some(region) = transfer.region(offset, len, order) {
        transfer.busy += 1;
        // SAFETY: the buffer belongs to the transfer while that is busy.
        return unsafe { cx.shared.gather_in(cx.core, held, region, then) };
    }
    let Held { address: from, source } = held;
    // SAFETY: the source keeps the bytes readable and moves along with the completion.
    match unsafe { transfer.convertor.start_unpack(from, len as usize, order) } {
        Ok((_, completion)) => {
            transfer.busy += 1;
            cx.shared.copies.follow(cx.core, completion, len, then(source));
        }
        Err(error) => {
            transfer.arrived += len;
            transfer.fail(Error::of_copy(error, &transfer.convertor));
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
        transfer.give_up_pieces_after_failure();
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

/// Orders the links by work, least first. So each gets a share of a striped message by its bandwidth.
fn by_load(links: &[Link]) -> SmallVec<[usize; 4]> {
    let mut order: SmallVec<[usize; 4]> = (0..links.len()).collect();
    order.sort_by(|&a, &b| links[a].load.total_cmp(&links[b].load));
    order
}
