//! The sending side of a link to one peer.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use cableway_base::Rank;
use cableway_btl::{
    Access, Capabilities, Cost, Endpoint, Error, Flags, Fragment, FragmentKind, FragmentOwner, Mover, Offer, Operation,
    Packed, Region, Registration, RemoteHandle, Sent, Token, Transfer,
};
use cableway_common_cuda::{Location, Strided};

use crate::NAME;
use crate::cost::{self, Other, Priced};
use crate::device_copy::handle::Handle as DeviceHandle;
use crate::device_copy::{NotBegun, Recent, What};
use crate::inner::{Inner, Request};
use crate::offers::{self, Offers};
use crate::path::{FifoPath, Path};
use crate::peer::{DeviceStatus, Peer, Status};
use crate::pool::{DEVICE_CHUNK, DEVICE_SMALL, EAGER, LARGE, Own, Reference};
use crate::ring::fast_box::Writer;
use crate::ring::{Corrupt, fifo};
use crate::segment::BoxMemory;
use crate::single_copy::{self, CopyError, Handle, Remote};

/// What is there where devices copy between the two processes.
const DEVICE_COPY: Flags = Flags::DEVICE_GET.union(Flags::DEVICE_PUT).union(Flags::DEVICE_TO_DEVICE);

/// What kernels do besides.
const KERNELS: Flags = Flags::DEVICE_STRIDED.union(Flags::DEVICE_PACKED);

/// See the module.
pub(crate) struct SmEndpoint {
    inner: Arc<Inner>,
    peer: Arc<Peer>,
    capabilities: Capabilities,
    /// Largest message that is copied into the fast box.
    box_limit: usize,
    path: Path,
    /// Progress has been asked to connect.
    asked: bool,
    owner: Arc<Owner>,
    /// Per class.
    fragments: [Own; 4],
    offers: Offers,
    priced: Priced,
    /// Device memory of the peer's and ours that was met last.
    recent: Recent,
}

/// Takes back fragments that are dropped unsent, and knows how many may still be sent.
struct Owner {
    inner: Arc<Inner>,
    /// Fragments handed out and not yet sent: each has its place in the ring.
    reserved: AtomicU32,
}

