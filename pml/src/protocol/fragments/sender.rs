//! The sender: sends the requested ranges, on the link with the least work.

use cableway_btl::{Error as BtlError, Flags, Fragment, FragmentKind, Region, Transfer};
use cableway_common_cuda::{Completion, DeviceError, Devices, Order};
use smallvec::SmallVec;

use super::header::{Ack, FRAGMENT_LEN, FragmentHeader};
use crate::core::Link;
use crate::error::Error;
use crate::protocol::context::{Context, Links, Operation, Step};
use crate::protocol::settle;
use crate::protocol::transfer::{Answer, Channel, OneCopy, Outgoing, Stage, State};
use crate::wire::{HeaderBuffer, Id, Malformed};

/// Outcome of an attempt to send one fragment.
enum FragmentAttempt {
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
            Ok(FragmentAttempt::Sent) => sent += 1,
            Ok(FragmentAttempt::Busy) => break,
            Ok(FragmentAttempt::Deep | FragmentAttempt::Empty) => {
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

fn send(cx: &mut Context<'_>, channel: &mut Channel, id: Id) -> Result<FragmentAttempt, (usize, BtlError)> {
    let Channel { links: Links { active, operations, .. }, state: State { sends, .. } } = channel;
    let Some(transfer) = sends.get_mut(id) else { return Ok(FragmentAttempt::Empty) };
    let on_device = transfer.buffer.is_on_device();
    let Stage::Moving(Answer { receiver, unasked, ranges, to_device, stream, .. }) = &transfer.stage else {
        return Ok(FragmentAttempt::Empty);
    };
    let Some(&(from, to)) = ranges.front() else { return Ok(FragmentAttempt::Empty) };
    // A device copy has a fixed cost for each fragment on either side, so devices use larger fragments.
    let copied = on_device || *to_device;
    let host_kind = if *stream { FragmentKind::Streamed } else { FragmentKind::Host };
    let parameters = &cx.core.parameters;
    let depth = if copied { parameters.device_chunks } else { parameters.pml_pipeline_depth };
    if transfer.busy >= depth.max(1) {
        return Ok(FragmentAttempt::Deep);
    }
    let unasked = *unasked;
    let header = HeaderBuffer::new(&FragmentHeader { transfer: *receiver, unasked, offset: from });
    // What was not requested must not overtake its announcement.
    let order = if unasked { SmallVec::from_slice(&[0][..active.len().min(1)]) } else { by_load(active) };
    for at in order {
        let link = &mut active[at];
        let btl = link.btl;
        let caps = link.capabilities();
        let in_place = !on_device && !unasked && caps.flags.contains(Flags::SEND_IN_PLACE);
        let kind = if copied { link.device_kind() } else { host_kind };
        let capacity = match kind {
            FragmentKind::Device => {
                let piece = match on_device && *to_device {
                    true => device_piece(parameters.device_chunk_size, transfer.len),
                    false => HOST_PIECE.min(parameters.device_chunk_size),
                };
                caps.device_max_send_size.saturating_sub(FRAGMENT_LEN).min(piece)
            }
            _ if unasked => caps.max_send_size.saturating_sub(FRAGMENT_LEN).min(UNASKED_PIECE),
            _ => caps.max_send_size.saturating_sub(FRAGMENT_LEN),
        };
        let len = (to - from).min(capacity.max(1) as u64);
        if in_place && let Some(region) = transfer.buffer.region(from, len, Order::None) {
            let sent = cx.peer.start(operations, Operation::SendFragment(id, len), |token| {
                // SAFETY: the buffer stays valid and unwritten until the request completes, which waits for the
                // operation.
                unsafe { link.endpoint.send_in_place(header.as_bytes(), region, token) }
            });
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
            let serial = link.serial;
            let then = |fragment| cx.then(id, Step::SendFragment { link: serial, fragment, len: whole });
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
                    transfer.fail(Error::of_copy(error, &transfer.buffer.convertor));
                    return Ok(FragmentAttempt::Empty);
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
        return Ok(FragmentAttempt::Sent);
    }
    Ok(FragmentAttempt::Busy)
}

/// The bytes of a fragment that was not requested. Fragments of 4, 8 and 16 KiB take the same time on cores near and far:
/// they are short beside the message, so that the copies of both sides overlap, and long beside the cost of a header.
const UNASKED_PIECE: usize = 8 << 10;

/// The bytes that move at a time if only one side is a device's. The other side's processor takes several times as long as
/// the device, so what counts is that its copies overlap the device's. On an Intel Xeon with an H100, messages of 1 to 16
/// MiB took 0.9 of the time that they take in pieces of 2 MiB.
const HOST_PIECE: usize = 256 << 10;

/// Returns how many of `len` bytes devices on both sides copy at a time. Pieces let the copies of both sides overlap, but each has
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
    transfer.buffer.convertor.set_position(from);
    // SAFETY: the fragment has space for the header and `len` bytes, nothing else uses it, and it is kept with the
    // completion.
    unsafe {
        let to = fragment.as_mut_ptr().add(header.len());
        if !transfer.buffer.is_on_device() {
            return transfer.buffer.convertor.pack(to, len as usize).map(|_| Packed::Done);
        }
        let order = transfer.buffer.next_order(devices);
        match transfer.buffer.region(from, len, order) {
            Some(region) => Ok(Packed::By { to, region }),
            None => {
                let started = transfer.buffer.convertor.start_pack(to, len as usize, order);
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
    (fragment, len): (Fragment, usize),
    result: Result<(), DeviceError>,
) {
    let Channel { links, state: State { sends, .. } } = &mut *channel;
    let Some(transfer) = sends.get_mut(id) else { return };
    transfer.busy -= 1;
    match result {
        Err(source) => transfer.fail_on_device(source),
        // A failed range is not sent, nor one of a peer that is gone, which fails the transfer. The receiver learns at
        // the end what is missing.
        Ok(()) if transfer.failure.is_some() => {}
        Ok(()) => {
            transfer.note_settled((len - FRAGMENT_LEN) as u64);
            links.send_copied(serial, fragment, len);
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
    Ack { sender: id, receiver, from, to, total, to_device, fetches, stream, cache_eager, unasked, offer }: &Ack,
) -> Result<(), Malformed> {
    let what = "an acknowledgement";
    let transfer = channel.state.sends.get_mut(*id).ok_or(Malformed::NoTransfer { what, id: id.0 })?;
    let failed = transfer.failure.is_some();
    channel.state.cache_eager = Some(*cache_eager);
    channel.state.permits.answered(transfer.len, *unasked);
    let answer = transfer.ask(what, (*id, *receiver), (*from, *to), *total)?;
    answer.to_device |= to_device;
    answer.stream = *stream;
    if !failed && from != to {
        answer.ranges.push_back((*from, *to));
        cx.core.counters.protocol_fragments.increment();
        cx.core.counters.bytes_fragments.add(to - from);
    }
    // A receiver that requests fragments neither fetches the data nor has it stored.
    if offer.is_none() && matches!(transfer.one_copy, OneCopy::Exposed(_) | OneCopy::Stores) {
        transfer.one_copy = OneCopy::None;
        if transfer.buffer.is_on_device() {
            channel.state.one_copy.missed();
            channel.state.page_locked.note_peer_fetches(*fetches);
        }
    }
    resume(cx, channel, *id);
    Ok(())
}

/// Orders the links by work, least first. So each gets a share of a striped message by its bandwidth.
fn by_load(links: &[Link]) -> SmallVec<[usize; 4]> {
    let mut order: SmallVec<[usize; 4]> = (0..links.len()).collect();
    order.sort_by(|&a, &b| links[a].load.total_cmp(&links[b].load));
    order
}
