//! The answer to an announced message.

use std::time::Duration;

use cableway_btl::{Access, Flags, Mover, Registration};
use cableway_common_cuda::{DeviceError, Order};

use super::pieces::Pieces;
use super::transfer::{ReceiveTransfer, Source, Way};
use crate::completion::{Active, Done};
use crate::copies::{Copying, Then};
use crate::engine::Engine;
use crate::kept::Offer;
use crate::links::{Links, Peer};
use crate::protocol::{self, Data, Incoming, Shape};
use crate::request::Status;
use crate::room::Room;
use crate::wire::{Ack, Envelope, Exposed, Header, HeaderBuffer, Id, Put, WholePut};

impl Engine {
    /// Asks for the data of a message that was matched.
    pub(crate) fn begin_receive(
        &self,
        mut request: Active,
        peer: &Peer,
        (status, envelope): (Status, &Envelope),
        offer: &Offer,
        done: &mut Done,
    ) {
        let room = std::mem::replace(&mut request.inner().room, Room::None);
        let Some((convertor, posted)) = room.into_convertor(&self.devices) else { return };
        let Offer { announced, exposed } = offer;
        let transfer = ReceiveTransfer::new(request, convertor, posted, status, announced.sender);
        self.with_links(peer, done, |links, done| {
            links.invitations.note_matched(transfer.request.request());
            if let Err(error) = peer.check() {
                transfer.request.complete(status, Some(error), done);
                return;
            }
            if transfer.wanted == 0 {
                links.control(&Header::Finish { sender: transfer.sender, result: Ok(()) });
                let truncated = transfer.truncated();
                transfer.request.complete(status, truncated, done);
                return;
            }
            let shape = Shape::of(&transfer.convertor, links.flags(), announced.packs, &self.devices);
            if shape.on_device {
                self.note_message(false);
            }
            let mut get = if shape.on_device { Flags::DEVICE_GET } else { Flags::GET };
            let theirs = exposed.as_ref().is_some_and(|exposed| exposed.blocks.is_some());
            if shape.packed && !shape.contiguous {
                get |= Flags::DEVICE_PACKED;
            } else if theirs || (shape.on_device && !shape.one_run) {
                get |= Flags::DEVICE_STRIDED;
            }
            // No CPU reads a device's blocks.
            let exposed = exposed.as_ref().filter(|_| shape.on_device || !theirs);
            let source = exposed.and_then(|exposed| {
                let link = links.named(exposed.btl, exposed.ordinal, |link| link.capabilities().flags.contains(get))?;
                Some(Source { link, handle: exposed.handle, blocks: exposed.blocks })
            });
            let both = source.filter(|_| announced.addressable && shape.on_device);
            let [get, put] = both.map_or([Duration::ZERO; 2], |source| links.copy_costs(&transfer, source));
            let pieces = announced.addressable && shape.packed && !self.copy_only();
            let scratch = pieces && self.scratch.promises(transfer.convertor.location());
            let incoming = Incoming {
                exposed: source.is_some(),
                in_blocks: theirs,
                addressable: announced.addressable,
                packs: announced.packs,
                scratch,
                to: shape,
                copy_only: self.copy_only(),
                attentive: !self.crowded && links.sends.is_empty() && links.offers.attentive(peer),
                any: links.flags(),
                too_large: transfer.wanted > links.device_max_rdma_size() as u64,
                mixed: false,
                get,
                put,
            };
            let (data, _) = protocol::data(&incoming);
            let would_ask = data == Data::Put && shape.on_device && shape.one_run && source.is_none();
            if let Some(given) = links.invitation_to(envelope, announced, would_ask) {
                let id = links.receive_as_told(*given, transfer);
                links.settle_receive(id, done);
                return;
            }
            let id = links.receives.insert(transfer);
            match (data, source) {
                // Neither the network nor a kernel is let wait for a stream.
                (Data::Get, Some(source))
                    if !shape.contiguous || (shape.on_device && links.flags().contains(Flags::DEVICE_DIRECT)) =>
                {
                    if let Some(transfer) = links.receives.get_mut(id) {
                        transfer.source = Some(Box::new((source, Way::Fetch)));
                    }
                    self.move_in_order(peer, links, id, done);
                }
                (Data::Get | Data::Offered, Some(source)) => {
                    self.fetch(peer, links, (id, source), data == Data::Offered, done);
                }
                (Data::Put, instead) if shape.on_device => {
                    if let Some(transfer) = links.receives.get_mut(id) {
                        transfer.source = instead.map(|source| Box::new((source, Way::Expose)));
                    }
                    self.move_in_order(peer, links, id, done);
                }
                (Data::Pieces, _) => {
                    let transfer = links.receives.get_mut(id);
                    let spread = transfer.as_ref().and_then(|transfer| transfer.convertor.spread(&self.devices));
                    if let Some((transfer, spread)) = transfer.zip(spread) {
                        transfer.pieces = Some(Pieces::new(spread));
                        self.move_in_order(peer, links, id, done);
                    } else {
                        // Kernels that were there a moment ago are not now.
                        links.ask_for_fragments(id, &[]);
                    }
                }
                (Data::Put, _) => expose(links, id, None),
                _ => links.ask_for_fragments(id, &[]),
            }
        });
    }

