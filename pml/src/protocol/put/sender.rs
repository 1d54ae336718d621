//! The sender: stores the requested ranges as jobs of several pieces.

use cableway_btl::{Access, Error, Flags, Mover, Remote, RemoteHandle, Transfer};
use cableway_common_cuda::{Devices, Location, Order};

use super::header::{Put, PutFin};
use super::state::PutJob;
use crate::abort::Abort;
use crate::core::Link;
use crate::protocol::context::{Context, Links, Operation};
use crate::protocol::settle;
use crate::protocol::transfer::{Channel, OneCopy, Outgoing, State};
use crate::protocol::user_buffer::Form;
use crate::wire::Malformed;

/// Handles the receiver's request for a PUT of a range to its buffer.
pub(crate) fn asked(cx: &mut Context<'_>, channel: &mut Channel, put: &Put) -> Result<(), Malformed> {
    let Put { sender: id, receiver, offset, len, total, to, .. } = *put;
    let what = "a PUT request";
    let Channel { links, state: State { sends, queues, one_copy, page_locked, .. } } = channel;
    let transfer = sends.get_mut(id).ok_or(Malformed::NoTransfer { what, id: id.0 })?;
    transfer.ask(what, (id, receiver), (offset, offset + len), total)?;
    if transfer.failure.is_none() {
        let location = *transfer.buffer.location();
        let (flag, packed) = needed(transfer, put)?;
        // The receiver may also ask to store in host memory: halves, with an offer, or after a failover.
        let page_locked_put = transfer.page_locked && put.offer.is_none();
        let able = |link: &Link| link.has(flag) || (page_locked_put && link.has(Flags::DEVICE_PAGE_LOCKED));
        let link = links.named(to.btl, to.ordinal, able);
        let to_device = |link: &mut Link| {
            let reach = link.endpoint.exported(&to.handle, Access::RemoteWrite, len as usize);
            link.has(Flags::DEVICE_PAGE_LOCKED) && reach.is_some()
        };
        let found = link.filter(|_| page_locked_put).and_then(|serial| links.by_serial(serial));
        let by_device = location.on_device() || found.is_some_and(to_device);
        if location.on_device()
            && let Some(link) = link.and_then(|serial| links.by_serial(serial))
        {
            one_copy.let_peer_copy(peer_copies(link, &location, &to.handle, len));
            page_locked.note_peer_fetches(false);
        }
        // Without the link the job fails at once, and the receiver requests fragments instead.
        let job = PutJob {
            id,
            receiver,
            offset,
            len,
            next: 0,
            link: link.unwrap_or(u32::MAX),
            handle: to.handle,
            blocks: to.blocks,
            packed,
            by_device,
            outstanding: 0,
            failed: link.is_none(),
        };
        queues.puts.push_back(queues.put_jobs.insert(job));
        cx.core.counters.protocol_put.increment();
        cx.core.counters.bytes_put.add(len);
    }
    settle::send(cx, channel, id);
    advance(cx, channel);
    Ok(())
}

/// Returns the flag that a link needs for a request, and whether a kernel packs the data.
fn needed(transfer: &mut Outgoing, Put { sender: id, offset, to, .. }: &Put) -> Result<(Flags, bool), Malformed> {
    let out_of_turn = Malformed::OutOfTurn { what: "a PUT request", id: id.0 };
    let on_device = transfer.buffer.is_on_device();
    let flag = if on_device { Flags::DEVICE_PUT } else { Flags::PUT };
    let one_run = transfer.buffer.convertor.contiguous().is_some();
    // One operation stores all blocks, unless a kernel packs them into one run.
    let packs = matches!(transfer.one_copy, OneCopy::Packs);
    if packs || (!one_run && to.blocks.is_none() && *offset != 0) {
        return if to.blocks.is_some() || !on_device {
            Err(out_of_turn)
        } else {
            Ok((flag | Flags::DEVICE_PACKED, true))
        };
    }
    if !one_run && transfer.buffer.convertor.strided().is_none() {
        return Err(out_of_turn);
    }
    let blocks = if !one_run || to.blocks.is_some() { Flags::DEVICE_STRIDED } else { Flags::empty() };
    Ok((flag | blocks, false))
}

/// Returns whether a GET by the peer costs less than a PUT from a buffer at `local` to the handle's memory.
pub(super) fn peer_copies(link: &Link, local: &Location, handle: &RemoteHandle, len: u64) -> bool {
    let by = |mover| link.endpoint.transfer_cost(mover, local, handle);
    by(Mover::Stores).exceeds(&by(Mover::PeerFetches), len)
}

/// Continues queued jobs. Returns how many pieces the links took.
pub(crate) fn advance(cx: &mut Context<'_>, channel: &mut Channel) -> usize {
    let mut pieces = 0;
    while let Some(&index) = channel.state.queues.puts.front() {
        match store_piece(cx, channel, index) {
            Ok(Some(Transfer::Busy)) => break,
            Ok(Some(Transfer::Done | Transfer::Started)) => pieces += 1,
            Ok(None) => {
                channel.state.queues.puts.pop_front();
                settle_job(cx, channel, index);
            }
            Err(broken) => {
                channel.links.broken = Some(broken);
                break;
            }
        }
    }
    pieces
}

