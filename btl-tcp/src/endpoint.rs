//! The sending side of a link, which `pml` uses.

use std::sync::Arc;
use std::time::Duration;

use cableway_base::Rank;
use cableway_btl::{
    Access, Capabilities, Cost, Endpoint, Error, Flags, Fragment, FragmentKind, Local, Operation, Region, Registration,
    Remote, Sent, Token, Transfer,
};
use cableway_common_cuda::Location;

use crate::card::Address;
use crate::link::{Link, State, Tx};
use crate::outbox::{Source, is_transient, overhead};
use crate::pairing::Route;
use crate::regions::Target;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::sys::{self, Slice};
use crate::{NAME, gather, invalid, wire};

/// The priority of tcp: below that of every faster transport.
const EXCLUSIVITY: u32 = 100;
/// The share of the bandwidth that messages of host memory reach, which are copied in and out.
const HOST_COPIES: f64 = 0.85;
/// The smallest message for which a `put` pays: its handshake costs less than the copy that it saves.
const MIN_PUT: usize = 64 << 10;
/// The longest message that is copied if the socket is full. Longer ones are sent from their place.
const MAX_INLINE: usize = 16 << 10;
/// The number of unwritten fragments at which `alloc` reports a busy link.
const WAITING_FRAGMENTS: usize = 16;
/// The longest message that is copied to be sent together with others.
const GATHERED: usize = 2 << 10;

/// An endpoint, connected or not.
pub(crate) struct TcpEndpoint {
    shared: Arc<Shared>,
    link: Arc<Link>,
    capabilities: Capabilities,
}

impl TcpEndpoint {
    /// `max_message` is the longest message that the peer accepts.
    pub(crate) fn new(shared: Arc<Shared>, link: Arc<Link>, route: &Route, share: usize, max_message: usize) -> Self {
        let capabilities = capabilities(&shared.settings, route, share, max_message);
        TcpEndpoint { shared, link, capabilities }
    }

    /// Returns the result of a call without a connection. Starts to connect if necessary.
    #[cold]
    fn unconnected(&self, tx: &mut Tx) -> Result<(), Error> {
        let link = &self.link;
        match &tx.state {
            State::Connected(_) if tx.closing => Err(link.peer.error("the link was closed here")),
            State::Connected(_) | State::Connecting | State::Broken(_) => Ok(()),
            State::Gone(error) => Err(error.clone()),
            State::Left(_) => Err(link.peer.left()),
            State::Idle => {
                tx.state = State::Connecting;
                self.shared.request_queue.post(|requests| requests.connect.push(Arc::clone(link)));
                Ok(())
            }
        }
    }

    /// Asks the engine to write later, after a message was queued because the socket is full.
    fn wait(&self, tx: &mut Tx) {
        tx.full = true;
        tx.list(&self.link, &self.shared.request_queue);
    }

    /// Writes queued data.
    fn settle(&self, tx: &mut Tx) {
        tx.flush(&self.link, &self.shared.request_queue);
        tx.post_finished(&self.shared.request_queue);
    }
}

/// Writes `slices` if no data is queued before them. Returns the number of bytes that the kernel has accepted.
///
/// # Safety
/// As [`sys::send_vectored`].
#[inline]
unsafe fn write_now(shared: &Shared, link: &Arc<Link>, tx: &mut Tx, slices: &[Slice]) -> Option<usize> {
    if !tx.outbox.is_empty() && !tx.full {
        // Write gathered messages first.
        tx.flush(link, &shared.request_queue);
        tx.post_finished(&shared.request_queue);
    }
    let State::Connected(socket) = &tx.state else { return None };
    if !tx.outbox.is_empty() {
        return Some(0);
    }
    // SAFETY: the caller's promise.
    match unsafe { sys::send_vectored(socket, slices) } {
        Ok(written) => Some(written),
        Err(error) if is_transient(&error) => Some(0),
        Err(error) => {
            tx.broke(link, &error, &shared.request_queue);
            None
        }
    }
}

