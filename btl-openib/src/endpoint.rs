//! The sending side of a link, which `pml` uses.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_base::Rank;
use cableway_btl::{
    Access, Capabilities, Cost, Endpoint, Error, Flags, Fragment, FragmentKind, FragmentOwner, Local, Operation,
    Region, Registration, Remote, RemoteHandle, Sent, Token, Transfer,
};
use cableway_common_cuda::Location;
use parking_lot::Mutex;
use slab::Slab;

use crate::card::Address;
use crate::cost::{HOST_COPIES, LATENCY};
use crate::gpudirect::TransferMemory;
use crate::link::{COPIED, Link, State, Tx};
use crate::memory::{self, Buffer};
use crate::shared::Shared;
use crate::verbs::{self, Data, Gather, Work};
use crate::work::Owner;
use crate::{NAME, invalid, registration};

/// The priority of the best network: below shared memory, above tcp.
const EXCLUSIVITY: u32 = 512;

/// The flags if the device can access device memory.
const GPUDIRECT: Flags = Flags::DEVICE_PUT.union(Flags::DEVICE_GET).union(Flags::DEVICE_DIRECT);

/// An endpoint, connected or not.
pub(crate) struct OpenibEndpoint {
    // The queue pair drops before the buffers that it uses.
    link: Arc<Link>,
    fragments: Arc<Fragments>,
    capabilities: Capabilities,
    shared: Arc<Shared>,
}

/// Allocated fragments.
struct Fragments {
    link: Arc<Link>,
    /// The index of the queue pair that will send it.
    out: Mutex<Slab<(Buffer, usize)>>,
}

impl FragmentOwner for Fragments {
    fn give_back(&self, _memory: NonNull<u8>, key: u64) {
        if let Some((_, qp)) = self.redeem(key) {
            self.link.tx.lock().works[qp].reserved -= 1;
        }
    }
}

impl Fragments {
    fn redeem(&self, key: u64) -> Option<(Buffer, usize)> {
        self.out.lock().try_remove(usize::try_from(key).ok()?)
    }
}

impl OpenibEndpoint {
    /// Creates the endpoint on the network at index `place` among those of both processes.
    pub(crate) fn new(shared: Arc<Shared>, link: Arc<Link>, peer: &Address, place: u8) -> Self {
        let settings = &shared.settings;
        let longest = settings.max_send_size.min(peer.max_message as usize);
        let mut capabilities = Capabilities::send_only(settings.eager_limit.min(longest), longest);
        capabilities.flags |= Flags::PUT | Flags::GET | Flags::DEVICE_FRAGMENTS | Flags::FAILOVER;
        capabilities.exclusivity = EXCLUSIVITY - u32::from(place);
        capabilities.inline_limit = COPIED.min(longest);
        capabilities.min_rdma_size = settings.min_rdma_size;
        // One request for each transfer. The caller divides longer ones.
        let most = (shared.port.facts.max_message as usize).clamp(1 << 20, 1 << 30);
        capabilities.get_limit = most;
        capabilities.put_limit = most;
        capabilities.latency = LATENCY;
        capabilities.bandwidth = shared.port.facts.megabits() as f64 * 1e6 / 8.0;
        if !settings.get || shared.port.reads == 0 || peer.reads == 0 {
            capabilities.flags -= Flags::GET;
        }
        // A NIC accesses device memory on either side: one copy of any size.
        if shared.gpudirect.is_usable() {
            capabilities.flags |= GPUDIRECT;
            if !capabilities.flags.contains(Flags::GET) {
                capabilities.flags -= Flags::DEVICE_GET;
            }
            capabilities.device_min_rdma_size = 1;
            capabilities.device_max_rdma_size = settings.direct.limit;
            capabilities.device_rdma_limit = most;
        }
        let fragments = Arc::new(Fragments { link: Arc::clone(&link), out: Mutex::default() });
        OpenibEndpoint { link, fragments, capabilities, shared }
    }

    /// Checks that the link can send. Starts to connect if necessary.
    #[inline]
    fn is_open(&self, tx: &mut Tx) -> Result<bool, Error> {
        if matches!(tx.state, State::Connected(_)) && !tx.closing {
            return Ok(true);
        }
        self.unconnected(tx).map(|()| false)
    }

