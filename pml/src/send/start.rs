//! The first header of a message.

use cableway_btl::{Access, Flags, FragmentKind, Operation, Region, Token, Transfer};
use cableway_common_cuda::{Direction, Order};

use super::transfer::{Phase, SendTransfer};
use crate::batches::Plain;
use crate::completion::Done;
use crate::copies::{Copying, Then};
use crate::engine::Engine;
use crate::error::Error;
use crate::flow;
use crate::invitation;
use crate::links::{self, Link, Links, Peer};
use crate::protocol::{self, DEVICE_RDMA, Outgoing, Shape, Start};
use crate::request::{Outcome, Status};
use crate::wire::{self, Announced, Exposed, Header, HeaderBuffer, Id, MATCH_LEN, RENDEZVOUS_LEN};

/// How an attempt to send a first header ended.
enum Attempt {
    /// The link is busy, or broke: again later.
    Busy,
    /// The message has left and its buffer is free.
    Gone,
    /// It goes on by itself: an operation, a copy or the receiver will say more.
    Under,
}

impl Engine {
    /// Sends a new message's first header, or queues it.
    pub(crate) fn start_send(
        &self,
        peer: &Peer,
        links: &mut Links,
        mut transfer: SendTransfer,
        done: &mut Done,
    ) -> Outcome {
        let start = self.choose_start(links, &mut transfer);
        transfer.phase = Phase::Starting(start);
        match start {
            Start::Eager | Start::EagerInPlace | Start::EagerDevice => {
                links.credit.take(flow::cost(true, transfer.len as usize));
                self.counters.sends_eager.increment();
                self.counters.bytes_eager.add(transfer.len);
            }
            Start::AnnounceWithData => links.credit.take(flow::cost(false, transfer.len as usize)),
            Start::Expose | Start::Announce => peer.counters.sends_rendezvous.add_exclusively(1),
        }
        // Nothing overtakes what waits, though the receiver would put it right.
        let queue = !links.queues.control.is_empty() || !links.queues.starts.is_empty();
        let id = links.sends.insert(transfer);
        match if queue { Attempt::Busy } else { self.attempt_start(peer, links, id) } {
            Attempt::Gone => {
                // The caller learns it from the outcome; the request was never seen active.
                if let Some(transfer) = links.sends.remove(id) {
                    transfer.request.retract();
                }
                Outcome::Complete
            }
            Attempt::Under => {
                self.look_for_invitation(peer, links, id, done);
                links.settle_send(id, done);
                Outcome::Started
            }
            Attempt::Busy => {
                self.counters.send_queued.increment();
                links.queues.starts.push_back(id);
                Outcome::Started
            }
        }
    }

    fn choose_start(&self, links: &mut Links, transfer: &mut SendTransfer) -> Start {
        let together = Together::of(&links.active);
        let shape = Shape::of_run(&transfer.convertor, together.any);
        transfer.stores = self.stores(links, transfer, (shape, together));
        if transfer.stores {
            // What the protocol says of such a message, whatever else it is asked.
            return Start::Announce;
        }
        let reachable = shape.on_device && shape.contiguous && self.expose_device(links, transfer, (shape, together));
        let Some(main) = links.active.first() else { return Start::Announce };
        let cost = flow::cost(true, transfer.len.min(usize::MAX as u64 / 2) as usize);
        let credit = links.credit.covers(cost);
        let out = Outgoing { credit, reachable, ..self.outgoing(main, transfer, (shape, together)) };
        let (start, _) = protocol::start(&out);
        if !out.credit && start == Start::Announce && out.len + MATCH_LEN as u64 <= out.main.eager_limit as u64 {
            self.counters.flow_controlled.increment();
        }
        start
    }

