//! Device memory of our own, in parts of any size, for which no call waits until a device is idle.
//!
//! Addresses are reserved for as much as there may be, and physical memory is mapped there from the first one on, as far as
//! it was ever of use. So what small parts leave serves a large one. Unlike `cuMemFree`, to unmap waits for nobody.

use std::ops::Range;

use cudarc::driver::sys::CUdevice;
use range_alloc::RangeAllocator;

use super::driver::Driver;
use super::ipc::buffer_id;
use super::mapping::{self, Physical};
use super::status::Failure;

/// What parts are multiples of: more than kernels need, and few enough to keep account of.
const UNIT: usize = 4096;

/// Reserved addresses and the memory there.
pub(super) struct Arena {
    device: CUdevice,
    base: u64,
    reserved: usize,
    /// Bytes from the first on that have memory.
    mapped: usize,
    granularity: usize,
    /// By which the first piece of memory is known again.
    id: Option<u64>,
    /// Of the whole, in bytes from the first.
    free: RangeAllocator<usize>,
}

/// Bytes of an arena.
pub(super) type Part = Range<usize>;

impl Arena {
    /// One that grows to `limit` bytes at most, on the current context's device. Memory is taken in multiples of what the
    /// driver hands out, so that the last piece may exceed the limit.
    pub(super) fn reserve(driver: &Driver, limit: usize) -> Result<Arena, Failure> {
        let mut device: CUdevice = 0;
        // SAFETY: fills in the current context's device.
        unsafe { driver.cuCtxGetDevice(&raw mut device) }?;
        let granularity = mapping::granularity(driver, &mapping::properties(device, 0))?;
        let reserved = limit.next_multiple_of(granularity);
        let base = mapping::reserve(driver, reserved)?;
        let free = RangeAllocator::new(0..limit);
        Ok(Arena { device, base, reserved, mapped: 0, granularity, id: None, free })
    }

    /// So many bytes; none if there is no room.
    pub(super) fn take(&mut self, driver: &Driver, len: usize) -> Result<Option<Part>, Failure> {
        let Ok(part) = self.free.allocate_range(len.max(1).next_multiple_of(UNIT)) else { return Ok(None) };
        match self.grow(driver, part.end) {
            Ok(()) => Ok(Some(part)),
            Err(failure) => {
                self.free.free_range(part);
                Err(failure)
            }
        }
    }

    fn grow(&mut self, driver: &Driver, end: usize) -> Result<(), Failure> {
        if end <= self.mapped {
            return Ok(());
        }
        let len = (end - self.mapped).next_multiple_of(self.granularity);
        let physical = Physical::create(driver, &mapping::properties(self.device, 0), len)?;
        mapping::map_at(driver, self.device, self.base + self.mapped as u64, &(physical, len))?;
        if self.mapped == 0 {
            self.id = self.first_id(driver);
        }
        self.mapped += len;
        Ok(())
    }

    pub(super) fn give_back(&mut self, part: Part) {
        self.free.free_range(part);
    }

    pub(super) fn address(&self, part: &Part) -> u64 {
        self.base + part.start as u64
    }

    /// Whether its memory is there still, whatever became of the context in which it was of use.
    pub(super) fn lives(&self, driver: &Driver) -> bool {
        self.mapped == 0 || self.first_id(driver) == self.id
    }

    fn first_id(&self, driver: &Driver) -> Option<u64> {
        buffer_id(driver, std::ptr::with_exposed_provenance(self.base as usize))
    }

    /// Gives memory and addresses back, unless they are not ours any more. Needs no current context.
    ///
    /// # Safety
    /// Nobody uses any part.
    pub(super) unsafe fn unmap(self, driver: &Driver) {
        if !self.lives(driver) {
            return;
        }
        // SAFETY: reserved and mapped by us; nobody uses it by the caller's promise.
        if let Err(failure) = unsafe { mapping::unmap_part(driver, self.base, self.mapped, self.reserved) } {
            log::debug!("giving back memory of lists: {}", driver.reason(failure));
        }
    }
}
