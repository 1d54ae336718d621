//! Host memory that is registered with the drivers of devices, and what is made of it.

use super::Devices;
use crate::memory::{BlockList, BouncePool, HostPool, HostRegistration, Registrar};

impl Devices {
    /// Has `len` bytes at `address` registered with the driver once a device is in use: copies from and to them are
    /// then asynchronous and run at the speed of the link.
    ///
    /// # Safety
    /// The range stays mapped until the registration is dropped.
    pub unsafe fn register_host(&self, address: *mut u8, len: usize) -> HostRegistration {
        // SAFETY: the caller's promise.
        unsafe { self.registrar().register(address, len) }
    }

    fn registrar(&self) -> Registrar {
        Registrar::new(self.platform().and_then(|platform| platform.registrations()).into_iter().collect())
    }

    /// Memory for lists of blocks, which kernels reach.
    fn lists(&self) -> &HostPool {
        self.state.lists.get_or_init(|| HostPool::new(self, 0))
    }
}

impl HostPool {
    /// A pool of at most `limit` bytes, kept ones included; 0: half of the machine's memory. Nothing is allocated yet.
    pub fn new(devices: &Devices, limit: usize) -> HostPool {
        HostPool::with(devices.registrar(), limit)
    }
}

impl BouncePool {
    /// A pool of at most `limit` buffers of `chunk` bytes, rounded up to whole pages. Nothing is allocated yet.
    pub fn new(devices: &Devices, chunk: usize, limit: usize) -> BouncePool {
        BouncePool::with(devices.registrar(), chunk, limit)
    }
}

impl BlockList {
    /// Lists blocks: their offsets and lengths in bytes, in packing order. None if there are none or too many, if they
    /// are too far apart for the kernel to count, or if there is no memory.
    pub fn new(devices: &Devices, blocks: &[(i64, u64)]) -> Option<BlockList> {
        BlockList::in_memory(blocks, |len| devices.lists().take(len))
    }
}