    /// Whether a device's data should be announced for this process to store it.
    fn stores(&self, links: &mut Links, transfer: &SendTransfer, how: (Shape, Together)) -> bool {
        let small = transfer.len <= self.parameters.device_push_limit as u64;
        if !how.0.on_device || !small || links.fetches.peer_copies() {
            return false;
        }
        let Some(main) = links.active.first() else { return false };
        let out = Outgoing { stores: true, ..self.outgoing(main, transfer, how) };
        let cost = |operation| main.endpoint.cost(operation, transfer.convertor.location());
        if !protocol::stores_device(&out) || cost(Operation::Put).exceeds(&cost(Operation::Get), transfer.len) {
            return false;
        }
        protocol::stores_device(&Outgoing { fetches: false, ..out }) || links.fetches.next_is_announced()
    }

    /// Has a link make a device's data reachable for the peer, if one copy may be the way to move it.
    fn expose_device(&self, links: &mut Links, transfer: &mut SendTransfer, how: (Shape, Together)) -> bool {
        let Some(main) = links.active.first() else { return false };
        let out = self.outgoing(main, transfer, how);
        if !protocol::exposes_device(&out) {
            return false;
        }
        if !protocol::exposes_device(&Outgoing { fetches: false, ..out }) && !links.fetches.next_is_announced() {
            return false;
        }
        let reachable = register(&mut links.active, transfer, Flags::DEVICE_GET).unwrap_or_else(|error| {
            links.main_broke(error);
            false
        });
        transfer.unreachable = !reachable;
        reachable
    }

    /// Tries the queued first headers in order.
    pub(crate) fn retry_starts(&self, peer: &Peer, links: &mut Links, done: &mut Done) {
        while let Some(&id) = links.queues.starts.front() {
            match self.attempt_start(peer, links, id) {
                Attempt::Busy => return,
                Attempt::Gone => {
                    if let Some(transfer) = links.sends.remove(id) {
                        transfer.request.complete(Status::EMPTY, None, done);
                    }
                }
                Attempt::Under => {
                    self.look_for_invitation(peer, links, id, done);
                    links.settle_send(id, done);
                }
            }
            links.queues.starts.pop_front();
        }
    }

    fn attempt_start(&self, peer: &Peer, links: &mut Links, id: Id) -> Attempt {
        let Some(transfer) = links.sends.get_mut(id) else { return Attempt::Under };
        let Phase::Starting(start) = transfer.phase else { return Attempt::Under };
        let attempt = match start {
            Start::Eager => self.attempt_eager(peer, links, id, None),
            Start::AnnounceWithData => {
                let announced =
                    Announced { len: transfer.len, sender: id, addressable: false, packs: false, invitable: false };
                let header = wire::rendezvous_bytes(&transfer.envelope, &announced);
                match self.attempt_eager(peer, links, id, Some(&header)) {
                    Ok(Attempt::Gone) => {
                        links.announced(id);
                        Ok(Attempt::Under)
                    }
                    other => other,
                }
            }
            Start::EagerInPlace => self.attempt_in_place(peer, links, id),
            Start::EagerDevice => self.attempt_device(peer, links, id),
            Start::Expose => self.attempt_expose(peer, links, id),
            Start::Announce => Ok(self.attempt_announce(peer, links, id)),
        };
        match attempt {
            Ok(attempt) => attempt,
            Err(error) => {
                links.main_broke(error);
                Attempt::Busy
            }
        }
    }

    /// Header (that of an eager message if none is given) and data in one message, copied by the CPU.
    fn attempt_eager(
        &self,
        peer: &Peer,
        links: &mut Links,
        id: Id,
        header: Option<&[u8; RENDEZVOUS_LEN]>,
    ) -> Result<Attempt, cableway_btl::Error> {
        let (Some(transfer), Some(link)) = (links.sends.get_mut(id), links.active.first_mut()) else {
            return Ok(Attempt::Busy);
        };
        let eager = wire::match_bytes(&transfer.envelope);
        let header = header.map_or(&eager[..], |header| &header[..]);
        let len = transfer.len as usize;
        let whole = header.len() + len;
        if whole <= link.capabilities().inline_limit
            && let Some(payload) = transfer.host_bytes()
            && link.endpoint.send_inline(header, payload)? == cableway_btl::Sent::Done
        {
            link.carried = true;
            return Ok(Attempt::Gone);
        }
        let Some(mut fragment) = link.endpoint.alloc(whole, FragmentKind::Host)? else { return Ok(Attempt::Busy) };
        if let Some(payload) = transfer.host_bytes() {
            fragment.fill(header, payload);
            link.endpoint.send(fragment, whole)?;
            link.carried = true;
            return Ok(Attempt::Gone);
        }
        fragment.write(0, header);
        transfer.convertor.set_position(0);
        // SAFETY: the fragment has room for the header and `len` bytes, and is ours alone.
        match unsafe { transfer.convertor.pack(fragment.as_mut_ptr().add(header.len()), len) } {
            Ok(_) => {
                link.endpoint.send(fragment, whole)?;
                link.carried = true;
                Ok(Attempt::Gone)
            }
            Err(error) => {
                transfer.fail(Error::of_copy(error, &transfer.convertor));
                Ok(self.attempt_announce(peer, links, id))
            }
        }
    }

