//! Host memory that is registered with the drivers of devices, and the pools made of it.

use super::Devices;
use crate::memory::{BlockList, BouncePool, HostPool, HostRegistration, Registrar};

impl Devices {
    /// Registers `len` bytes at `address` with the driver as soon as a device is in use. Copies from and to the range
    /// are then asynchronous and run at the speed of the link.
    ///
    /// # Safety
    /// The range stays mapped until the registration is dropped.
    pub unsafe fn register_host(&self, address: *mut u8, len: usize) -> HostRegistration {
        // SAFETY: the caller's promise.
        unsafe { self.registrar().register(address, len) }
    }

    fn registrar(&self) -> Registrar {
        let allowed = self.platforms().filter(|platform| platform.register_host);
        Registrar::new(allowed.map(|platform| platform.registrations.clone()).collect())
    }

    /// Memory for lists of blocks, which kernels reach.
    fn lists(&self) -> &HostPool {
        self.state.lists.get_or_init(|| HostPool::new(self, 0))
    }
}

impl HostPool {
    /// Returns a pool of at most `limit` bytes, including the kept ones; 0 means half of the machine's memory.
    /// Allocates nothing yet.
    pub fn new(devices: &Devices, limit: usize) -> HostPool {
        HostPool::with(devices.registrar(), limit)
    }
}

impl BouncePool {
    /// Returns a pool of at most `limit` buffers of `chunk` bytes, rounded up to whole pages. Allocates nothing yet.
    pub fn new(devices: &Devices, chunk: usize, limit: usize) -> BouncePool {
        BouncePool::with(devices.registrar(), chunk, limit)
    }
}

impl BlockList {
    /// Lists blocks: their offsets and lengths in bytes, in packing order. Returns `None` if there are no blocks or too
    /// many, if their distances are too large for the kernel, or if memory is exhausted.
    pub fn new(devices: &Devices, blocks: &[(i64, u64)]) -> Option<BlockList> {
        BlockList::in_memory(blocks, |len| devices.lists().take(len))
    }
}
