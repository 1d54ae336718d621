//! What receivers say to senders.

use cableway_btl::{Flags, Mover};

use super::put::PutJob;
use super::transfer::{Phase, SendTransfer};
use crate::completion::Done;
use crate::engine::Engine;
use crate::error::{Abort, Error};
use crate::links::{Links, Peer};
use crate::wire::{Ack, Id, Malformed, Put};

impl Engine {
    /// The receiver asks for a range as fragments.
    pub(crate) fn acknowledged(
        &self,
        peer: &Peer,
        links: &mut Links,
        ack: &Ack,
        done: &mut Done,
    ) -> Result<(), Malformed> {
        let Ack { sender: id, receiver, from, to, total, to_device, offer } = *ack;
        if let Some(offer) = offer {
            // What a device would have to copy first is left to the receiver, as is what it has taken back.
            let on_host = links.sends.get_mut(id).is_some_and(|sent| !sent.convertor.location().on_device());
            if !on_host || !links.active.iter_mut().any(|link| link.endpoint.claim(offer)) {
                return Ok(());
            }
        }
        let transfer = asked(links, id, "an acknowledgement", receiver, (from, to), total)?;
        transfer.to_device |= to_device;
        let one_copy = transfer.registration.is_some() || transfer.stores;
        let missed = one_copy && offer.is_none() && transfer.convertor.location().on_device();
        if offer.is_none() {
            // What the receiver asks for as fragments it does not fetch.
            transfer.registration = None;
            transfer.stores = false;
        }
        if transfer.failure.is_none() && from != to {
            transfer.ranges.push_back((from, to));
            self.counters.protocol_fragments.increment();
            self.counters.bytes_fragments.add(to - from);
        }
        if missed {
            links.fetches.missed();
        }
        links.settle_send(id, done);
        Self::queue_stream(links, id);
        self.pump_streams(peer, links, done);
        Ok(())
    }

    /// The receiver exposes its buffer for a range.
    pub(crate) fn asked_to_put(
        &self,
        peer: &Peer,
        links: &mut Links,
        put: &Put,
        done: &mut Done,
    ) -> Result<(), Malformed> {
        let Put { sender: id, receiver, offset, len, total, to } = *put;
        let out_of_turn = Malformed::OutOfTurn { what: "a request to put", id: id.0 };
        let transfer = asked(links, id, "a request to put", receiver, (offset, offset + len), total)?;
        if transfer.failure.is_none() {
            let location = *transfer.convertor.location();
            let on_device = location.on_device();
            let mut flag = if on_device { Flags::DEVICE_PUT } else { Flags::PUT };
            let one_run = transfer.convertor.contiguous().is_some();
            // What is in blocks is stored at once.
            if !one_run && (transfer.convertor.strided().is_none() || offset != 0) {
                return Err(out_of_turn);
            }
            if !one_run || to.blocks.is_some() {
                flag |= Flags::DEVICE_STRIDED;
            }
            let link = links.named(to.btl, to.ordinal, |link| link.capabilities().flags.contains(flag));
            if on_device && let Some(link) = links.active.iter().find(|other| Some(other.serial) == link) {
                let by = |mover| link.endpoint.transfer_cost(mover, &location, &to.handle).of(len);
                let peer_copies = by(Mover::Stores) > by(Mover::PeerFetches);
                links.fetches.let_peer_copy(peer_copies);
            }
            // Without the link the job fails at once, and the receiver asks for fragments instead.
            let job = PutJob {
                id,
                receiver,
                offset,
                len,
                next: 0,
                link: link.unwrap_or(u32::MAX),
                handle: to.handle,
                blocks: to.blocks,
                outstanding: 0,
                failed: link.is_none(),
            };
            let index = links.queues.put_jobs.insert(job);
            links.queues.puts.push_back(index);
            self.counters.protocol_put.increment();
            self.counters.bytes_put.add(len);
        }
        links.settle_send(id, done);
        self.pump_puts(peer, links, done);
        Ok(())
    }

    /// The receiver has all that it wants, or gave up.
    pub(crate) fn finished(
        &self,
        peer: &Peer,
        links: &mut Links,
        id: Id,
        result: Result<(), Abort>,
        done: &mut Done,
    ) -> Result<(), Malformed> {
        let Some(transfer) = links.sends.get_mut(id) else {
            return Err(Malformed::NoTransfer { what: "the end of a message", id: id.0 });
        };
        if matches!(transfer.phase, Phase::Starting(_) | Phase::Leaving) || transfer.finished {
            return Err(Malformed::OutOfTurn { what: "the end of a message", id: id.0 });
        }
        transfer.finished = true;
        let fetched = transfer.registration.take().is_some() && result.is_ok();
        if let Err(reason) = result {
            transfer.fail(Error::PeerGaveUp { peer: peer.rank, len: transfer.len, reason });
        }
        if fetched {
            links.fetches.fetched();
        }
        links.settle_send(id, done);
        Ok(())
    }
}

/// The transfer that a receiver asks data of, if its request makes sense.
fn asked<'l>(
    links: &'l mut Links,
    id: Id,
    what: &'static str,
    receiver: Id,
    (from, to): (u64, u64),
    total: u64,
) -> Result<&'l mut SendTransfer, Malformed> {
    let transfer = links.sends.get_mut(id).ok_or(Malformed::NoTransfer { what, id: id.0 })?;
    let first = transfer.phase == Phase::Announced;
    let same = transfer.phase == Phase::Moving && transfer.receiver == Some(receiver) && transfer.total == total;
    if !(first || same) || transfer.finished {
        return Err(Malformed::OutOfTurn { what, id: id.0 });
    }
    let asked = transfer.asked + (to - from);
    if to > transfer.len || total > transfer.len || asked > total {
        return Err(Malformed::Range { from, to, total: transfer.len });
    }
    transfer.asked = asked;
    transfer.phase = Phase::Moving;
    transfer.receiver = Some(receiver);
    transfer.total = total;
    Ok(transfer)
}
