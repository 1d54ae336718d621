//! Fetching from the sender's buffer.

use cableway_btl::{Error, Packed, Transfer};
use cableway_common_cuda::{Order, Strided};

use crate::completion::Done;
use crate::engine::Engine;
use crate::links::{Links, Operation, Peer};
use crate::region::{self, Local};
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
        let attentive = links.offers.attentive(peer);
        let Some(transfer) = links.receives.get_mut(id) else { return Ok(None) };
        let deep = transfer.busy >= self.parameters.pml_pipeline_depth.max(1);
        let Some(fetch) = &mut transfer.fetch else { return Ok(None) };
        if fetch.ranges.is_empty() || deep || transfer.failure.is_some() {
            return Ok(None);
        }
        if fetch.offering {
            if attentive && links.offer_range(id, self.parameters.pml_offer_window.max(1) as u64) {
                return Ok(Some(Transfer::Started));
            }
            if attentive && !links.offers.is_empty() {
                return Ok(Some(Transfer::Busy));
            }
            self.counters.protocol_get.increment();
            let left = links.receives.get_mut(id).and_then(|transfer| transfer.fetch.as_ref());
            let left = left.map_or(0, |fetch| fetch.ranges.iter().map(|(from, to)| to - from).sum());
            self.counters.bytes_get.add(left);
        }
        self.fetch_piece(peer, links, id)
    }

    /// The same, where it is not offered.
    fn fetch_piece(&self, peer: &Peer, links: &mut Links, id: Id) -> Result<Option<Transfer>, (usize, Error)> {
        let Links { active, receives, operations, .. } = links;
        let Some(transfer) = receives.get_mut(id) else { return Ok(None) };
        let Some(fetch) = &mut transfer.fetch else { return Ok(None) };
        fetch.offering = false;
        let Some(link) = active.iter_mut().find(|link| link.serial == fetch.from.link) else { return Ok(None) };
        let on_device = transfer.convertor.location().on_device();
        let limit = if on_device { link.capabilities().device_rdma_limit } else { link.capabilities().get_limit };
        let blocks = fetch.from.blocks.is_some() || (on_device && transfer.convertor.contiguous().is_none());
        let packed = blocks && fetch.from.blocks.is_none() && transfer.convertor.strided().is_none();
        let most = match (packed, blocks) {
            (true, _) => limit.min(region::MOST_PACKED) as u64,
            (false, true) => u64::MAX,
            (false, false) => limit as u64,
        };
        let Some((offset, end)) = fetch.take(most) else { return Ok(None) };
        let (from, len) = (fetch.from, end - offset);
        let order = if on_device { transfer.order_of_copies(&self.devices) } else { Order::None };
        let local = match (packed, blocks) {
            (true, _) => transfer.convertor.spread(&self.devices).map(Local::Spread),
            (false, true) => transfer.whole(order).map(|(region, ours)| Local::Blocks(region, ours)),
            (false, false) => transfer.region(offset, len, order).map(Local::Run),
        };
        let Some(local) = local else {
            // Kernels are not to be had any more. Nor would they be for the rest.
            if let Some(fetch) = &mut transfer.fetch {
                fetch.refuse((offset, end));
            }
            return Ok(None);
        };
        // The sender will not have sent all itself.
        transfer.finish = true;
        let operation = operations.insert(Operation::Get { id, offset, len });
        // SAFETY: the buffer is the transfer's until it is settled, which waits for the operation.
        let got = unsafe {
            match &local {
                Local::Spread((user, spread)) => {
                    // The default stream was waited for before.
                    let (location, order) = (*transfer.convertor.location(), Order::None);
                    let packed = Packed { user: *user, spread, position: offset, len: len as usize, location, order };
                    link.endpoint.get_packed(&packed, &from.handle, offset, token(peer, operation))
                }
                Local::Blocks(region, ours) => {
                    let (run, whole) = (Strided::run(region.len as u64), Strided::run(len));
                    let (ours, theirs) = (ours.as_ref().unwrap_or(&run), from.blocks.as_ref().unwrap_or(&whole));
                    link.endpoint.get_strided((*region, ours), (&from.handle, theirs), len, token(peer, operation))
                }
                Local::Run(region) => link.endpoint.get(*region, &from.handle, offset, token(peer, operation)),
            }
        };
        if !matches!(got, Ok(Transfer::Started)) {
            operations.remove(operation);
        }
        let Some(fetch) = &mut transfer.fetch else { return Ok(None) };
        match got {
            Ok(Transfer::Busy) => fetch.ranges.push((offset, end)),
            Ok(Transfer::Done) => {
                transfer.arrived += len;
                fetch.fetched += len;
            }
            Ok(Transfer::Started) => transfer.busy += 1,
            Err(Error::Unavailable { .. }) => {
                // Nor would it be for the rest.
                fetch.refuse((offset, end));
                return Ok(None);
            }
            Err(error) => {
                fetch.ranges.push((offset, end));
                return Err((link.btl, error));
            }
        }
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
            (Ok(()), fetch) => {
                transfer.arrived += len;
                if let Some(fetch) = fetch {
                    fetch.fetched += len;
                }
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
        if let Some(fetch) = &mut transfer.fetch
            && !fetch.queued
            && !fetch.ranges.is_empty()
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
    pub(crate) fn settle_get(&mut self, id: Id, done: &mut Done) {
        if self.receives.get_mut(id).is_some_and(|transfer| transfer.failure.is_some()) {
            self.take_back(Some(id));
        }
        let on_offer = self.is_offered(id);
        let Some(transfer) = self.receives.get_mut(id) else { return };
        if transfer.busy == 0
            && !transfer.gone
            && let Some(fetch) = &mut transfer.fetch
        {
            if transfer.failure.is_some() {
                // Nothing more is fetched.
                transfer.give_up_rest();
            } else if fetch.ranges.is_empty() && !on_offer && !fetch.refused.is_empty() {
                let refused = std::mem::take(&mut fetch.refused);
                self.ask_for_fragments(id, &refused);
                return;
            }
        }
        self.settle_receive(id, done);
    }
}
