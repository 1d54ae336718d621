//! What receivers say to senders.

use cableway_btl::{Flags, Mover, RemoteHandle};
use cableway_common_cuda::Location;

use super::put::PutJob;
use super::transfer::{Phase, SendTransfer};
use crate::completion::Done;
use crate::engine::Engine;
use crate::error::{Abort, Error};
use crate::links::{Link, Links, Peer};
use crate::wire::{Ack, Exposed, Id, Malformed, Put, PutsReader, WholePut};

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
            // What is in blocks is stored at once, but for what is packed into one run.
            let packed = transfer.packs || (!one_run && to.blocks.is_none() && offset != 0);
            if packed {
                if to.blocks.is_some() || !on_device {
                    return Err(out_of_turn);
                }
                flag |= Flags::DEVICE_PACKED;
            } else if !one_run && transfer.convertor.strided().is_none() {
                return Err(out_of_turn);
            } else if !one_run || to.blocks.is_some() {
                flag |= Flags::DEVICE_STRIDED;
            }
            let link = links.named(to.btl, to.ordinal, |link| link.capabilities().flags.contains(flag));
            if on_device && let Some(link) = links.active.iter().find(|other| Some(other.serial) == link) {
                let peer_copies = peer_copies(link, &location, &to.handle, len);
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
                packed,
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

    /// The receiver exposes buffers for all of several messages.
    pub(crate) fn asked_for_puts(
        &self,
        peer: &Peer,
        links: &mut Links,
        puts: &mut PutsReader<'_>,
        done: &mut Done,
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
            match self.put_whole(peer, links, (sender, receiver, len), (btl, ordinal, handle), first, done) {
                Ok(true) => (count, bytes) = (count + 1, bytes + len),
                Ok(false) => {
                    let to = Exposed { btl, ordinal, handle: *handle, blocks: None };
                    let put = Put { sender, receiver, offset: 0, len, total: len, to };
                    outcome = self.asked_to_put(peer, links, &put, done);
                }
                Err(malformed) => outcome = Err(malformed),
            }
            if outcome.is_err() {
                break;
            }
            first = false;
        }
        self.counters.protocol_put.add(count);
        self.counters.bytes_put.add(bytes);
        outcome
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

/// Whether it costs less if the peer copies between a buffer at `local` and what the handle names.
pub(super) fn peer_copies(link: &Link, local: &Location, handle: &RemoteHandle, len: u64) -> bool {
    let by = |mover| link.endpoint.transfer_cost(mover, local, handle);
    by(Mover::Stores).exceeds(&by(Mover::PeerFetches), len)
}

/// The transfer that a receiver asks data of, if its request makes sense.
fn asked<'l>(
    links: &'l mut Links,
    id: Id,
    what: &'static str,
    receiver: Id,
    range: (u64, u64),
    total: u64,
) -> Result<&'l mut SendTransfer, Malformed> {
    let transfer = links.sends.get_mut(id).ok_or(Malformed::NoTransfer { what, id: id.0 })?;
    transfer.ask(what, (id, receiver), range, total)?;
    Ok(transfer)
}

impl SendTransfer {
    /// Counts a range that the receiver asks for, if its request makes sense.
    pub(super) fn ask(
        &mut self,
        what: &'static str,
        (id, receiver): (Id, Id),
        (from, to): (u64, u64),
        total: u64,
    ) -> Result<(), Malformed> {
        let first = self.phase == Phase::Announced;
        let same = self.phase == Phase::Moving && self.receiver == Some(receiver) && self.total == total;
        if !(first || same) || self.finished {
            return Err(Malformed::OutOfTurn { what, id: id.0 });
        }
        let asked = self.asked.saturating_add(to - from);
        if to > self.len || total > self.len || asked > total {
            return Err(Malformed::Range { from, to, total: self.len });
        }
        self.asked = asked;
        self.phase = Phase::Moving;
        self.receiver = Some(receiver);
        self.total = total;
        Ok(())
    }

    /// Takes the first such request back.
    pub(super) fn unask(&mut self) {
        (self.phase, self.receiver, self.total, self.asked) = (Phase::Announced, None, 0, 0);
    }
}