impl FragmentOwner for Owner {
    fn give_back(&self, _memory: NonNull<u8>, key: u64) {
        self.inner.give_back(Reference::from_bits(key as u32));
        self.reserved.fetch_sub(1, Release);
    }
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
        if cfg!(feature = "cuda") {
            capabilities.flags |= Flags::DEVICE_FRAGMENTS;
        }
        if settings.single_copy {
            capabilities.flags |= Flags::GET | Flags::PUT | Flags::SYNCHRONOUS | Flags::OFFER;
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
        };
        endpoint.refresh();
        endpoint.limit_copies();
        endpoint
    }

    /// Drops the capabilities that turned out refused.
    fn refresh(&mut self) {
        if self.peer.single_copy_refused.load(Relaxed) {
            self.capabilities.flags -= Flags::GET | Flags::PUT | Flags::SYNCHRONOUS | Flags::OFFER;
            self.capabilities.min_rdma_size = usize::MAX;
        }
        if self.capabilities.flags.contains(Flags::DEVICE_GET) && self.inner.device_copies.given_up(self.peer.rank) {
            self.capabilities.flags -= DEVICE_COPY | KERNELS;
        }
        if self.peer.device.get() == DeviceStatus::Refused {
            self.capabilities.flags -= Flags::DEVICE_FRAGMENTS;
        }
    }

    /// Between which devices messages go decides how, as does what has become known of them.
    fn follow(&mut self, local: &Location, other: Other) {
        if self.priced.follow(&self.inner.settings.device_costs, local.device, other) {
            self.limit_copies();
        }
    }

    fn limit_copies(&mut self) {
        if self.inner.settings.device_copy {
            let sizes = self.priced.direct_sizes(&self.inner.settings.device_costs);
            (self.capabilities.device_min_rdma_size, self.capabilities.device_max_rdma_size) = sizes;
        }
    }

    /// Where the memory is that the peer has named.
    fn other(&self, local: &Location, handle: &DeviceHandle) -> Other {
        match self.inner.device_copies.on_one_device(local, handle) {
            true => Other::Same,
            false => Other::Device(*handle.device()),
        }
    }

    /// Whether messages can be sent now; begins to connect if they cannot.
    fn connected(&mut self) -> Result<bool, Error> {
        match self.peer.status() {
            Status::Departed | Status::Failed => return Err(self.peer.error()),
            Status::Idle | Status::Connecting => {
                if !std::mem::replace(&mut self.asked, true) {
                    self.inner.request(Request::Connect(self.peer.clone()));
                }
            }
            Status::Open => {
                if let (Path::None, Some(link)) = (&self.path, self.peer.link.get()) {
                    self.path = Path::Fifo(FifoPath::new(link.clone()), 0);
                    self.refresh();
                }
                return Ok(!matches!(self.path, Path::None));
            }
        }
        Ok(false)
    }

    /// Whether one more message could be sent besides those whose place is reserved.
    fn has_room(&mut self) -> Result<bool, Error> {
        let reserved = self.owner.reserved.load(Relaxed);
        let room = match &mut self.path {
            Path::None => Ok(false),
            Path::Fifo(path, _) => Ok(path.has_room(reserved as usize + 1)),
            Path::Box(writer) => writer.has_room(u64::from(reserved) + 1),
        };
        room.map_err(|corrupt| self.broken(corrupt))
    }

    /// Sends a fragment that `acquire` yielded, of `len` bytes.
    fn push(&mut self, reference: Reference, len: usize) -> Result<(), Error> {
        let (Some(link), Some(pool)) = (self.peer.link.get(), self.inner.pool(reference.class())) else {
            return Err(self.unavailable("send", "the fragment is none of this endpoint's"));
        };
        let own = &mut self.fragments[usize::from(reference.class())];
        let about = pool.prepare(reference.id(), len, link.index, own);
        let pushed = match &mut self.path {
            Path::None => Err(Corrupt("a fragment was sent before the connection stood")),
            Path::Fifo(path, messages) => {
                *messages += 1;
                pool.write_header(reference.id(), about);
                path.push(fifo::Kind::Fragment, reference.bits())
            }
            Path::Box(writer) => writer.push_fragment(reference.bits(), about.to_bits()).and_then(|pushed| {
                if pushed { Ok(()) } else { Err(Corrupt("a fast box is full in spite of a reserved slot")) }
            }),
        };
        pool.tidy(own);
        pushed.map_err(|corrupt| self.broken(corrupt))?;
        self.consider_box();
        Ok(())
    }

    /// Moves on to a fast box where the peer has earned one. The record that says so is the last in the FIFO.
    fn consider_box(&mut self) {
        let Path::Fifo(path, messages) = &mut self.path else { return };
        let reserved = self.owner.reserved.load(Relaxed) as usize;
        let earned = *messages >= self.inner.settings.box_threshold;
        // Fragments handed out keep their places, in the box as in the FIFO.
        if !earned || !path.has_room(reserved + 1) || reserved > self.inner.layout.box_slots / 2 {
            return;
        }
        let Some(number) = self.inner.give_box() else {
            *messages = 0;
            return;
        };
        let layout = &self.inner.layout;
        if path.push(fifo::Kind::FastBox, number).is_ok() {
            let memory = BoxMemory::new(&self.inner.memory, layout.fast_box(number as usize), layout.box_slots);
            self.path = Path::Box(Writer::new(memory));
        }
    }

    /// `send_inline` without a fast box, or of what is too long for it: an eager fragment carries the bytes.
    fn send_in_fragment(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error> {
        let limit = self.capabilities.inline_limit;
        if header.len() + payload.len() > limit {
            return Err(
                self.unavailable("send_inline", format!("the message is longer than the {limit} bytes allowed"))
            );
        }
        if !self.connected()? || !self.has_room()? {
            return Ok(Sent::Busy);
        }
        let Some(pool) = self.inner.pool(EAGER) else { return Ok(Sent::Busy) };
        let Some(id) = pool.acquire(&mut self.fragments[usize::from(EAGER)]) else { return Ok(Sent::Busy) };
        let memory = pool.payload(id);
        // SAFETY: the fragment is ours alone until pushed, and has room for `short_limit` bytes.
        unsafe {
            memory.copy_from_nonoverlapping(NonNull::from(header).cast(), header.len());
            memory.add(header.len()).copy_from_nonoverlapping(NonNull::from(payload).cast(), payload.len());
        }
        self.push(Reference::new(EAGER, id), header.len() + payload.len())?;
        Ok(Sent::Done)
    }

    /// Whether device fragments can be sent now.
    fn device_ready(&mut self) -> Result<bool, Error> {
        match self.peer.device.get() {
            DeviceStatus::Ready => Ok(true),
            DeviceStatus::Asked => Ok(false),
            DeviceStatus::Unasked => {
                if self.inner.device_segment().is_none() {
                    self.peer.device.answered(false);
                } else {
                    self.peer.device.ask();
                    self.inner.request(Request::OfferDevice(self.peer.clone()));
                }
                Ok(false)
            }
            DeviceStatus::Refused => {
                self.refresh();
                Err(self.unavailable("alloc", "the two processes cannot share memory for devices"))
            }
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

    /// The peer's memory, and an address in it that was checked against the handle.
    fn resolve(
        &mut self,
        operation: &'static str,
        local: &Region,
        handle: &RemoteHandle,
        access: Access,
        offset: u64,
    ) -> Result<(Remote, u64), Error> {
        if self.peer.status() == Status::Failed {
            return Err(self.peer.error());
        }
        self.refresh();
        let remote = self.peer.link.get().and_then(|link| link.remote);
        let Some(remote) = remote.filter(|_| self.capabilities.flags.contains(Flags::GET)) else {
            return Err(self.unavailable(operation, "single copy does not work with this peer"));
        };
        if local.location.on_device() {
            return Err(self.unavailable(operation, "the local memory is a device's"));
        }
        let address = Handle::resolve(handle, access, offset, local.len);
        Ok((remote, address.map_err(|reason| self.unavailable(operation, reason))?))
    }

    /// # Safety
    /// As [`DeviceCopies::start`](crate::device_copy::DeviceCopies::start).
    unsafe fn copy_on_device(
        &mut self,
        operation: &'static str,
        local: &Region,
        remote: (&DeviceHandle, Access),
        what: What<'_>,
        token: Token,
    ) -> Result<Transfer, Error> {
        if self.peer.status() == Status::Failed {
            return Err(self.peer.error());
        }
        if !self.capabilities.flags.contains(Flags::DEVICE_GET) {
            return Err(self.unavailable(operation, "devices do not copy between the two processes"));
        }
        self.follow(&local.location, self.other(&local.location, remote.0));
        // SAFETY: the caller's promise.
        let started =
            unsafe { self.inner.device_copies.start((self.peer.rank, &mut self.recent), local, remote, what, token) };
        started.map_err(|NotBegun { reason, wanted }| {
            if let Some(wanted) = wanted {
                self.inner.request(Request::Ask(self.peer.clone(), wanted));
            }
            self.refresh();
            self.unavailable(operation, reason)
        })
    }

    /// # Safety
    /// As [`DeviceCopies::start`](crate::device_copy::DeviceCopies::start).
    unsafe fn copy_blocks(
        &mut self,
        operation: &'static str,
        (local, ours): (&Region, &Strided),
        (remote, theirs): (&RemoteHandle, &Strided),
        len: u64,
        (access, token): (Access, Token),
    ) -> Result<Transfer, Error> {
        let Some(handle) = DeviceHandle::view(remote) else {
            return Err(self.unavailable(operation, "the remote memory is no device's"));
        };
        let blocks = What::Blocks { ours, theirs, len };
        // SAFETY: the caller's promise.
        unsafe { self.copy_on_device(operation, local, (handle, access), blocks, token) }
    }

    /// # Safety
    /// As [`DeviceCopies::start`](crate::device_copy::DeviceCopies::start).
    unsafe fn copy_packed(
        &mut self,
        operation: &'static str,
        local: &Packed<'_>,
        (remote, offset): (&RemoteHandle, u64),
        (access, token): (Access, Token),
    ) -> Result<Transfer, Error> {
        let Some(handle) = DeviceHandle::view(remote) else {
            return Err(self.unavailable(operation, "the remote memory is no device's"));
        };
        let Packed { user: address, spread, position, len, location, order } = *local;
        let region = Region { address, len, location, order };
        let packed = What::Packed { spread, position, offset };
        // SAFETY: the caller's promise.
        unsafe { self.copy_on_device(operation, &region, (handle, access), packed, token) }
    }

    fn copied(&mut self, operation: &'static str, result: Result<(), CopyError>) -> Result<Transfer, Error> {
        match result {
            Ok(()) => Ok(Transfer::Done),
            Err(error) if error.is_death() => {
                let error = self.peer.gone("it died");
                self.inner.fail_from_outside(&self.peer, error.clone());
                Err(error)
            }
            Err(error) => {
                if matches!(&error, CopyError::System(error) if error.raw_os_error() != Some(libc::EPERM)) {
                    return Err(self.unavailable(operation, error.to_string()));
                }
                single_copy::explain(&error);
                self.peer.single_copy_checked(false);
                self.refresh();
                Err(self.unavailable(operation, error.to_string()))
            }
        }
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
        let costs = self.priced.of(&self.inner.settings.device_costs, local.device, other);
        let copier = if mover.is_peer() { self.peer.rank } else { self.inner.job.rank };
        // Only who would come second takes turns, and only on one device.
        if other == Other::Same && copier != self.inner.job.rank.min(self.peer.rank) {
            return costs.turn;
        }
        if mover.operation() == Operation::Get { costs.direct } else { costs.push }
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
            FragmentKind::Host => self.capabilities.max_send_size,
            FragmentKind::Device => self.capabilities.device_max_send_size,
        };
        if len > limit {
            return Err(self.unavailable("alloc", format!("{len} bytes are more than the {limit} of a fragment")));
        }
        if !self.connected()? || (kind == FragmentKind::Device && !self.device_ready()?) || !self.has_room()? {
            return Ok(None);
        }
        let (small, large) = match kind {
            FragmentKind::Host => (EAGER, LARGE),
            FragmentKind::Device => {
                if self.priced.catch_up(&self.inner.settings.device_costs) {
                    self.limit_copies();
                }
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
            // SAFETY: the fragments of these pools lie in whole lines of their own.
            FragmentKind::Host => unsafe { fragment.streamed_from(self.inner.settings.streaming_limit) },
            FragmentKind::Device => fragment,
        }))
    }

    fn send(&mut self, fragment: Fragment, len: usize) -> Result<(), Error> {
        if len > fragment.capacity() {
            return Err(self.unavailable("send", format!("{len} bytes are more than the fragment has")));
        }
        if !self.peer.is_open() {
            return Err(self.peer.error());
        }
        let reference = Reference::from_bits(fragment.into_key() as u32);
        self.owner.reserved.fetch_sub(1, Relaxed);
        self.push(reference, len)
    }

    unsafe fn register(&mut self, region: Region, access: Access) -> Result<Option<Registration>, Error> {
        if self.peer.status() >= Status::Departed {
            return Err(self.peer.error());
        }
        self.refresh();
        if region.location.on_device() {
            self.follow(&region.location, Other::Unknown);
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
        let handle = Handle::new(region.address, region.len, access).to_remote();
        Ok(handle.map(|handle| Registration::new(handle, None)))
    }

    unsafe fn get(&mut self, local: Region, from: &RemoteHandle, offset: u64, token: Token) -> Result<Transfer, Error> {
        if let Some(handle) = DeviceHandle::view(from) {
            // SAFETY: the caller's promise.
            return unsafe {
                self.copy_on_device("get", &local, (handle, Access::RemoteRead), What::Run(offset), token)
            };
        }
        let (remote, address) = self.resolve("get", &local, from, Access::RemoteRead, offset)?;
        // SAFETY: the caller keeps `local` valid and untouched.
        let result = unsafe { remote.read(local.address, address, local.len) };
        self.copied("get", result)
    }

    unsafe fn put(&mut self, local: Region, to: &RemoteHandle, offset: u64, token: Token) -> Result<Transfer, Error> {
        if let Some(handle) = DeviceHandle::view(to) {
            // SAFETY: the caller's promise.
            return unsafe {
                self.copy_on_device("put", &local, (handle, Access::RemoteWrite), What::Run(offset), token)
            };
        }
        let (remote, address) = self.resolve("put", &local, to, Access::RemoteWrite, offset)?;
        // SAFETY: the caller keeps `local` valid and unwritten.
        let result = unsafe { remote.write(local.address, address, local.len) };
        self.copied("put", result)
    }

    unsafe fn get_strided(
        &mut self,
        (local, ours): (Region, &Strided),
        from: (&RemoteHandle, &Strided),
        len: u64,
        token: Token,
    ) -> Result<Transfer, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_blocks("get_strided", (&local, ours), from, len, (Access::RemoteRead, token)) }
    }

    unsafe fn put_strided(
        &mut self,
        (local, ours): (Region, &Strided),
        to: (&RemoteHandle, &Strided),
        len: u64,
        token: Token,
    ) -> Result<Transfer, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_blocks("put_strided", (&local, ours), to, len, (Access::RemoteWrite, token)) }
    }

    unsafe fn get_packed(
        &mut self,
        local: &Packed<'_>,
        from: &RemoteHandle,
        offset: u64,
        token: Token,
    ) -> Result<Transfer, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_packed("get_packed", local, (from, offset), (Access::RemoteRead, token)) }
    }

    unsafe fn put_packed(
        &mut self,
        local: &Packed<'_>,
        to: &RemoteHandle,
        offset: u64,
        token: Token,
    ) -> Result<Transfer, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_packed("put_packed", local, (to, offset), (Access::RemoteWrite, token)) }
    }

    fn offer(&mut self) -> Option<Offer> {
        let link = self.peer.link.get()?;
        self.offers.offer(&self.inner.memory, |index| self.inner.layout.offer(usize::from(link.index), index))
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