/// Passes the job's next piece to its link. Returns `None` if there is no piece to pass now, or if the job failed.
fn store_piece(cx: &Context<'_>, channel: &mut Channel, index: usize) -> Result<Option<Transfer>, (usize, Error)> {
    let Channel { links: Links { active, operations, .. }, state: State { sends, queues, .. } } = channel;
    let Some(job) = queues.put_jobs.get_mut(index) else { return Ok(None) };
    let (Some(transfer), Some(link)) = (sends.get_mut(job.id), active.iter_mut().find(|link| link.serial == job.link))
    else {
        job.failed = true;
        return Ok(None);
    };
    if job.failed || job.next == job.len || job.outstanding >= cx.core.parameters.pml_pipeline_depth.max(1) {
        return Ok(None);
    }
    let form = match job.packed {
        true => Form::Packed,
        false if job.blocks.is_some() || transfer.buffer.convertor.contiguous().is_none() => Form::Blocks,
        false => Form::Run,
    };
    let limit = if job.by_device { link.capabilities().device_rdma_limit } else { link.capabilities().put_limit };
    let len = (job.len - job.next).min(form.most(limit).max(1));
    let order = transfer.buffer.order(&cx.core.devices);
    // A kernel must not wait for the stream. Without the blocks the job fails, and the receiver requests fragments.
    let waits = form == Form::Packed && !is_idle(&cx.core.devices, transfer.buffer.location(), order);
    let found = if waits { None } else { transfer.buffer.find(form, &cx.core.devices) };
    let local = transfer.buffer.local((form, &found), (job.offset + job.next, len), order);
    let Some(local) = local else {
        job.failed = true;
        return Ok(None);
    };
    let remote = Remote { handle: &job.handle, offset: job.next, blocks: job.blocks };
    let put = cx.peer.start(operations, Operation::Put(index), |token| {
        // SAFETY: the buffer stays valid and unwritten until the request completes, which waits for the operation.
        unsafe { link.endpoint.put(&local, &remote, token) }
    });
    match put {
        Ok(Transfer::Busy) => return Ok(Some(Transfer::Busy)),
        Ok(Transfer::Done) => {}
        Ok(Transfer::Started) => {
            job.outstanding += 1;
            transfer.busy += 1;
        }
        Err(Error::Unavailable { .. }) => {
            job.failed = true;
            return Ok(None);
        }
        Err(error) => return Err((link.btl, error)),
    }
    job.next += len;
    link.carried = true;
    Ok(put.ok())
}

/// Returns whether the wait for the default stream is over or not needed.
fn is_idle(devices: &Devices, at: &Location, order: Order) -> bool {
    order == Order::None || devices.ask_default_stream(at).unwrap_or(false)
}

/// Handles the end of a piece.
pub(crate) fn completed(cx: &mut Context<'_>, channel: &mut Channel, index: usize, result: Result<(), Error>) {
    let State { sends, queues, .. } = &mut channel.state;
    let Some(job) = queues.put_jobs.get_mut(index) else { return };
    job.outstanding -= 1;
    job.failed |= result.is_err();
    let again = !job.failed && job.next < job.len && !queues.puts.contains(&index);
    if let Some(transfer) = sends.get_mut(job.id) {
        transfer.busy -= 1;
        if result.is_ok() && job.by_device {
            cx.core.counters.device_direct.increment();
        }
    }
    if again {
        queues.puts.push_back(index);
    }
    settle_job(cx, channel, index);
    advance(cx, channel);
}

/// Ends a job without pieces under way, if it failed or its whole range is stored: sends the receiver a FIN.
fn settle_job(cx: &mut Context<'_>, channel: &mut Channel, index: usize) {
    let Channel { links, state: State { sends, queues, one_copy, page_locked, .. } } = channel;
    let Some(job) = queues.put_jobs.get(index) else { return };
    if job.outstanding != 0 || !(job.failed || job.next == job.len) {
        return;
    }
    let PutJob { id, receiver, offset, len, by_device, failed, .. } = queues.put_jobs.remove(index);
    queues.puts.retain(|&other| other != index);
    let result = if failed { Err(Abort::Transport) } else { Ok(()) };
    if let Some(transfer) = sends.get_mut(id) {
        if by_device && !transfer.buffer.is_on_device() {
            page_locked.moved(true, !failed);
        }
        // The receiver may request a range again that could not be stored. If the message has failed, its `Abort` must
        // not count this range as sent.
        if failed || transfer.failure.is_some() {
            transfer.note_refused(len);
        } else {
            transfer.note_settled(len);
            if transfer.buffer.is_on_device() {
                one_copy.succeeded();
            }
        }
        if transfer.failure.is_none() && !transfer.gone {
            links.send_control(&PutFin { receiver, offset, len, result });
        }
    }
    settle::send(cx, channel, id);
}
