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
        capabilities.flags |= Flags::GET | Flags::DEVICE_GET;
        // Nothing else can reach this process as well.
        capabilities.exclusivity = u32::MAX;
        capabilities.inline_limit = eager_limit;
        capabilities.min_rdma_size = eager_limit;
        capabilities.latency = Duration::from_nanos(50);
        capabilities.bandwidth = 10e9;
        SelfEndpoint { rank, capabilities, shared }
    }

    fn busy(&self) -> bool {
        self.shared.queue.len() >= MAX_WAITING
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
        let refuse = |reason: String| Error::Unavailable { btl: NAME, operation: "get", reason };
        let (&Local::Run(local), Remote { handle, offset, blocks: None }) = (to, *from) else {
            return Err(refuse("blocks are not supported".into()));
        };
        let key =
            handle.as_bytes().try_into().map(u64::from_le_bytes).map_err(|_| refuse("malformed handle".into()))?;
        let mut source = usize::try_from(key)
            .ok()
            .and_then(|key| self.shared.registered.lock().get(key).copied())
            .ok_or_else(|| refuse(format!("no memory is registered as {key}")))?;
        let offset = usize::try_from(offset)
            .ok()
            .filter(|offset| offset.checked_add(local.len).is_some_and(|end| end <= source.len))
            .ok_or_else(|| refuse(format!("{} bytes at {offset} overrun the registered {}", local.len, source.len)))?;
        // SAFETY: within the registered region, just checked.
        source.address = unsafe { source.address.add(offset) };
        source.len = local.len;
        // SAFETY: `local` by our caller's promise, `source` by that of `register`'s.
        unsafe { self.shared.copies.lock().start(&self.shared.devices, local, source, token) }
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
