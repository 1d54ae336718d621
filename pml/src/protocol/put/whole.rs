//! The sender: stores a whole message with one operation.

use cableway_btl::{Error, Flags, Remote, RemoteHandle, Transfer};

use super::header::{Put, PutFin};
use super::sender::{self, peer_copies};
use crate::error::Abort;
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
    let (btl, ordinal) = puts.via();
    let mut first = true;
    let (mut count, mut bytes) = (0, 0);
    let mut outcome = Ok(());
    while let Some(request) = puts.next_put() {
        let WholePut { sender, receiver, len, handle } = match request {
            Ok(request) => request,
            Err(malformed) => {
                outcome = Err(malformed);
                break;
            }
        };
        match store(cx, channel, (sender, receiver, len), (btl, ordinal, handle), first) {
            Ok(true) => (count, bytes) = (count + 1, bytes + len),
            Ok(false) => {
                let to = Exposed { btl, ordinal, handle: *handle, blocks: None };
                let put = Put { sender, receiver, offset: 0, len, total: len, to };
                outcome = sender::asked(cx, channel, &put);
            }
            Err(malformed) => outcome = Err(malformed),
        }
        if outcome.is_err() {
            break;
        }
        first = false;
    }
    cx.core.counters.protocol_put.add(count);
    cx.core.counters.bytes_put.add(bytes);
    outcome
}

/// Stores a whole device message in the memory that the receiver exposes, if the data is one run and one operation
/// takes it. Otherwise returns false, without any effect.
pub(crate) fn store(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (id, receiver, len): (Id, Id, u64),
    (tag, ordinal, handle): (BtlTag, u8, &RemoteHandle),
    learn: bool,
) -> Result<bool, Malformed> {
    let Channel { links: Links { active, operations, .. }, state: State { sends, one_copy, .. } } = channel;
    let (Some(transfer), [link]) = (sends.get_mut(id), active.as_mut_slice()) else { return Ok(false) };
    let location = *transfer.convertor.location();
    let able = link.capabilities();
    if !location.on_device()
        || len == 0
        || !transfer.is_announced()
        || transfer.failure.is_some()
        || (link.tag, link.ordinal) != (tag, ordinal)
        || !able.flags.contains(Flags::DEVICE_PUT)
        || len > able.device_rdma_limit as u64
    {
        return Ok(false);
    }
    let order = transfer.order(&cx.core.devices);
    let Some(region) = transfer.region(0, len, order) else { return Ok(false) };
    transfer.ask("a PUT request", (id, receiver), (0, len), len)?;
    let operation = operations.insert(Operation::PutWhole { id, receiver, len });
    // SAFETY: the buffer stays valid and unwritten until the request completes, which waits for the operation.
    let put = unsafe { link.endpoint.put(&region.into(), &Remote::at(handle, 0), cx.peer.token(operation)) };
    if learn && !matches!(put, Ok(Transfer::Busy)) {
        one_copy.let_peer_copy(peer_copies(link, &location, handle, len));
    }
    if matches!(put, Ok(Transfer::Started)) {
        link.carried = true;
        transfer.busy += 1;
        return Ok(true);
    }
    operations.remove(operation);
    let result = match put {
        Ok(Transfer::Done) => {
            link.carried = true;
            Ok(())
        }
        // Do not retry: the link counts how often it meets the memory.
        Err(error @ Error::Unavailable { .. }) => Err(error),
        // The job waits for the link, or meets the link's error again.
        Ok(_) | Err(_) => {
            transfer.stage = Stage::Announced;
            return Ok(false);
        }
    };
    transfer.busy += 1;
    completed(cx, channel, (id, receiver, len), &result);
    Ok(true)
}

/// Handles the end of the operation. Sends the receiver a FIN.
pub(crate) fn completed(
    cx: &mut Context<'_>,
    channel: &mut Channel,
    (id, receiver, len): (Id, Id, u64),
    result: &Result<(), Error>,
) {
    let Channel { links, state: State { sends, one_copy, .. } } = channel;
    let Some(transfer) = sends.get_mut(id) else { return };
    transfer.busy -= 1;
    let stored = result.is_ok();
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
