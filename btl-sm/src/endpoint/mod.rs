//! The sending side of a link to one peer.

mod messages;
mod transfers;

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cableway_base::Rank;
use cableway_btl::{
    Access, Capabilities, Cost, DeviceMapping, Distance, Endpoint, Error, Flags, Fragment, FragmentKind, Local,
    Mapping, Mover, Offer, Operation, Region, Registration, Remote, RemoteHandle, Sent, Token, Transfer,
};
use cableway_common_cuda::{Exported, Location};

use self::messages::Owner;
use crate::NAME;
use crate::cost::{self, Pair, PeerDevice, Priced};
use crate::device_copy::Recent;
use crate::device_copy::handle::Handle as DeviceHandle;
use crate::distance;
use crate::handle::Handle;
use crate::inner::{Inner, Request};
use crate::offers::{self, Offers};
use crate::path::Path;
use crate::peer::{DeviceStatus, Peer, Status};
use crate::pool::{DEVICE_CHUNK, DEVICE_SMALL, EAGER, LARGE, OwnFragments, Reference};
use crate::ring::Corrupt;

/// The capabilities that device copies add.
const DEVICE_COPY: Flags =
    Flags::DEVICE_GET.union(Flags::DEVICE_PUT).union(Flags::DEVICE_TO_DEVICE).union(Flags::DEVICE_PAGE_LOCKED);

/// The capabilities that kernels add.
const KERNELS: Flags = Flags::DEVICE_STRIDED.union(Flags::DEVICE_PACKED);

/// See the module.
pub(crate) struct SmEndpoint {
    inner: Arc<Inner>,
    peer: Arc<Peer>,
    capabilities: Capabilities,
    /// The largest message that is copied into the fast box.
    box_limit: usize,
    path: Path,
    /// True if progress was requested to connect.
    asked: bool,
    owner: Arc<Owner>,
    /// Per class.
    fragments: [OwnFragments; 4],
    offers: Offers,
    priced: Priced,
    /// The last used device memory of both sides.
    recent: Recent,
    /// The distance to the peer, once it was asked for. Callers without one ask for each message.
    distance: OnceLock<Option<Distance>>,
}

impl SmEndpoint {
    pub(crate) fn new(inner: Arc<Inner>, peer: Arc<Peer>) -> Self {
        let settings = &inner.settings;
        let mut capabilities = Capabilities::send_only(settings.eager_limit, settings.max_send_size);
        capabilities.inline_limit = settings.short_limit;
        capabilities.device_max_send_size = settings.device_max_send_size;
        capabilities.min_rdma_size = settings.single_copy_limit;
        capabilities.get_limit = cost::SINGLE_COPY_PIECE;
        capabilities.put_limit = cost::SINGLE_COPY_PIECE;
        capabilities.latency = cost::LATENCY;
        capabilities.bandwidth = cost::SINGLE_COPY.bytes_per_second;
        if cfg!(any(feature = "cuda", feature = "rocm")) {
            capabilities.flags |= Flags::DEVICE_FRAGMENTS;
        }
        capabilities.flags |= Flags::OFFER;
        if settings.single_copy {
            capabilities.flags |= Flags::GET | Flags::PUT;
        }
        if settings.device_copy {
            capabilities.flags |= DEVICE_COPY;
            if settings.device_kernels {
                capabilities.flags |= KERNELS;
            }
        }
        let owner = Arc::new(Owner { inner: inner.clone(), reserved: AtomicU32::new(0) });
        let fragments = Default::default();
        let box_limit = settings.inline_limit;
        let offers = Offers::default();
        let priced = Priced::new(inner.devices.costs(), &settings.device_costs);
        let mut endpoint = SmEndpoint {
            inner,
            peer,
            capabilities,
            box_limit,
            path: Path::None,
            asked: false,
            owner,
            fragments,
            offers,
            priced,
            recent: Recent::default(),
            distance: OnceLock::new(),
        };
        endpoint.refresh();
        endpoint.limit_copies();
        endpoint
    }

    /// Drops capabilities that were refused.
    fn refresh(&mut self) {
        if self.peer.single_copy_refused.load(Relaxed) {
            self.capabilities.flags -= Flags::GET | Flags::PUT;
            self.capabilities.min_rdma_size = usize::MAX;
        }
        if self.capabilities.flags.contains(Flags::DEVICE_GET) && self.inner.device_copies.given_up(self.peer.rank) {
            self.capabilities.flags -= DEVICE_COPY | KERNELS;
        }
        if self.peer.device.get() == DeviceStatus::Refused {
            self.capabilities.flags -= Flags::DEVICE_FRAGMENTS;
        }
    }

    /// Adapts to the devices of a message, and to new facts about them.
    fn follow(&mut self, local: &Location, other: PeerDevice) {
        let pair = self.pair(local, other);
        if self.priced.follow(&self.inner.settings.device_costs, pair) {
            self.limit_copies();
        }
    }

    fn pair(&self, local: &Location, other: PeerDevice) -> Pair {
        Pair { device: local.device, other, turns: self.inner.device_copies.turns.are_taken() }
    }