    fn fetch(&self, peer: &Peer, links: &mut Links, (id, source): (Id, Source), offering: bool, done: &mut Done) {
        if !offering {
            self.counters.protocol_get.increment();
        }
        if let Some(transfer) = links.receives.get_mut(id) {
            if !offering {
                self.counters.bytes_get.add(transfer.wanted);
            }
            transfer.fetch_from(source, offering);
        }
        links.queues.gets.push_back(id);
        self.pump_gets(peer, links, done);
    }

    /// Lets the sender store in a device's buffer, or the network or a kernel fetch into it, once the default stream's work on it is
    /// done: they know nothing of that stream.
    fn move_in_order(&self, peer: &Peer, links: &mut Links, id: Id, done: &mut Done) {
        let Some(transfer) = links.receives.get_mut(id) else { return };
        if transfer.order_of_copies(&self.devices) == Order::None {
            return self.move_ordered(peer, links, id, done);
        }
        match self.default_stream(transfer.convertor.location()) {
            Ok(Some(completion)) => {
                transfer.busy += 1;
                self.start_copy(Copying { completion, then: Then::Move { peer: peer.rank, id }, bytes: 0 });
            }
            Ok(None) => self.move_ordered(peer, links, id, done),
            // The copies of fragments will say what is wrong with it.
            Err(_) => {
                transfer.pieces = None;
                links.ask_for_fragments(id, &[]);
            }
        }
    }

    /// The default stream's work on the buffer is done.
    pub(crate) fn ordered_receive(
        &self,
        peer: &Peer,
        links: &mut Links,
        id: Id,
        result: Result<(), DeviceError>,
        done: &mut Done,
    ) {
        let Some(transfer) = links.receives.get_mut(id) else { return };
        transfer.busy -= 1;
        match result {
            _ if transfer.gone || transfer.failure.is_some() => {}
            Ok(()) => self.move_ordered(peer, links, id, done),
            Err(_) => {
                transfer.pieces = None;
                links.ask_for_fragments(id, &[]);
            }
        }
        links.settle_receive(id, done);
    }

    fn move_ordered(&self, peer: &Peer, links: &mut Links, id: Id, done: &mut Done) {
        let Some(transfer) = links.receives.get_mut(id) else { return };
        let source = match transfer.source.take().map(|source| *source) {
            None if transfer.pieces.is_some() => return self.ask_for_pieces(links, id),
            Some((source, Way::Fetch)) => return self.fetch(peer, links, (id, source), false, done),
            Some((source, Way::Expose)) => source,
            None => return expose(links, id, None),
        };
        let whole = transfer.whole(Order::None).map(|whole| whole.0);
        let link = links.active.iter_mut().find(|link| link.serial == source.link);
        let registered = whole.zip(link).and_then(|(region, link)| {
            // SAFETY: the buffer is the transfer's until it is settled, which drops the registration first; or it is
            // dropped before anybody is told of it.
            unsafe { link.endpoint.register(region, Access::RemoteWrite) }.ok().flatten()
        });
        match registered {
            Some(registration) => expose(links, id, Some((source.link, registration))),
            None => self.fetch(peer, links, (id, source), false, done),
        }
    }
}

impl Links {
    /// What it costs to fetch a message from what the sender exposed, and to have the sender store it.
    fn copy_costs(&self, transfer: &ReceiveTransfer, source: Source) -> [Duration; 2] {
        let Some(link) = self.active.iter().find(|other| other.serial == source.link) else {
            return [Duration::ZERO; 2];
        };
        let local = transfer.convertor.location();
        [Mover::Fetches, Mover::PeerStores]
            .map(|mover| link.endpoint.transfer_cost(mover, local, &source.handle).of(transfer.wanted))
    }
}

/// Has the only link register all of a device's buffer, and the sender asked to store there, with others of its messages;
/// false, and nothing has happened, where it is not as simple.
fn expose_whole(links: &mut Links, id: Id, registered: &mut Option<(u32, Registration)>) -> bool {
    let Links { active, receives, .. } = links;
    let (Some(transfer), [link]) = (receives.get_mut(id), active.as_mut_slice()) else { return false };
    let able = transfer.convertor.location().on_device() && link.capabilities().flags.contains(Flags::DEVICE_PUT);
    let Some(region) = transfer.region(0, transfer.wanted, Order::None).filter(|_| able) else { return false };
    let registration = match registered.take_if(|(serial, _)| *serial == link.serial) {
        Some((_, registration)) => registration,
        // SAFETY: the buffer is the transfer's until it is settled, which drops the registration first.
        None => match unsafe { link.endpoint.register(region, Access::RemoteWrite) } {
            Ok(Some(registration)) => registration,
            // The long way finds that out again, and what to do.
            Ok(None) | Err(_) => return false,
        },
    };
    let (sender, wanted, via) = (transfer.sender, transfer.wanted, (link.tag, link.ordinal));
    transfer.asked += wanted;
    transfer.awaited += wanted;
    links.ask_to_put(&WholePut { sender, receiver: id, len: wanted, handle: registration.handle() }, via);
    if let Some(transfer) = links.receives.get_mut(id) {
        transfer.keepers.extend(registration.into_keeper());
    }
    true
}