    fn attempt_in_place(&self, peer: &Peer, links: &mut Links, id: Id) -> Result<Attempt, cableway_btl::Error> {
        let (Some(transfer), Some(link)) = (links.sends.get_mut(id), links.active.first_mut()) else {
            return Ok(Attempt::Busy);
        };
        let Some(region) = transfer.region(0, transfer.len, Order::None) else {
            return self.attempt_eager(peer, links, id, None);
        };
        let header = wire::match_bytes(&transfer.envelope);
        let operation = links.operations.insert(links::Operation::SendMessage(id));
        // SAFETY: the buffer stays valid and unwritten until the request completes, which waits for the operation.
        let sent = unsafe { link.endpoint.send_in_place(&header, region, token(peer, operation)) };
        if !matches!(sent, Ok(Transfer::Started)) {
            links.operations.remove(operation);
        }
        match sent? {
            Transfer::Busy => Ok(Attempt::Busy),
            Transfer::Done => {
                link.carried = true;
                Ok(Attempt::Gone)
            }
            Transfer::Started => {
                link.carried = true;
                transfer.busy += 1;
                transfer.phase = Phase::Leaving;
                Ok(Attempt::Under)
            }
        }
    }

    /// Has the device copy the data into a fragment, which leaves when that is done. Messages sent meanwhile overtake
    /// it; their numbers tell the receiver.
    fn attempt_device(&self, peer: &Peer, links: &mut Links, id: Id) -> Result<Attempt, cableway_btl::Error> {
        let (Some(transfer), Some(link)) = (links.sends.get_mut(id), links.active.first_mut()) else {
            return Ok(Attempt::Busy);
        };
        let header = wire::match_bytes(&transfer.envelope);
        let (len, whole) = (transfer.len as usize, header.len() + transfer.len as usize);
        let kind = link.device_kind();
        let Some(mut fragment) = link.endpoint.alloc(whole, kind)? else { return Ok(Attempt::Busy) };
        fragment.write(0, &header);
        let order = transfer.next_order(&self.devices);
        // SAFETY: the fragment has room for the header.
        let to = unsafe { fragment.as_mut_ptr().add(header.len()) };
        let then = |fragment| Then::SendMessage { peer: peer.rank, link: link.serial, id, fragment, len: whole };
        if let Some(Region { address: from, location: at, .. }) = transfer.region(0, transfer.len, order) {
            transfer.busy += 1;
            transfer.phase = Phase::Leaving;
            let (direction, page_locked) = (Direction::DeviceToHost, kind == FragmentKind::Device);
            let copy = Plain { to, from, len, direction, at, order, page_locked, then: then(fragment) };
            // SAFETY: the fragment has room for `len` bytes besides and is ours alone; the buffer stays as it is while
            // the transfer is busy.
            unsafe { self.gather_copy(copy) };
            return Ok(Attempt::Under);
        }
        // SAFETY: the fragment has room for `len` bytes besides, is ours alone, and is kept with the completion.
        match unsafe { transfer.convertor.start_pack(to, len, order) } {
            Ok((_, completion)) => {
                transfer.busy += 1;
                transfer.phase = Phase::Leaving;
                let then = then(fragment);
                self.start_copy(Copying { completion, then, bytes: len as u64 });
                Ok(Attempt::Under)
            }
            Err(error) => {
                drop(fragment);
                transfer.fail(Error::of_copy(error, &transfer.convertor));
                Ok(self.attempt_announce(peer, links, id))
            }
        }
    }