    fn limit_copies(&mut self) {
        if self.inner.settings.device_copy {
            let sizes = self.priced.direct_sizes(&self.inner.settings.device_costs);
            (self.capabilities.device_min_rdma_size, self.capabilities.device_max_rdma_size) = sizes;
        }
    }

    #[cold]
    fn broken(&self, corrupt: Corrupt) -> Error {
        let error = self.peer.malformed(corrupt.to_string());
        self.inner.fail_from_outside(&self.peer, error.clone());
        error
    }

    #[cold]
    fn unavailable(&self, operation: &'static str, reason: impl Into<String>) -> Error {
        Error::Unavailable { btl: NAME, operation, reason: reason.into() }
    }
}

impl Endpoint for SmEndpoint {
    fn peer(&self) -> Rank {
        self.peer.rank
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn connect(&mut self) -> Result<(), Error> {
        self.connected().map(drop)
    }

    fn cost(&self, operation: Operation, location: &Location) -> Cost {
        if location.on_device() && self.capabilities.flags.contains(Flags::DEVICE_GET) {
            let costs = self.priced.costs(&self.inner.settings.device_costs);
            return match operation {
                Operation::Send => costs.staged,
                Operation::Get => costs.direct,
                Operation::Put => costs.push,
            };
        }
        match operation {
            Operation::Send => cost::SEND,
            Operation::Get | Operation::Put if self.capabilities.flags.contains(Flags::GET) => cost::SINGLE_COPY,
            Operation::Get | Operation::Put => Cost { fixed: Duration::MAX, bytes_per_second: f64::INFINITY },
        }
    }

    fn transfer_cost(&self, mover: Mover, local: &Location, remote: &RemoteHandle) -> Cost {
        let Some(handle) = DeviceHandle::view(remote) else { return self.cost(mover.operation(), local) };
        let other = self.other(local, handle);
        let costs = self.priced.of(&self.inner.settings.device_costs, self.pair(local, other));
        let copier = if mover.is_peer() { self.peer.rank } else { self.inner.job.rank };
        // Only the higher rank takes turns, and only on one device.
        if other == PeerDevice::Same && copier != self.inner.job.rank.min(self.peer.rank) {
            return costs.turn;
        }
        if mover.operation() == Operation::Get { costs.direct } else { costs.push }
    }

    fn waits_for_turn(&self, local: &Location, remote: &RemoteHandle, len: u64) -> bool {
        let turns = &self.inner.device_copies.turns;
        let Some(handle) = DeviceHandle::view(remote).filter(|_| turns.are_taken()) else { return false };
        let other = self.other(local, handle);
        let costs = self.priced.of(&self.inner.settings.device_costs, self.pair(local, other));
        let waits = other == PeerDevice::Same && costs.direct.exceeds(&costs.staged, len);
        if waits {
            turns.avoid();
        }
        waits
    }

    fn map(&mut self, handle: &RemoteHandle) -> Option<Mapping> {
        let remote = self.peer.link.get().and_then(|link| link.remote).filter(|_| self.peer.is_open())?;
        crate::blocks::map(remote.pid, handle).unwrap_or_else(|error| {
            log::debug!("{NAME}: registered memory of rank {} is not mapped: {error}", self.peer.rank);
            None
        })
    }

    fn exported(&self, handle: &RemoteHandle, access: Access, len: usize) -> Option<(Exported, u64)> {
        DeviceHandle::view(handle)?.resolve(access, 0, len).ok()
    }

    fn distance(&self) -> Option<Distance> {
        // Only a process whose memory can be copied from is known by its pid.
        let remote = self.peer.link.get()?.remote;
        *self.distance.get_or_init(|| remote.and_then(|remote| distance::to(remote.pid)))
    }

    #[inline]
    fn send_inline(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error> {
        let Path::Box(writer) = &mut self.path else { return self.send_in_fragment(header, payload) };
        if header.len() + payload.len() > self.box_limit {
            return self.send_in_fragment(header, payload);
        }
        if !self.peer.is_open() {
            return Err(self.peer.error());
        }
        let reserved = self.owner.reserved.load(Relaxed);
        match writer.push_inline(header, payload, u64::from(reserved)) {
            Ok(true) => Ok(Sent::Done),
            Ok(false) => Ok(Sent::Busy),
            Err(corrupt) => Err(self.broken(corrupt)),
        }
    }

    fn alloc(&mut self, len: usize, kind: FragmentKind) -> Result<Option<Fragment>, Error> {
        let limit = match kind {
            FragmentKind::Host | FragmentKind::Streamed => self.capabilities.max_send_size,
            FragmentKind::Device => self.capabilities.device_max_send_size,
        };
        if len > limit {
            return Err(self.unavailable("alloc", format!("{len} bytes are more than the {limit} of a fragment")));
        }
        if !self.connected()? || (kind == FragmentKind::Device && !self.device_ready()?) || !self.has_room()? {
            return Ok(None);
        }
        let (small, large) = match kind {
            FragmentKind::Host | FragmentKind::Streamed => (EAGER, LARGE),
            FragmentKind::Device => {
                let turns = self.inner.device_copies.turns.are_taken();
                if self.priced.catch_up(&self.inner.settings.device_costs, turns) {
                    self.limit_copies();
                }
                self.inner.device_copies.turns.avoid();
                (DEVICE_SMALL, DEVICE_CHUNK)
            }
        };
        let fits = self.inner.pool(small).is_some_and(|pool| len <= pool.size());
        let class = if fits { small } else { large };
        let Some(pool) = self.inner.pool(class) else { return Ok(None) };
        let Some(id) = pool.acquire(&mut self.fragments[usize::from(class)]) else { return Ok(None) };
        self.owner.reserved.fetch_add(1, Relaxed);
        let key = u64::from(Reference::new(class, id).bits());
        // SAFETY: the pool gave us this fragment alone; its memory is kept by `Inner`, which the owner keeps.
        let fragment = unsafe { Fragment::new(pool.payload(id), pool.size(), key, self.owner.clone()) };
        Ok(Some(match kind {
            // A device reads data from memory, so that it gains nothing from the sender's caches.
            // SAFETY: the fragments of these pools lie in whole lines of their own.
            FragmentKind::Streamed | FragmentKind::Device => unsafe {
                fragment.streamed_from(self.inner.settings.streaming_limit)
            },
            FragmentKind::Host => fragment,
        }))
    }

    fn send(&mut self, fragment: Fragment, len: usize) -> Result<(), Error> {
        if len > fragment.capacity() {
            return Err(self.unavailable("send", format!("{len} bytes are more than the fragment has")));
        }
        if !self.peer.is_open() {
            return Err(self.peer.error());
        }
        let cached = !fragment.is_streamed(len);
        let reference = Reference::from_bits(fragment.into_key() as u32);
        self.owner.reserved.fetch_sub(1, Relaxed);
        self.push(reference, len, cached)
    }

    unsafe fn register(&mut self, region: Region, access: Access) -> Result<Option<Registration>, Error> {
        if self.peer.status() >= Status::Departed {
            return Err(self.peer.error());
        }
        self.refresh();
        if region.location.on_device() {
            self.follow(&region.location, PeerDevice::Unknown);
            if !self.capabilities.flags.contains(Flags::DEVICE_GET) {
                return Ok(None);
            }
            let copies = &self.inner.device_copies;
            let again = self.recent.export(&region, access);
            let handle = again.or_else(|| copies.export(&region, access, self.peer.rank, &mut self.recent));
            return Ok(handle.map(|handle| Registration::new(handle, None)));
        }
        if !self.capabilities.flags.contains(Flags::GET) {
            return Ok(None);
        }
        let handle = Handle::new(region.address, region.len, access);
        let handle = self.inner.blocks.handle(handle, region.address, region.len);
        Ok(handle.map(|handle| Registration::new(handle, None)))
    }

    fn map_device(
        &mut self,
        handle: &RemoteHandle,
        access: Access,
        into: &Location,
    ) -> Result<Option<DeviceMapping>, Error> {
        let Some(handle) = DeviceHandle::view(handle) else { return Ok(None) };
        self.map_on_device((handle, access), into)
    }

    unsafe fn get(&mut self, to: &Local<'_>, from: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        if let Some(handle) = DeviceHandle::view(from.handle) {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_on_device("get", to, (handle, Access::RemoteRead, from), token) };
        }
        let (local, remote, address) = self.resolve("get", to, from, Access::RemoteRead)?;
        // SAFETY: the caller keeps the local memory valid and untouched.
        let result = unsafe { remote.read(local.address, address, local.len) };
        self.copied("get", result)
    }

    unsafe fn put(&mut self, from: &Local<'_>, to: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        if let Some(handle) = DeviceHandle::view(to.handle) {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_on_device("put", from, (handle, Access::RemoteWrite, to), token) };
        }
        let (local, remote, address) = self.resolve("put", from, to, Access::RemoteWrite)?;
        // SAFETY: the caller keeps the local memory valid and unwritten.
        let result = unsafe { remote.write(local.address, address, local.len) };
        self.copied("put", result)
    }

    fn offer(&mut self) -> Option<Offer> {
        let link = self.peer.link.get()?;
        self.offers.make(&self.inner.memory, |index| self.inner.layout.offer(usize::from(link.index), index))
    }

    fn claim(&mut self, offer: Offer) -> bool {
        let Some(link) = self.peer.link.get() else { return false };
        offers::claim(&link.memory, |index| link.layout.offer(usize::from(link.our_index), index), offer)
    }

    fn withdraw(&mut self, offer: Offer) -> Result<bool, Error> {
        let Some(link) = self.peer.link.get() else { return Ok(false) };
        let place = |index| self.inner.layout.offer(usize::from(link.index), index);
        self.offers.withdraw(&self.inner.memory, place, offer).map_err(|corrupt| self.broken(corrupt))
    }
}

impl Drop for SmEndpoint {
    fn drop(&mut self) {
        for (class, own) in (0..).zip(&mut self.fragments) {
            if let Some(pool) = self.inner.pool(class) {
                pool.take_back(own);
            }
        }
        self.inner.request(Request::Close(self.peer.clone()));
    }
}