impl Endpoint for TcpEndpoint {
    fn peer(&self) -> Rank {
        self.link.peer.rank
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn connect(&mut self) -> Result<(), Error> {
        let mut tx = self.link.tx.lock();
        self.unconnected(&mut tx)
    }

    fn cost(&self, operation: Operation, location: &Location) -> Cost {
        // tcp copies a message in and out in addition to the kernel's copies. A put needs only the kernel's copies,
        // after a handshake.
        let copies = if location.on_device() { 0.7 } else { HOST_COPIES };
        let (fixed, rate) = match operation {
            Operation::Send => (self.capabilities.latency, copies * self.capabilities.bandwidth),
            Operation::Put | Operation::Get => (2 * self.capabilities.latency, self.capabilities.bandwidth),
        };
        Cost { fixed, bytes_per_second: rate }
    }

    #[inline]
    fn send_inline(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error> {
        let total = header.len() + payload.len();
        if total > self.capabilities.inline_limit {
            return Err(invalid("send_inline", format!("{total} bytes are more than the inline limit")));
        }
        let mut tx = self.link.tx.lock();
        if !matches!(tx.state, State::Connected(_)) || tx.closing {
            return self.unconnected(&mut tx).map(|()| Sent::Busy);
        }
        if !tx.has_room() {
            tx.flush(&self.link, &self.shared.request_queue);
            tx.post_finished(&self.shared.request_queue);
            if !tx.has_room() {
                return Ok(Sent::Busy);
            }
        }
        let frame = wire::message(total);
        if total <= GATHERED && gather::is_on() {
            tx.outbox.push_copy(&[&frame, header, payload], 0);
            tx.list(&self.link, &self.shared.request_queue);
            return Ok(Sent::Done);
        }
        // SAFETY: all three are borrowed.
        let written = unsafe {
            write_now(&self.shared, &self.link, &mut tx, &[Slice::of(&frame), Slice::of(header), Slice::of(payload)])
        };
        match written {
            Some(written) if written == frame.len() + total => Ok(Sent::Done),
            Some(written) => {
                tx.outbox.push_copy(&[&frame, header, payload], written);
                self.wait(&mut tx);
                Ok(Sent::Done)
            }
            None => self.unconnected(&mut tx).map(|()| Sent::Busy),
        }
    }

    fn alloc(&mut self, len: usize, kind: FragmentKind) -> Result<Option<Fragment>, Error> {
        let mut tx = self.link.tx.lock();
        if !matches!(tx.state, State::Connected(_)) || tx.closing {
            return self.unconnected(&mut tx).map(|()| None);
        }
        if tx.outbox.waiting() >= WAITING_FRAGMENTS {
            tx.flush(&self.link, &self.shared.request_queue);
            tx.post_finished(&self.shared.request_queue);
            if tx.outbox.waiting() >= WAITING_FRAGMENTS {
                return Ok(None);
            }
        }
        drop(tx);
        self.link.fragments.take(len, kind)
    }

    fn send(&mut self, fragment: Fragment, len: usize) -> Result<(), Error> {
        let capacity = fragment.capacity();
        if len > capacity {
            return Err(invalid("send", format!("{len} bytes of a fragment that has {capacity}")));
        }
        let buffer = self
            .link
            .fragments
            .redeem(fragment.into_key())
            .ok_or_else(|| invalid("send", "the fragment belongs to another endpoint"))?;
        let mut tx = self.link.tx.lock();
        if !matches!(tx.state, State::Connected(_)) || tx.closing {
            // A failed write makes the peer fail; the engine reports that.
            return self.unconnected(&mut tx);
        }
        let frame = wire::message(len);
        let data = Slice::of(&buffer[..len]);
        // SAFETY: both are borrowed.
        let written = unsafe { write_now(&self.shared, &self.link, &mut tx, &[Slice::of(&frame), data]) };
        match written {
            Some(written) if written == frame.len() + len => Ok(()),
            Some(written) => {
                tx.outbox.push_fragment(buffer, len, written);
                self.wait(&mut tx);
                Ok(())
            }
            None => self.unconnected(&mut tx),
        }
    }

    unsafe fn send_in_place(&mut self, header: &[u8], payload: Region, token: Token) -> Result<Transfer, Error> {
        let total = header.len() + payload.len;
        // The peer accepts messages up to the size of device pieces, wherever the data is.
        let limit = self.capabilities.max_send_size.max(self.capabilities.device_max_send_size);
        if payload.location.on_device() || total > limit {
            return Err(invalid("send_in_place", format!("{total} bytes at {:?}", payload.location.class)));
        }
        let mut tx = self.link.tx.lock();
        if !matches!(tx.state, State::Connected(_)) || tx.closing {
            return self.unconnected(&mut tx).map(|()| Transfer::Busy);
        }
        if !tx.has_room() {
            self.settle(&mut tx);
            if !tx.has_room() {
                return Ok(Transfer::Busy);
            }
        }
        let frame = wire::message(total);
        let slices = [Slice::of(&frame), Slice::of(header), Slice::new(payload.address, payload.len)];
        // SAFETY: the payload is readable until completed, by the caller's promise.
        let written = unsafe { write_now(&self.shared, &self.link, &mut tx, &slices) };
        match written {
            Some(written) if written == overhead(total) => Ok(Transfer::Done),
            Some(written) => {
                let source = Source { address: payload.address, len: payload.len, token };
                tx.outbox.push_in_place(header, source, written);
                self.wait(&mut tx);
                Ok(Transfer::Started)
            }
            None => self.unconnected(&mut tx).map(|()| Transfer::Busy),
        }
    }

    unsafe fn register(&mut self, region: Region, access: Access) -> Result<Option<Registration>, Error> {
        if let Some(error) = self.link.peer.gone() {
            return Err(error);
        }
        if access != Access::RemoteWrite || region.location.on_device() {
            return Ok(None);
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.shared.regions.register(self.link.peer.rank, region) }
            .map(Some)
            .map_err(|error| Error::system(NAME, "cannot register memory", error))
    }

    unsafe fn put(&mut self, from: &Local<'_>, to: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        let (&Local::Run(local), Remote { handle, offset, blocks: None }) = (from, *to) else {
            return Err(invalid("put", "blocks are not supported"));
        };
        let target = Target::read(handle).ok_or_else(|| invalid("put", "the handle belongs to another transport"))?;
        let end = offset.checked_add(local.len as u64);
        if end.is_none_or(|end| end > target.len) || local.location.on_device() {
            let reason = format!("{} bytes at {offset} to {} registered bytes", local.len, target.len);
            return Err(invalid("put", reason));
        }
        let mut tx = self.link.tx.lock();
        if !matches!(tx.state, State::Connected(_)) || tx.closing {
            return self.unconnected(&mut tx).map(|()| Transfer::Busy);
        }
        if local.len == 0 {
            return Ok(Transfer::Done);
        }
        if tx.outbox.waiting() >= crate::link::WAITING_LIMIT {
            self.settle(&mut tx);
            return Ok(Transfer::Busy);
        }
        let source = Source { address: local.address, len: local.len, token };
        tx.outbox.push_put(source, target.key, offset, self.link.peer.confirms_puts());
        if gather::is_on() && !tx.full && tx.outbox.waiting() < WAITING_FRAGMENTS {
            tx.list(&self.link, &self.shared.request_queue);
            return Ok(Transfer::Started);
        }
        tx.flush(&self.link, &self.shared.request_queue);
        let done = tx.outbox.take_finished_one(token);
        tx.post_finished(&self.shared.request_queue);
        Ok(if done { Transfer::Done } else { Transfer::Started })
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        let mut tx = self.link.tx.lock();
        tx.close(&self.link, &self.shared.request_queue);
        tx.post_finished(&self.shared.request_queue);
    }
}

fn capabilities(settings: &Settings, route: &Route, share: usize, max_message: usize) -> Capabilities {
    let mut capabilities =
        Capabilities::send_only(settings.eager_limit.min(max_message), settings.max_send_size.min(max_message));
    capabilities.flags = Flags::SEND | Flags::PUT | Flags::SEND_IN_PLACE | Flags::DEVICE_FRAGMENTS;
    capabilities.exclusivity = EXCLUSIVITY;
    capabilities.inline_limit = capabilities.eager_limit.min(MAX_INLINE);
    capabilities.device_max_send_size = settings.device_max_send_size.min(max_message);
    capabilities.min_rdma_size = MIN_PUT;
    capabilities.latency = latency(route.loopback);
    capabilities.bandwidth = bandwidth(route.megabits) / share as f64;
    capabilities
}

fn latency(loopback: bool) -> Duration {
    Duration::from_micros(if loopback { 10 } else { 25 })
}

fn bandwidth(megabits: u32) -> f64 {
    f64::from(megabits.max(1)) * 1e6 / 8.0
}

/// Returns the estimated cost of a message over the fastest of these addresses, by the loopback interface or not.
pub(crate) fn expected(addresses: &[Address], loopback: bool) -> Option<Cost> {
    let megabits = addresses.iter().filter(|address| address.loopback == loopback).map(|address| address.megabits);
    megabits.max().map(|fastest| Cost { fixed: latency(loopback), bytes_per_second: HOST_COPIES * bandwidth(fastest) })
}
