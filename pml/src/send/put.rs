//! Storing into the receiver's buffer.

use cableway_btl::{Flags, Packed, RemoteHandle, Transfer};
use cableway_common_cuda::{Location, Order, Strided};

use super::answers::peer_copies;
use super::start::token;
use super::transfer::Phase;
use crate::completion::Done;
use crate::engine::Engine;
use crate::error::Abort;
use crate::links::{Links, Operation, Peer};
use crate::region::{self, Local};
use crate::wire::{BtlTag, Header, Id, Malformed};

/// A range that the receiver asked to have stored.
pub(crate) struct PutJob {
    pub(crate) id: Id,
    pub(crate) receiver: Id,
    /// The range in the message; the handle's memory begins with its first byte.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes of it that were handed to the link.
    pub(crate) next: u64,
    pub(crate) link: u32,
    pub(crate) handle: RemoteHandle,
    /// Where in the handle's memory the data belongs, if that is in blocks.
    pub(crate) blocks: Option<Strided>,
    /// A kernel packs it.
    pub(crate) packed: bool,
    pub(crate) outstanding: usize,
    pub(crate) failed: bool,
}

impl Engine {
    /// Goes on with queued jobs; returns how many pieces were handed to links.
    pub(crate) fn pump_puts(&self, peer: &Peer, links: &mut Links, done: &mut Done) -> usize {
        let mut pieces = 0;
        while let Some(&index) = links.queues.puts.front() {
            match self.put_piece(peer, links, index) {
                Ok(Some(Transfer::Busy)) => break,
                Ok(Some(Transfer::Done | Transfer::Started)) => pieces += 1,
                Ok(None) => {
                    links.queues.puts.pop_front();
                    self.settle_put(links, index, done);
                }
                Err((btl, error)) => {
                    links.broken = Some((btl, error));
                    break;
                }
            }
        }
        pieces
    }

    /// Hands the job's next piece to its link; none if there is no more to hand over now.
    fn put_piece(
        &self,
        peer: &Peer,
        links: &mut Links,
        index: usize,
    ) -> Result<Option<Transfer>, (usize, cableway_btl::Error)> {
        let Links { active, sends, operations, queues, .. } = links;
        let Some(job) = queues.put_jobs.get_mut(index) else { return Ok(None) };
        let (Some(transfer), Some(link)) =
            (sends.get_mut(job.id), active.iter_mut().find(|link| link.serial == job.link))
        else {
            job.failed = true;
            return Ok(None);
        };
        if job.failed || job.next == job.len || job.outstanding >= self.parameters.pml_pipeline_depth.max(1) {
            return Ok(None);
        }
        let on_device = transfer.convertor.location().on_device();
        let blocks = !job.packed && (job.blocks.is_some() || transfer.convertor.contiguous().is_none());
        let limit = if on_device { link.capabilities().device_rdma_limit } else { link.capabilities().put_limit };
        let limit = if job.packed { limit.min(region::MOST_PACKED) } else { limit };
        let len = if blocks { job.len } else { (job.len - job.next).min(limit.max(1) as u64) };
        let order = if on_device { transfer.order_of_copies(&self.devices) } else { Order::None };
        let position = job.offset + job.next;
        let local = match (job.packed, blocks) {
            // A kernel that waits for a stream cannot be told from one that finds no room.
            (true, _) if !self.is_idle(transfer.convertor.location(), order) => None,
            (true, _) => transfer.convertor.spread(&self.devices).map(Local::Spread),
            (false, true) => transfer.whole(order).map(|(region, ours)| Local::Blocks(region, ours)),
            (false, false) => transfer.region(position, len, order).map(Local::Run),
        };
        let Some(local) = local else {
            job.failed = true;
            return Ok(None);
        };
        let operation = operations.insert(Operation::Put(index));
        // SAFETY: the buffer stays valid and unwritten until the request completes, which waits for the operation.
        let put = unsafe {
            match &local {
                Local::Spread((user, spread)) => {
                    let (location, len, order) = (*transfer.convertor.location(), len as usize, Order::None);
                    let packed = Packed { user: *user, spread, position, len, location, order };
                    link.endpoint.put_packed(&packed, &job.handle, job.next, token(peer, operation))
                }
                Local::Blocks(region, ours) => {
                    let (run, to) = (Strided::run(region.len as u64), Strided::run(job.len));
                    let (ours, theirs) = (ours.as_ref().unwrap_or(&run), job.blocks.as_ref().unwrap_or(&to));
                    link.endpoint.put_strided((*region, ours), (&job.handle, theirs), len, token(peer, operation))
                }
                Local::Run(region) => link.endpoint.put(*region, &job.handle, job.next, token(peer, operation)),
            }
        };
        if !matches!(put, Ok(Transfer::Started)) {
            operations.remove(operation);
        }
        match put {
            Ok(Transfer::Busy) => return Ok(Some(Transfer::Busy)),
            Ok(Transfer::Done) => {}
            Ok(Transfer::Started) => {
                job.outstanding += 1;
                transfer.busy += 1;
            }
            Err(cableway_btl::Error::Unavailable { .. }) => {
                job.failed = true;
                return Ok(None);
            }
            Err(error) => return Err((link.btl, error)),
        }
        job.next += len;
        link.carried = true;
        Ok(put.ok())
    }