    fn attempt_expose(&self, peer: &Peer, links: &mut Links, id: Id) -> Result<Attempt, cableway_btl::Error> {
        let Links { sends, active, .. } = &mut *links;
        let Some(transfer) = sends.get_mut(id) else { return Ok(Attempt::Under) };
        let on_device = transfer.convertor.location().on_device();
        // Tried again after a busy link: the registration made then still stands.
        if transfer.registration.is_none() && !on_device {
            register(active, transfer, Flags::GET)?;
        }
        let addressable = on_device && self.stores_from(active, transfer).0;
        let exposed = transfer.registration.as_deref().and_then(|(serial, registration)| {
            let link = active.iter().find(|link| link.serial == *serial)?;
            let blocks = transfer.whole(Order::None)?.1;
            Some(Exposed { btl: link.tag, ordinal: link.ordinal, handle: *registration.handle(), blocks })
        });
        let Some(exposed) = exposed else {
            transfer.phase = Phase::Starting(Start::Announce);
            return Ok(self.attempt_announce(peer, links, id));
        };
        // The peer's copy knows nothing of our default stream.
        if on_device && !self.is_ordered(peer, transfer, id) {
            return Ok(Attempt::Under);
        }
        if transfer.failure.is_some() {
            return Ok(self.attempt_announce(peer, links, id));
        }
        let announced = Announced { len: transfer.len, sender: id, addressable, packs: false, invitable: false };
        let header = HeaderBuffer::new(&Header::Get(transfer.envelope, announced, exposed));
        Ok(links.attempt_header(id, header.as_bytes()))
    }

    /// Whether the default stream's work on a device's data is done, or nobody can tell, so that the message has failed.
    /// If not, its first header is tried again once it is.
    fn is_ordered(&self, peer: &Peer, transfer: &mut SendTransfer, id: Id) -> bool {
        if transfer.ordered {
            return true;
        }
        match self.default_stream(transfer.convertor.location()) {
            Ok(Some(completion)) => {
                transfer.busy += 1;
                let then = Then::Ordered { peer: peer.rank, id };
                self.start_copy(Copying { completion, then, bytes: 0 });
                return false;
            }
            Ok(None) => transfer.ordered = true,
            Err(source) => {
                let address = transfer.convertor.contiguous().map_or(0, |address| address as usize);
                transfer.fail(Error::Device { address, len: transfer.len, source });
            }
        }
        true
    }

    /// Announces the message, and nothing more. A message that failed here is announced too: its number is taken, and
    /// its receiver waits for it.
    fn attempt_announce(&self, peer: &Peer, links: &mut Links, id: Id) -> Attempt {
        let Some(transfer) = links.sends.get_mut(id) else { return Attempt::Busy };
        transfer.phase = Phase::Starting(Start::Announce);
        let (addressable, packs) = match transfer.failure {
            Some(_) => (false, false),
            // Or the message would not be announced to be stored.
            None if transfer.stores => (true, false),
            None => self.stores_from(&links.active, transfer),
        };
        // Nor does the network know of it, that may be asked to store the data, and no kernel is launched that would wait.
        let direct = |link: &Link| link.capabilities().flags.contains(Flags::DEVICE_DIRECT);
        let waits = || packs || links.active.iter().any(direct);
        if addressable && transfer.convertor.location().on_device() && waits() && !self.is_ordered(peer, transfer, id) {
            return Attempt::Under;
        }
        let able = transfer.failure.is_none();
        transfer.packs = packs && able;
        transfer.invitable = able && transfer.stores && invitation::is_able(&links.active);
        let announced = Announced {
            len: transfer.len,
            sender: id,
            addressable: addressable && able,
            packs: transfer.packs,
            invitable: transfer.invitable,
        };
        let header = wire::rendezvous_bytes(&transfer.envelope, &announced);
        let unordered = Some(*transfer.convertor.location()).filter(|at| at.on_device() && !transfer.ordered);
        // What is invited is copied next, which waits for the stream by an event.
        let unordered = unordered.filter(|_| !links.invitations.is_invited(&transfer.envelope));
        let attempt = links.attempt_header(id, &header);
        if let (Attempt::Under, Some(location)) = (&attempt, unordered) {
            self.note_announced(&location);
        }
        attempt
    }