/// Registers the buffer with every link that can PUT, each for the share that its bandwidth allows; what none takes
/// comes as fragments. The link of that serial has registered all of it already.
fn expose(links: &mut Links, id: Id, mut registered: Option<(u32, Registration)>) {
    if expose_whole(links, id, &mut registered) {
        return;
    }
    // In the order in which it is said.
    links.send_gathered();
    let Links { active, receives, queues, .. } = links;
    let Some(transfer) = receives.get_mut(id) else { return };
    let blocks = transfer.whole(Order::None).filter(|whole| whole.1.is_some());
    let flag = match transfer.convertor.location().on_device() {
        true if blocks.is_some() => Flags::DEVICE_PUT | Flags::DEVICE_STRIDED,
        true => Flags::DEVICE_PUT,
        false => Flags::PUT,
    };
    let able = |link: &crate::links::Link| link.capabilities().flags.contains(flag);
    let total: f64 = active.iter().filter(|link| able(link)).map(|link| link.capabilities().bandwidth).sum();
    let (sender, wanted) = (transfer.sender, transfer.wanted);
    let mut offset = 0;
    let mut share = 0.0;
    for link in active.iter_mut().filter(|link| able(link)) {
        share += link.capabilities().bandwidth / total;
        // In whole cache lines, the last one ending with the message. A share that is no number is all of it.
        let end =
            if share < 1.0 - f64::EPSILON && blocks.is_none() { (wanted as f64 * share) as u64 & !63 } else { wanted };
        let len = end.clamp(offset, wanted) - offset;
        let region = match blocks {
            Some((region, _)) if len != 0 => Some(region),
            _ => transfer.region(offset, len, Order::None).filter(|region| region.len != 0),
        };
        let Some(region) = region else { continue };
        let registration = match registered.take_if(|(serial, _)| *serial == link.serial && len == wanted) {
            Some((_, registration)) => Ok(Some(registration)),
            // SAFETY: the buffer is the transfer's until it is settled, which drops the registration first.
            None => unsafe { link.endpoint.register(region, Access::RemoteWrite) },
        };
        match registration {
            Ok(Some(registration)) => {
                let (handle, blocks) = (*registration.handle(), blocks.and_then(|whole| whole.1));
                let to = Exposed { btl: link.tag, ordinal: link.ordinal, handle, blocks };
                transfer.keepers.extend(registration.into_keeper());
                transfer.asked += len;
                transfer.awaited += len;
                let put = Put { sender, receiver: id, offset, len, total: wanted, to };
                queues.control.push_back(HeaderBuffer::new(&Header::Put(put)).as_bytes().into());
                offset += len;
            }
            Ok(None) => break,
            Err(error) => {
                links.broken = Some((link.btl, error));
                break;
            }
        }
    }
    if offset < wanted {
        let rest = (offset, wanted);
        links.ask_for_fragments(id, &[rest]);
    }
    links.flush_control();
}

impl Links {
    /// Asks the sender for ranges as fragments; for all if none are named. `total` is what it is asked for in all.
    pub(crate) fn ask_for_fragments(&mut self, id: Id, ranges: &[(u64, u64)]) {
        let Some(transfer) = self.receives.get_mut(id) else { return };
        // Of a message that was fetched in part, the sender is asked for the rest only.
        let fetch = transfer.fetch.take();
        // If it has sent some before, it was told then that it may be asked for all.
        let total = match &fetch {
            Some(fetch) if !fetch.offered_any => transfer.wanted - fetch.fetched,
            _ => transfer.wanted,
        };
        let whole = [(0, transfer.wanted)];
        let ranges = if ranges.is_empty() { &whole } else { ranges };
        let bytes = ranges.iter().map(|(from, to)| to - from).sum::<u64>();
        transfer.asked += bytes;
        transfer.awaited += bytes;
        // A device may fail after the sender thinks that all is done: it is told how it went.
        let (sender, to_device) = (transfer.sender, transfer.convertor.location().on_device());
        transfer.finish = to_device || fetch.is_some_and(|fetch| fetch.offered_any && fetch.fetched != 0);
        for &(from, to) in ranges {
            self.control(&Header::Ack(Ack { sender, receiver: id, from, to, total, to_device, offer: None }));
        }
    }
}