    /// Stores all of a device's message where the receiver exposes memory for it, if it is as simple as that: the data lies
    /// in one run, and one operation takes it. Else answers false, and nothing has happened.
    pub(crate) fn put_whole(
        &self,
        peer: &Peer,
        links: &mut Links,
        (id, receiver, len): (Id, Id, u64),
        (tag, ordinal, handle): (BtlTag, u8, &RemoteHandle),
        learn: bool,
        done: &mut Done,
    ) -> Result<bool, Malformed> {
        let Links { active, sends, operations, fetches, .. } = links;
        let (Some(transfer), [link]) = (sends.get_mut(id), active.as_mut_slice()) else { return Ok(false) };
        let location = *transfer.convertor.location();
        let able = link.capabilities();
        if !location.on_device()
            || len == 0
            || transfer.phase != Phase::Announced
            || transfer.failure.is_some()
            || (link.tag, link.ordinal) != (tag, ordinal)
            || !able.flags.contains(Flags::DEVICE_PUT)
            || len > able.device_rdma_limit as u64
        {
            return Ok(false);
        }
        let order = transfer.order_of_copies(&self.devices);
        let Some(region) = transfer.region(0, len, order) else { return Ok(false) };
        transfer.ask("a request to put", (id, receiver), (0, len), len)?;
        let operation = operations.insert(Operation::PutWhole { id, receiver, len });
        // SAFETY: the buffer stays valid and unwritten until the request completes, which waits for the operation.
        let put = unsafe { link.endpoint.put(region, handle, 0, token(peer, operation)) };
        if learn && !matches!(put, Ok(Transfer::Busy)) {
            fetches.let_peer_copy(peer_copies(link, &location, handle, len));
        }
        match put {
            Ok(Transfer::Started) => {
                link.carried = true;
                transfer.busy += 1;
                return Ok(true);
            }
            Ok(Transfer::Done) => {
                operations.remove(operation);
                link.carried = true;
                transfer.busy += 1;
                self.put_whole_done(peer, links, (id, receiver, len), &Ok(()), done);
                return Ok(true);
            }
            // Not to be tried again: to have met the memory twice means something to the link.
            Err(error @ cableway_btl::Error::Unavailable { .. }) => {
                operations.remove(operation);
                transfer.busy += 1;
                self.put_whole_done(peer, links, (id, receiver, len), &Err(error), done);
                return Ok(true);
            }
            Ok(Transfer::Busy) | Err(_) => {}
        }
        // The long way waits for the link, or finds its error again.
        operations.remove(operation);
        transfer.unask();
        Ok(false)
    }

    /// All of a message is stored, or could not be: tells the receiver.
    pub(crate) fn put_whole_done(
        &self,
        peer: &Peer,
        links: &mut Links,
        (id, receiver, len): (Id, Id, u64),
        result: &Result<(), cableway_btl::Error>,
        done: &mut Done,
    ) {
        let Some(transfer) = links.sends.get_mut(id) else { return };
        transfer.busy -= 1;
        let stored = result.is_ok();
        peer.counters.device_direct.add_exclusively(u64::from(stored));
        let tell = transfer.failure.is_none() && !transfer.gone;
        // As of a job's pieces.
        if stored && transfer.failure.is_none() {
            transfer.settled += len;
            links.fetches.fetched();
        } else {
            transfer.asked -= len;
        }
        match stored {
            true if tell => links.tell_stored(receiver, len),
            false if tell => {
                links.control(&Header::Stored { receiver, offset: 0, len, result: Err(Abort::Transport) });
            }
            _ => {}
        }
        links.settle_send(id, done);
    }

    /// Whether nothing is to be waited for, or it is over.
    fn is_idle(&self, at: &Location, order: Order) -> bool {
        order == Order::None || self.devices.ask_default_stream(at).unwrap_or(false)
    }

    /// A piece is done.
    pub(crate) fn put_done(
        &self,
        peer: &Peer,
        links: &mut Links,
        index: usize,
        result: Result<(), cableway_btl::Error>,
        done: &mut Done,
    ) {
        let Some(job) = links.queues.put_jobs.get_mut(index) else { return };
        job.outstanding -= 1;
        job.failed |= result.is_err();
        let (id, stored) = (job.id, result.is_ok());
        let queue = !job.failed && job.next < job.len && !links.queues.puts.contains(&index);
        if let Some(transfer) = links.sends.get_mut(id) {
            transfer.busy -= 1;
            if stored && transfer.convertor.location().on_device() {
                self.counters.device_direct.increment();
            }
        }
        if queue {
            links.queues.puts.push_back(index);
        }
        self.settle_put(links, index, done);
        self.pump_puts(peer, links, done);
    }

    /// Tells the receiver if the whole range is stored, or cannot be.
    fn settle_put(&self, links: &mut Links, index: usize, done: &mut Done) {
        let Some(job) = links.queues.put_jobs.get(index) else { return };
        if job.outstanding != 0 || !(job.failed || job.next == job.len) {
            return;
        }
        let job = links.queues.put_jobs.remove(index);
        links.queues.puts.retain(|&other| other != index);
        let result = if job.failed { Err(Abort::Transport) } else { Ok(()) };
        if let Some(transfer) = links.sends.get_mut(job.id) {
            // What could not be stored may be asked for again; and of what was, once the message has failed, the receiver
            // hears nothing but how much there was without it.
            if job.failed || transfer.failure.is_some() {
                transfer.asked -= job.len
            } else {
                transfer.settled += job.len;
                if transfer.convertor.location().on_device() {
                    links.fetches.fetched();
                }
            }
            if transfer.failure.is_none() && !transfer.gone {
                let PutJob { receiver, offset, len, .. } = job;
                links.control(&Header::Stored { receiver, offset, len, result });
            }
        }
        links.settle_send(job.id, done);
    }
}
