//! Fetching from the sender's buffer.

use cableway_btl::{Error, Transfer};

use crate::completion::Done;
use crate::engine::Engine;
use crate::links::{Links, Operation, Peer};
use crate::send::token;
use crate::wire::Id;

impl Engine {
    /// Goes on with queued fetches; returns how many pieces were handed to links.
    pub(crate) fn pump_gets(&self, peer: &Peer, links: &mut Links, done: &mut Done) -> usize {
        let mut pieces = 0;
        while let Some(&id) = links.queues.gets.front() {
            match self.get_piece(peer, links, id) {
                Ok(Some(Transfer::Busy)) => break,
                Ok(Some(Transfer::Done | Transfer::Started)) => pieces += 1,
                Ok(None) => {
                    links.queues.gets.pop_front();
                    if let Some(fetch) = links.receives.get_mut(id).and_then(|transfer| transfer.fetch.as_mut()) {
                        fetch.queued = false;
                    }
                    links.settle_get(id, done);
                }
                Err((btl, error)) => {
                    links.broken = Some((btl, error));
                    break;
                }
            }
        }
        pieces
    }

    /// Hands the message's next piece to its link; none if there is no more to hand over now.
    fn get_piece(&self, peer: &Peer, links: &mut Links, id: Id) -> Result<Option<Transfer>, (usize, Error)> {
        let Links { active, receives, operations, .. } = links;
        let Some(transfer) = receives.get_mut(id) else { return Ok(None) };
        let Some(fetch) = &transfer.fetch else { return Ok(None) };
        let (offset, wanted) = (fetch.next, transfer.wanted);
        let deep = transfer.busy >= self.parameters.pml_pipeline_depth.max(1);
        if offset == wanted || deep || transfer.failure.is_some() {
            return Ok(None);
        }
        let Some(link) = active.iter_mut().find(|link| link.serial == fetch.link) else { return Ok(None) };
        let on_device = transfer.convertor.location().on_device();
        let limit = if on_device { link.capabilities().device_rdma_limit } else { link.capabilities().get_limit };
        let len = (wanted - offset).min(limit.max(1) as u64);
        let Some(region) = transfer.region(offset, len) else { return Ok(None) };
        let handle = fetch.handle;
        let operation = operations.insert(Operation::Get { id, offset, len });
        // SAFETY: the buffer is the transfer's until it is settled, which waits for the operation.
        let got = unsafe { link.endpoint.get(region, &handle, offset, token(peer, operation)) };
        if !matches!(got, Ok(Transfer::Started)) {
            operations.remove(operation);
        }
        let Some(fetch) = &mut transfer.fetch else { return Ok(None) };
        match got {
            Ok(Transfer::Busy) => return Ok(Some(Transfer::Busy)),
            Ok(Transfer::Done) => transfer.arrived += len,
            Ok(Transfer::Started) => transfer.busy += 1,
            Err(Error::Unavailable { .. }) => {
                // Nor would it be for the rest.
                fetch.refused.push((offset, wanted));
                fetch.next = wanted;
                return Ok(None);
            }
            Err(error) => return Err((link.btl, error)),
        }
        fetch.next += len;
        Ok(got.ok())
    }

    /// A piece is done.
    pub(crate) fn get_done(
        &self,
        peer: &Peer,
        links: &mut Links,
        (id, offset, len): (Id, u64, u64),
        result: Result<(), Error>,
        done: &mut Done,
    ) {
        let Some(transfer) = links.receives.get_mut(id) else { return };
        transfer.busy -= 1;
        match (result, &mut transfer.fetch) {
            (Ok(()), _) => {
                transfer.arrived += len;
                if transfer.convertor.location().on_device() {
                    self.counters.device_direct.increment();
                }
            }
            (Err(Error::Unavailable { .. }), Some(fetch)) => fetch.refused.push((offset, offset + len)),
            (Err(error), _) => {
                transfer.arrived += len;
                transfer.fail(error.into());
            }
        }
        let wanted = transfer.wanted;
        if let Some(fetch) = &mut transfer.fetch
            && !fetch.queued
            && fetch.next < wanted
        {
            fetch.queued = true;
            links.queues.gets.push_back(id);
        }
        links.settle_get(id, done);
        self.pump_gets(peer, links, done);
    }
}

impl Links {
    /// Ends a fetch of which nothing is under way any more: what was refused comes as fragments.
    fn settle_get(&mut self, id: Id, done: &mut Done) {
        let Some(transfer) = self.receives.get_mut(id) else { return };
        if transfer.busy == 0
            && !transfer.gone
            && let Some(fetch) = &mut transfer.fetch
        {
            if transfer.failure.is_some() {
                // Nothing more is fetched.
                transfer.arrived = transfer.wanted;
            } else if fetch.next == transfer.wanted && !fetch.refused.is_empty() {
                let refused = std::mem::take(&mut fetch.refused);
                self.ask_for_fragments(id, &refused);
                return;
            }
        }
        self.settle_receive(id, done);
    }
}
