//! The one link of a process to itself.

use std::sync::Arc;
use std::time::Duration;

use cableway_btl::{
    Access, Capabilities, Cost, Endpoint, Error, Flags, Fragment, FragmentKind, Local, Operation, Rank, Region,
    Registration, Remote, RemoteHandle, Sent, Token, Transfer,
};
use cableway_common_cuda::Location;

use crate::NAME;
use crate::shared::Shared;
use crate::transfer;

/// Waiting messages beyond which a sender gets `Busy`. So `pml`'s flow control limits a process that never receives
/// from itself, before memory runs out.
const MAX_WAITING: usize = 4096;

pub(crate) struct SelfEndpoint {
    rank: Rank,
    capabilities: Capabilities,
    shared: Arc<Shared>,
}

impl SelfEndpoint {
    pub(crate) fn new(rank: Rank, eager_limit: usize, shared: Arc<Shared>) -> Self {
        let mut capabilities = Capabilities::send_only(eager_limit, 128 << 10);
        let on_devices = Flags::DEVICE_GET | Flags::DEVICE_PUT | Flags::DEVICE_STRIDED | Flags::DEVICE_PACKED;
        capabilities.flags |= Flags::GET | on_devices;
        // Nothing else can reach this process as well.
        capabilities.exclusivity = u32::MAX;
        capabilities.inline_limit = eager_limit;
        capabilities.min_rdma_size = eager_limit;
        // A device makes one copy instead of two, whatever the size.
        capabilities.device_min_rdma_size = 1;
        capabilities.latency = Duration::from_nanos(50);
        capabilities.bandwidth = 10e9;
        SelfEndpoint { rank, capabilities, shared }
    }
}

impl Endpoint for SelfEndpoint {
    fn peer(&self) -> Rank {
        self.rank
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn cost(&self, operation: Operation, location: &Location) -> Cost {
        let copies = if operation == Operation::Send { 2.0 } else { 1.0 };
        if location.on_device() {
            // One asynchronous copy on the device, or two over its bus: measured magnitudes, only their order counts.
            let bytes_per_second = if operation == Operation::Send { 25e9 } else { 2e12 };
            return Cost { fixed: Duration::from_micros(8), bytes_per_second };
        }
        Cost { fixed: Duration::from_nanos(100), bytes_per_second: 10e9 / copies }
    }

    fn send_inline(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error> {
        if self.busy() {
            return Ok(Sent::Busy);
        }
        self.shared.queue.push(header, payload);
        Ok(Sent::Done)
    }

    fn alloc(&mut self, len: usize, _kind: FragmentKind) -> Result<Option<Fragment>, Error> {
        if self.busy() {
            return Ok(None);
        }
        let (memory, key) = self.shared.queue.lend(len);
        // SAFETY: the queue lends at least `len` bytes, to nobody else until the key comes back.
        Ok(Some(unsafe { Fragment::new(memory, len, key, self.shared.queue.clone()) }))
    }

    fn send(&mut self, fragment: Fragment, len: usize) -> Result<(), Error> {
        self.shared.queue.push_lent(fragment.into_key(), len);
        Ok(())
    }

    unsafe fn register(&mut self, region: Region, _access: Access) -> Result<Option<Registration>, Error> {
        let registered = self.shared.registered.clone();
        let key = registered.lock().insert(region);
        let handle = RemoteHandle::new(&(key as u64).to_le_bytes());
        let keeper = Unregister { registered, key };
        Ok(handle.map(|handle| Registration::new(handle, Some(Box::new(keeper)))))
    }

    unsafe fn get(&mut self, to: &Local<'_>, from: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.copy("get", to, (from, Access::RemoteRead), token) }
    }

    unsafe fn put(&mut self, from: &Local<'_>, to: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.copy("put", from, (to, Access::RemoteWrite), token) }
    }
}

impl SelfEndpoint {
    fn busy(&self) -> bool {
        self.shared.queue.len() >= MAX_WAITING
    }

    /// Starts to copy between local and registered memory.
    ///
    /// # Safety
    /// As [`Endpoint::get`] and [`Endpoint::put`].
    unsafe fn copy(
        &self,
        operation: &'static str,
        local: &Local<'_>,
        (remote, access): (&Remote<'_>, Access),
        token: Token,
    ) -> Result<Transfer, Error> {
        let refuse = |reason: String| Error::Unavailable { btl: NAME, operation, reason };
        let bytes = remote.handle.as_bytes();
        let key = bytes.try_into().map(u64::from_le_bytes).map_err(|_| refuse("malformed handle".into()))?;
        let registered = usize::try_from(key)
            .ok()
            .and_then(|key| self.shared.registered.lock().get(key).copied())
            .ok_or_else(|| refuse(format!("no memory is registered as {key}")))?;
        let pair = transfer::pair(&self.shared.devices, local, (&registered, remote), access).map_err(refuse)?;
        // SAFETY: the local memory by the caller's promise, the registered memory by that of `register`'s caller.
        unsafe { self.shared.copies.lock().start(&self.shared.devices, operation, pair, token) }
    }
}

struct Unregister {
    registered: Arc<parking_lot::Mutex<slab::Slab<Region>>>,
    key: usize,
}

impl Drop for Unregister {
    fn drop(&mut self) {
        self.registered.lock().try_remove(self.key);
    }
}