    /// Whether the receiver may ask to have the message stored, and whether a kernel packs it then.
    fn stores_from(&self, active: &[Link], transfer: &SendTransfer) -> (bool, bool) {
        let Some(main) = active.first() else { return (false, false) };
        let together = Together::of(active);
        // What the network cannot be let read, it does not send either.
        if transfer.unreachable && together.any.contains(Flags::DEVICE_DIRECT) {
            return (false, false);
        }
        let shape = Shape::of(&transfer.convertor, together.any, false, &self.devices);
        let out = self.outgoing(main, transfer, (shape, together));
        (protocol::addressable(&out), protocol::packs(&out))
    }

    /// What the protocol is chosen by, where the receiver has room and nothing speaks against one copy.
    fn outgoing<'l>(
        &self,
        main: &'l Link,
        transfer: &SendTransfer,
        (from, together): (Shape, Together),
    ) -> Outgoing<'l> {
        Outgoing {
            len: transfer.len,
            from,
            synchronous: transfer.synchronous,
            credit: true,
            copy_only: self.copy_only(),
            main: main.capabilities(),
            any: together.any,
            min_rdma_size: together.min_rdma_size,
            device_min_rdma_size: together.device_min_rdma_size,
            device_max_rdma_size: together.device_max_rdma_size,
            reachable: true,
            stores: false,
            fetches: true,
        }
    }

    /// The default stream's work on a device's data is done: its message can be announced.
    pub(crate) fn ordered(
        &self,
        peer: &Peer,
        links: &mut Links,
        id: Id,
        result: Result<(), cableway_common_cuda::DeviceError>,
        done: &mut Done,
    ) {
        let Some(transfer) = links.sends.get_mut(id) else { return };
        transfer.busy -= 1;
        transfer.ordered = true;
        if let Err(source) = result {
            let address = transfer.convertor.contiguous().map_or(0, |address| address as usize);
            transfer.fail(Error::Device { address, len: transfer.len, source });
            transfer.phase = Phase::Starting(Start::Announce);
        }
        if !transfer.gone {
            match self.attempt_start(peer, links, id) {
                Attempt::Busy => links.queues.starts.push_back(id),
                _ => self.look_for_invitation(peer, links, id, done),
            }
        }
        links.settle_send(id, done);
    }

    /// The copy of an eager message's data off the device is done.
    pub(crate) fn message_copied(
        &self,
        peer: &Peer,
        links: &mut Links,
        (id, serial): (Id, u32),
        (mut fragment, len): (cableway_btl::Fragment, usize),
        result: Result<(), cableway_common_cuda::DeviceError>,
        done: &mut Done,
    ) {
        let Links { sends, active, .. } = &mut *links;
        let Some(transfer) = sends.get_mut(id) else { return };
        transfer.busy -= 1;
        match result {
            Err(source) => {
                let address = transfer.convertor.contiguous().map_or(0, |address| address as usize);
                transfer.fail(Error::Device { address, len: transfer.len, source });
                if !transfer.gone && matches!(self.attempt_announce(peer, links, id), Attempt::Busy) {
                    links.queues.starts.push_back(id);
                }
            }
            Ok(()) => match active.iter_mut().find(|link| link.serial == serial) {
                Some(link) if !transfer.gone => {
                    link.carried = true;
                    if let Err(error) = link.endpoint.send(fragment, len) {
                        links.broken = Some((link.btl, error));
                    }
                }
                None if !transfer.gone => links.queues.late.push_back(fragment.copied(len)),
                _ => {}
            },
        }
        links.settle_send(id, done);
    }

    /// `device_protocols=copy`.
    pub(crate) fn copy_only(&self) -> bool {
        self.parameters.device_protocols == cableway_base::parameters::DeviceProtocols::Copy
    }
}