    #[cold]
    fn unconnected(&self, tx: &mut Tx) -> Result<(), Error> {
        let link = &self.link;
        match &tx.state {
            State::Broken(_, error) | State::Gone(error, _) => Err(error.clone()),
            State::Left { .. } => Err(link.left()),
            _ if tx.closing => Err(link.error("the link was closed here")),
            State::Connected(_) | State::Connecting => Ok(()),
            State::Idle if self.shared.lost.load(Ordering::Relaxed) => {
                Err(link.unreachable("the device here failed".to_owned()))
            }
            State::Idle => {
                tx.state = State::Connecting;
                self.shared.command_queue.connect(link);
                Ok(())
            }
        }
    }

    /// Returns the queue pair that can send a message of `len` bytes now.
    #[inline]
    fn may_send(&self, tx: &mut Tx, len: usize) -> Result<Option<usize>, Error> {
        if !self.is_open(tx)? {
            return Ok(None);
        }
        tx.has_room(&self.shared, len).map_err(|reason| self.break_off(tx, reason))
    }

    #[cold]
    fn break_off(&self, tx: &mut Tx, reason: String) -> Error {
        let error = Error::Malformed { btl: NAME, peer: self.link.rank, reason };
        self.give_up(tx, error)
    }

    /// Fails the link; progress reports it.
    #[cold]
    fn give_up(&self, tx: &mut Tx, error: Error) -> Error {
        tx.give_up(&self.shared, &self.link, error.clone());
        error
    }

    /// Takes a buffer for a message. Without one the link must fail rather than report that this side has left.
    /// has left.
    #[inline]
    fn take(&self, tx: &mut Tx, len: usize) -> Result<Buffer, Error> {
        self.shared.pool.take(len).map_err(|error| self.give_up(tx, error))
    }

    /// Returns this side's memory, registered.
    ///
    /// # Safety
    /// The memory stays valid while the registration is held.
    ///
    /// # Errors
    /// The reason why the memory cannot be registered.
    unsafe fn hold(&self, region: &Region, access: verbs::Access) -> Result<TransferMemory, String> {
        if region.location.on_device() {
            // SAFETY: the caller's promise.
            return unsafe { self.shared.gpudirect.get(region, access) };
        }
        // SAFETY: as above.
        let made = unsafe { self.shared.registrations.get(region.address, region.len, access) };
        made.map(TransferMemory::Host).map_err(|error| {
            let refused = memory::refused(region.len, error).to_string();
            cableway_base::warn_once("openib/register", || format!("{refused}; such messages are sent in fragments"));
            refused
        })
    }

    /// Returns the flags that still hold after a registration of device memory was refused.
    #[cold]
    fn flags_after_refusal(&self, len: usize, reason: &str) -> Flags {
        log::debug!("{NAME}: {len} bytes of device memory are not registered: {reason}");
        let flags = self.capabilities.flags;
        if self.shared.gpudirect.is_usable() { flags } else { flags - GPUDIRECT }
    }

    /// `put` and `get`.
    ///
    /// # Safety
    /// As for `put` and `get`.
    unsafe fn transfer(
        &mut self,
        local: Region,
        access: verbs::Access,
        work: impl FnOnce(u64, u32) -> Work<'static>,
        (handle, offset): (&RemoteHandle, u64),
        token: Token,
    ) -> Result<Transfer, Error> {
        let (address, key) = registration::target(handle, offset, local.len)?;
        if local.len > self.capabilities.put_limit {
            return Err(invalid("a transfer", format!("{} bytes are more than the device moves at once", local.len)));
        }
        let mut tx = self.link.tx.lock();
        // Large transfers use the queue pair of large messages, where they delay the fewest others.
        let qp = tx.works.len() - 1;
        if !self.is_open(&mut tx)? || !tx.works[qp].has_room(&self.shared.port) {
            return Ok(Transfer::Busy);
        }
        if local.len == 0 {
            return Ok(Transfer::Done);
        }
        // SAFETY: the caller keeps the memory valid until completion.
        let memory = match unsafe { self.hold(&local, access) } {
            Ok(memory) => memory,
            Err(reason) => {
                if local.location.on_device() {
                    self.capabilities.flags = self.flags_after_refusal(local.len, &reason);
                }
                return Err(Error::Unavailable { btl: NAME, operation: "registration", reason });
            }
        };
        let data = Gather { address: local.address, len: local.len, key: memory.region().local_key() };
        let data = Data::Registered(data);
        let owner = Owner::Transfer { token, _memory: memory };
        // SAFETY: the registration lives with its owner, the memory as the caller promises.
        match unsafe { tx.start(&self.shared, &self.link, qp, work(address, key), data, true, owner) } {
            Ok(()) => Ok(Transfer::Started),
            Err(error) => Err(self.give_up(&mut tx, error)),
        }
    }
}

