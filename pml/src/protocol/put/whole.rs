//! The sender: stores a whole message with one operation.

use cableway_btl::{Error, Flags, Remote, Transfer};

use super::header::{Put, PutFin};
use super::sender::{self, peer_copies};
use crate::abort::Abort;
use crate::protocol::context::{Context, Links, Operation};
use crate::protocol::settle;
use crate::protocol::transfer::{Channel, Stage, State};
use crate::wire::{BtlTag, Exposed, Id, Malformed, PutsReader, WholePut};

/// Handles requests for PUTs of several whole messages.
pub(crate) fn asked_for_several(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    puts: &mut PutsReader<'_>,
) -> Result<(), Malformed> {
    let via = puts.via();
    let (mut first, mut count, mut bytes) = (true, 0, 0);
    let mut outcome = Ok(());
    while let Some(request) = puts.next_put().filter(|_| outcome.is_ok()) {
        outcome = request.and_then(|put| {
            if store(cx, channel, &put, via, first)? {
                (count, bytes) = (count + 1, bytes + put.len);
                return Ok(());
            }
            let WholePut { sender, receiver, len, handle } = put;
            let to = Exposed { btl: via.0, ordinal: via.1, handle: *handle, blocks: None };
            sender::asked(cx, channel, &Put { sender, receiver, offset: 0, len, total: len, to, offer: None })
        });
        first = false;
    }
    cx.core.counters.protocol_put.add(count);
    cx.core.counters.bytes_put.add(bytes);
    outcome
}

/// Stores a whole device message in the memory that the receiver exposes, if the data is one run and one operation
/// takes it. Otherwise returns false, without any effect.
fn store(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    &WholePut { sender: id, receiver, len, handle }: &WholePut<'_>,
    via: (BtlTag, u8),
    learn: bool,
) -> Result<bool, Malformed> {
    let Channel { links: Links { active, operations, .. }, state: State { sends, one_copy, page_locked, .. } } =
        channel;
    let (Some(transfer), [link]) = (sends.get_mut(id), active.as_mut_slice()) else { return Ok(false) };
    let location = *transfer.buffer.location();
    let able = link.capabilities();
    if !location.on_device()
        || len == 0
        || !transfer.is_announced()
        || transfer.failure.is_some()
        || (link.tag, link.ordinal) != via
        || !able.flags.contains(Flags::DEVICE_PUT)
        || len > able.device_rdma_limit as u64
    {
        return Ok(false);
    }
    let order = transfer.buffer.order(&cx.core.devices);
    let Some(region) = transfer.buffer.region(0, len, order) else { return Ok(false) };
    transfer.ask("a PUT request", (id, receiver), (0, len), len)?;
    let put = cx.peer.start(operations, Operation::PutWhole { id, receiver, len }, |token| {
        // SAFETY: the buffer stays valid and unwritten until the request completes, which waits for the operation.
        unsafe { link.endpoint.put(&region.into(), &Remote::at(handle, 0), token) }
    });
    if learn && !matches!(put, Ok(Transfer::Busy)) {
        one_copy.let_peer_copy(peer_copies(link, &location, handle, len));
        page_locked.note_peer_fetches(false);
    }
    match put {
        Ok(Transfer::Started | Transfer::Done) => link.carried = true,
        // Do not retry: the link counts how often it meets the memory.
        Err(Error::Unavailable { .. }) => {}
        // The job waits for the link, or meets the link's error again.
        Ok(Transfer::Busy) | Err(_) => {
            transfer.stage = Stage::Announced;
            return Ok(false);
        }
    }
    transfer.busy += 1;
    if !matches!(put, Ok(Transfer::Started)) {
        completed(cx, channel, (id, receiver, len), put.is_ok());
    }
    Ok(true)
}

/// Handles the end of the operation. Sends the receiver a FIN.
pub(crate) fn completed(cx: &mut Context<'_>, channel: &mut Channel, (id, receiver, len): (Id, Id, u64), stored: bool) {
    let Channel { links, state: State { sends, one_copy, .. } } = channel;
    let Some(transfer) = sends.get_mut(id) else { return };
    transfer.busy -= 1;
    cx.peer.counters.device_direct.add_exclusively(u64::from(stored));
    // As at the end of a job.
    if stored && transfer.failure.is_none() {
        transfer.note_settled(len);
        one_copy.succeeded();
    } else {
        transfer.note_refused(len);
    }
    if transfer.failure.is_none() && !transfer.gone {
        match stored {
            true => links.send_put_fin(receiver, len),
            false => {
                links.send_control(&PutFin { receiver, offset: 0, len, result: Err(Abort::Transport) });
            }
        }
    }
    settle::send(cx, channel, id);
}