impl SendTransfer {
    /// The data, if the CPU can read it in one run.
    pub(crate) fn host_bytes(&self) -> Option<&[u8]> {
        if self.len == 0 {
            return Some(&[]);
        }
        let address = self.convertor.contiguous().filter(|_| !self.convertor.location().on_device())?;
        // SAFETY: the host promised that the buffer stays valid and unwritten until the request completes.
        Some(unsafe { std::slice::from_raw_parts(address, self.len as usize) })
    }
}

impl Links {
    /// What any link can do.
    pub(crate) fn flags(&self) -> Flags {
        self.active.iter().fold(Flags::empty(), |flags, link| flags | link.capabilities().flags)
    }

    pub(crate) fn min_rdma_size(&self) -> usize {
        Together::of(&self.active).min_rdma_size
    }

    pub(crate) fn device_min_rdma_size(&self) -> usize {
        Together::of(&self.active).device_min_rdma_size
    }

    pub(crate) fn device_max_rdma_size(&self) -> usize {
        Together::of(&self.active).device_max_rdma_size
    }

    pub(crate) fn main_broke(&mut self, error: cableway_btl::Error) {
        if let Some(link) = self.active.first() {
            self.broken = Some((link.btl, error));
        }
    }

    fn announced(&mut self, id: Id) {
        if let Some(transfer) = self.sends.get_mut(id) {
            transfer.phase = Phase::Announced;
        }
    }

    fn attempt_header(&mut self, id: Id, header: &[u8]) -> Attempt {
        if !self.send_small(header) {
            return Attempt::Busy;
        }
        self.announced(id);
        Attempt::Under
    }
}

const RDMA: Flags = DEVICE_RDMA.union(Flags::GET).union(Flags::PUT);

/// What the links to a peer can do together.
#[derive(Clone, Copy)]
struct Together {
    /// What any of them can.
    any: Flags,
    /// The smallest of those that can GET or PUT.
    min_rdma_size: usize,
    /// The same of those that can with device memory, and the largest of these; 0 if none can.
    device_min_rdma_size: usize,
    device_max_rdma_size: usize,
}

impl Together {
    #[inline]
    fn of(active: &[Link]) -> Together {
        let (min_rdma_size, device_min_rdma_size) = (usize::MAX, usize::MAX);
        let mut together =
            Together { any: Flags::empty(), min_rdma_size, device_min_rdma_size, device_max_rdma_size: 0 };
        for link in active {
            let able = link.capabilities();
            together.any |= able.flags;
            if able.flags.intersects(RDMA) {
                together.min_rdma_size = together.min_rdma_size.min(able.min_rdma_size);
            }
            if able.flags.intersects(DEVICE_RDMA) {
                together.device_min_rdma_size = together.device_min_rdma_size.min(able.device_min_rdma_size);
                together.device_max_rdma_size = together.device_max_rdma_size.max(able.device_max_rdma_size);
            }
        }
        together
    }
}

/// Has the first link that can make the data reachable for the peer's GET; false if none can.
fn register(active: &mut [Link], transfer: &mut SendTransfer, flag: Flags) -> Result<bool, cableway_btl::Error> {
    let Some((region, blocks)) = transfer.whole(Order::None) else { return Ok(false) };
    let flag = if blocks.is_some() { flag | Flags::DEVICE_STRIDED } else { flag };
    for link in active.iter_mut().filter(|link| link.capabilities().flags.contains(flag)) {
        // SAFETY: the buffer stays valid and unwritten until the request completes, and the registration is dropped
        // with the transfer, before that.
        if let Some(registration) = unsafe { link.endpoint.register(region, Access::RemoteRead)? } {
            transfer.registration = Some(Box::new((link.serial, registration)));
            return Ok(true);
        }
    }
    Ok(false)
}

/// The name under which an operation's completion is reported.
pub(crate) fn token(peer: &Peer, operation: usize) -> Token {
    Token(u64::from(peer.rank) << 32 | operation as u64)
}