impl Endpoint for OpenibEndpoint {
    fn peer(&self) -> Rank {
        self.link.rank
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn connect(&mut self) -> Result<(), Error> {
        let mut tx = self.link.tx.lock();
        self.is_open(&mut tx).map(drop)
    }

    fn cost(&self, operation: Operation, location: &Location) -> Cost {
        let copies = if location.on_device() { 0.7 } else { HOST_COPIES };
        let (fixed, rate) = match operation {
            Operation::Send => (self.capabilities.latency, copies * self.capabilities.bandwidth),
            // Memory that peers write to is registered for each transfer, which takes long for device memory.
            Operation::Put if location.on_device() => (100 * self.capabilities.latency, self.capabilities.bandwidth),
            // A round trip of headers, and the registration.
            Operation::Put | Operation::Get => (10 * self.capabilities.latency, self.capabilities.bandwidth),
        };
        Cost { fixed, bytes_per_second: rate }
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("{NAME}: {}", self.shared.gpudirect.describe())]
    }

    #[inline]
    fn send_inline(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error> {
        let total = header.len() + payload.len();
        if total > self.capabilities.inline_limit {
            return Err(invalid("send_inline", format!("{total} bytes are more than the inline limit")));
        }
        let mut tx = self.link.tx.lock();
        if let Some(sent) = tx.send_at_once(&self.shared, &self.link, header, payload) {
            return match sent {
                Ok(()) => Ok(Sent::Done),
                Err(error) => Err(self.give_up(&mut tx, error)),
            };
        }
        let Some(qp) = self.may_send(&mut tx, total)? else { return Ok(Sent::Busy) };
        let inline = match &tx.state {
            State::Connected(connection) => connection.qps[qp].pair.inline(),
            _ => return Ok(Sent::Busy),
        };
        let sent = if total <= inline {
            tx.send_copy(&self.shared, &self.link, qp, header, payload)
        } else {
            let buffer = self.take(&mut tx, total)?;
            let address = buffer.address().as_ptr();
            // SAFETY: the buffer is ours alone and holds at least `total` bytes.
            unsafe {
                address.copy_from_nonoverlapping(header.as_ptr(), header.len());
                address.add(header.len()).copy_from_nonoverlapping(payload.as_ptr(), payload.len());
            }
            tx.send(&self.shared, &self.link, qp, buffer, total).map_err(|(error, _buffer)| error)
        };
        match sent {
            Ok(()) => Ok(Sent::Done),
            Err(error) => Err(self.give_up(&mut tx, error)),
        }
    }

    fn alloc(&mut self, len: usize, kind: FragmentKind) -> Result<Option<Fragment>, Error> {
        let longest = match kind {
            FragmentKind::Host | FragmentKind::Streamed => self.capabilities.max_send_size,
            FragmentKind::Device => self.capabilities.device_max_send_size,
        };
        if len > longest {
            return Err(invalid("alloc", format!("{len} bytes where a fragment has at most {longest}")));
        }
        let mut tx = self.link.tx.lock();
        let Some(qp) = self.may_send(&mut tx, len)? else { return Ok(None) };
        let State::Connected(connection) = &tx.state else { return Ok(None) };
        let longest = longest.min(connection.qps[qp].size);
        let buffer = self.take(&mut tx, len)?;
        tx.works[qp].reserved += 1;
        drop(tx);
        let (memory, capacity) = (buffer.address(), buffer.capacity().min(longest));
        let key = self.fragments.out.lock().insert((buffer, qp)) as u64;
        let owner: Arc<dyn FragmentOwner> = Arc::clone(&self.fragments) as _;
        // SAFETY: the buffer is out of the pool, and reachable only through `key`, until it is sent or given back.
        Ok(Some(unsafe { Fragment::new(memory, capacity, key, owner) }))
    }

    fn send(&mut self, fragment: Fragment, len: usize) -> Result<(), Error> {
        if len > fragment.capacity() {
            return Err(invalid("send", format!("{len} bytes of a fragment with {}", fragment.capacity())));
        }
        let key = fragment.into_key();
        let (buffer, qp) =
            self.fragments.redeem(key).ok_or_else(|| invalid("send", "the fragment is of another link"))?;
        let mut tx = self.link.tx.lock();
        tx.works[qp].reserved -= 1;
        // The link was connected when the fragment was allocated. Its present state decides what happens to the
        // message.
        if matches!(tx.state, State::Broken(..) | State::Gone(..)) {
            let failure = tx.failure();
            return if tx.keep(buffer, len) { Ok(()) } else { Err(failure.unwrap_or_else(|| self.link.left())) };
        }
        if !self.is_open(&mut tx)? {
            return Err(self.link.error("there is no connection"));
        }
        match tx.send(&self.shared, &self.link, qp, buffer, len) {
            Ok(()) => Ok(()),
            // The message was accepted with its fragment, so it belongs to the remains of the broken connection.
            Err((error, buffer)) => {
                let error = self.give_up(&mut tx, error);
                if tx.keep(buffer, len) { Ok(()) } else { Err(error) }
            }
        }
    }

    unsafe fn register(&mut self, region: Region, access: Access) -> Result<Option<Registration>, Error> {
        if region.location.on_device() && !self.capabilities.flags.contains(Flags::DEVICE_DIRECT) {
            return Ok(None);
        }
        let access = match access {
            Access::RemoteRead => verbs::Access::RemoteRead,
            Access::RemoteWrite => verbs::Access::RemoteWrite,
        };
        // SAFETY: the caller keeps the region valid while it is registered.
        let memory = match unsafe { self.hold(&region, access) } {
            Ok(memory) => memory,
            Err(reason) => {
                if region.location.on_device() {
                    self.capabilities.flags = self.flags_after_refusal(region.len, &reason);
                }
                return Ok(None);
            }
        };
        let handle = registration::handle(memory.region(), region.address, region.len);
        Ok(handle.map(|handle| Registration::new(handle, Some(Box::new(memory)))))
    }

    unsafe fn get(&mut self, to: &Local<'_>, from: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        let (local, handle, offset) = runs("get", to, from)?;
        let work = |address, key| Work::Read { address, key };
        // Over iWARP the peer's device writes the data of a read.
        let iwarp = self.shared.port.context.is_iwarp();
        let access = if iwarp { verbs::Access::RemoteWrite } else { verbs::Access::LocalWrite };
        // SAFETY: the caller's promise.
        unsafe { self.transfer(local, access, work, (handle, offset), token) }
    }

    unsafe fn put(&mut self, from: &Local<'_>, to: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        let (local, handle, offset) = runs("put", from, to)?;
        let work = |address, key| Work::Write { address, key };
        // SAFETY: the caller's promise.
        unsafe { self.transfer(local, verbs::Access::LocalRead, work, (handle, offset), token) }
    }
}

/// Returns both sides if each is one run.
fn runs<'h>(
    operation: &'static str,
    local: &Local<'_>,
    remote: &Remote<'h>,
) -> Result<(Region, &'h RemoteHandle, u64), Error> {
    match (local, remote) {
        (&Local::Run(region), &Remote { handle, offset, blocks: None }) => Ok((region, handle, offset)),
        _ => Err(Error::Unavailable { btl: NAME, operation, reason: "blocks are not supported".into() }),
    }
}

impl Drop for OpenibEndpoint {
    fn drop(&mut self) {
        self.link.tx.lock().close(&self.shared, &self.link);
    }
}
