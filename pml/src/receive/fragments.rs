//! Data that senders send or store.

use cableway_btl::{Received, Region};
use cableway_common_cuda::Direction;

use super::ReceiveTransfer;
use super::deliver::Held;
use crate::batches::Plain;
use crate::completion::Done;
use crate::copies::{Copying, Then};
use crate::engine::Engine;
use crate::error::{Abort, Error};
use crate::links::{Links, Peer};
use crate::wire::{Id, Malformed};

impl Engine {
    /// A fragment for `offset` arrived.
    pub(crate) fn fragment(
        &self,
        peer: &Peer,
        links: &mut Links,
        (id, offset): (Id, u64),
        message: &Received<'_>,
        header_len: usize,
        done: &mut Done,
    ) -> Result<(), Malformed> {
        let payload = message.bytes().skip(header_len);
        let len = payload.len() as u64;
        if !links.offer_was_claimed(id, offset, len) {
            return Err(Malformed::OutOfTurn { what: "a fragment", id: id.0 });
        }
        let transfer = awaiting(links, id, "a fragment", (offset, len))?;
        transfer.awaited -= len;
        transfer.convertor.set_position(offset);
        let on_device = transfer.convertor.location().on_device();
        if transfer.failure.is_some() {
            transfer.arrived += len;
        } else if let Some(held) = on_device.then(|| self.hold(message, header_len)).flatten() {
            self.copy_in(peer, transfer, id, (offset, len), held);
        } else {
            // SAFETY: the payload is readable and no part of a user's buffer.
            if let Err(error) = unsafe { transfer.convertor.unpack(payload.as_ptr(), payload.len()) } {
                transfer.fail(Error::of_copy(error, &transfer.convertor));
            }
            transfer.arrived += len;
        }
        // Of a message that has failed meanwhile, what was not asked for again is given up.
        if transfer.failure.is_some() && transfer.give_up_pieces() {
            transfer.finish = true;
        }
        links.ask_for_refused(id);
        links.settle_receive(id, done);
        // There may be room for more offers.
        self.pump_gets(peer, links, done);
        Ok(())
    }

    /// Has the device copy a fragment's data to where it belongs. The range lies within what is wanted.
    fn copy_in(&self, peer: &Peer, transfer: &mut ReceiveTransfer, id: Id, (offset, len): (u64, u64), held: Held) {
        let order = transfer.next_order(&self.devices);
        let Held { address: from, source } = held;
        let then = |source| Then::Arrived { peer: peer.rank, id, bytes: len, source };
        if let Some(Region { address: to, location: at, .. }) = transfer.region(offset, len, order) {
            transfer.busy += 1;
            let (len, direction, page_locked) = (len as usize, Direction::HostToDevice, source.page_locked());
            let copy = Plain { to, from, len, direction, at, order, page_locked, then: then(source) };
            // SAFETY: the source keeps the bytes readable; the buffer is the transfer's as long as it is busy.
            return unsafe { self.gather_copy(copy) };
        }
        // SAFETY: the source keeps the bytes readable and goes where the completion goes.
        match unsafe { transfer.convertor.start_unpack(from, len as usize, order) } {
            Ok((_, completion)) => {
                transfer.busy += 1;
                self.start_copy(Copying { completion, then: then(source), bytes: len });
            }
            Err(error) => {
                transfer.arrived += len;
                transfer.fail(Error::of_copy(error, &transfer.convertor));
            }
        }
    }

    /// The sender has stored a range, or could not.
    pub(crate) fn stored(
        &self,
        peer: &Peer,
        links: &mut Links,
        id: Id,
        (offset, len): (u64, u64),
        result: Result<(), Abort>,
        done: &mut Done,
    ) -> Result<(), Malformed> {
        let transfer = awaiting(links, id, "a report of a store", (offset, len))?;
        transfer.awaited -= len;
        if self.piece_stored(peer, links, id, (offset, len), result.is_ok()) {
            links.settle_receive(id, done);
            return Ok(());
        }
        let Some(transfer) = links.receives.get_mut(id) else { return Ok(()) };
        match result {
            Ok(()) => {
                transfer.arrived += len;
                let whole = offset == 0 && len == transfer.wanted;
                if whole && transfer.claimed.is_none() && transfer.convertor.location().on_device() {
                    links.note_stored_whole(peer);
                }
            }
            Err(_) => {
                transfer.asked -= len;
                links.ask_for_fragments(id, &[(offset, offset + len)]);
            }
        }
        links.settle_receive(id, done);
        Ok(())
    }

    /// The sender gives up; `sent` bytes of what it was asked for have left all the same.
    pub(crate) fn aborted(
        &self,
        peer: &Peer,
        links: &mut Links,
        (id, sent): (Id, u64),
        reason: Abort,
        done: &mut Done,
    ) -> Result<(), Malformed> {
        let what = "the end of a message";
        links.take_back(Some(id));
        let transfer = links.receives.get_mut(id).ok_or(Malformed::NoTransfer { what, id: id.0 })?;
        // Of what was sent, some may still be on other links.
        let coming = sent.checked_sub(transfer.asked - transfer.awaited).filter(|&coming| coming <= transfer.awaited);
        let coming = coming.ok_or(Malformed::OutOfTurn { what, id: id.0 })?;
        transfer.arrived += transfer.awaited - coming;
        let dropped = std::mem::replace(&mut transfer.awaited, coming) - coming;
        transfer.give_up_rest();
        transfer.abandon_pieces();
        transfer.fail(Error::PeerGaveUp { peer: peer.rank, len: transfer.status.len, reason });
        transfer.finish = false;
        links.offers.forget(dropped);
        links.settle_receive(id, done);
        Ok(())
    }
}

/// The transfer that a range was asked for, if it was.
fn awaiting<'l>(
    links: &'l mut Links,
    id: Id,
    what: &'static str,
    (offset, len): (u64, u64),
) -> Result<&'l mut ReceiveTransfer, Malformed> {
    let transfer = links.receives.get_mut(id).ok_or(Malformed::NoTransfer { what, id: id.0 })?;
    let to = offset.saturating_add(len);
    if to > transfer.wanted {
        return Err(Malformed::Range { from: offset, to, total: transfer.wanted });
    }
    if len > transfer.awaited {
        return Err(Malformed::OutOfTurn { what, id: id.0 });
    }
    Ok(transfer)
}
