//! Device memory of Cableway, divided into parts of any size. No call waits for the device to become idle.
//!
//! The arena reserves addresses up to its limit, and maps physical memory from the first address on as needed. So the
//! space of freed small parts can serve a large one. Unlike freeing an allocation, unmapping does not wait.

use std::ops::Range;

use range_alloc::RangeAllocator;

use crate::driver::{Driver, Failure};
use crate::location::DeviceIndex;

/// The granularity of parts. Kernels need less, and the list of parts stays short.
const UNIT: usize = 4096;

/// Reserved addresses and the memory there.
pub(super) struct Arena {
    driver: &'static dyn Driver,
    device: DeviceIndex,
    base: u64,
    reserved: usize,
    /// The number of mapped bytes, from the first address on.
    mapped: usize,
    granularity: usize,
    /// The id of the first piece of memory.
    id: Option<u64>,
    /// Free ranges, as offsets in bytes.
    free: RangeAllocator<usize>,
}

/// The bytes of a part.
pub(super) type Part = Range<usize>;

impl Arena {
    /// Creates an arena of at most `limit` bytes on the current context's device. It grows in multiples of the driver's
    /// granularity, so the last piece may exceed the limit.
    pub(super) fn reserve(driver: &'static dyn Driver, limit: usize) -> Result<Arena, Failure> {
        let device = driver.current_device()?;
        let granularity = driver.granularity(device)?;
        let reserved = limit.next_multiple_of(granularity);
        let base = driver.reserve(reserved)?;
        let free = RangeAllocator::new(0..limit);
        Ok(Arena { driver, device, base, reserved, mapped: 0, granularity, id: None, free })
    }

    /// Takes this many bytes. Returns `None` if there is no room.
    pub(super) fn take(&mut self, len: usize) -> Result<Option<Part>, Failure> {
        let Ok(part) = self.free.allocate_range(len.max(1).next_multiple_of(UNIT)) else { return Ok(None) };
        match self.grow(part.end) {
            Ok(()) => Ok(Some(part)),
            Err(failure) => {
                self.free.free_range(part);
                Err(failure)
            }
        }
    }

    fn grow(&mut self, end: usize) -> Result<(), Failure> {
        if end <= self.mapped {
            return Ok(());
        }
        let len = (end - self.mapped).next_multiple_of(self.granularity);
        self.driver.map(self.base + self.mapped as u64, len, self.device, self.device)?;
        if self.mapped == 0 {
            self.id = self.driver.buffer_id(self.base);
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

    /// Checks whether the arena's memory still exists, even after the end of its context.
    pub(super) fn lives(&self) -> bool {
        self.mapped == 0 || self.driver.buffer_id(self.base) == self.id
    }

    /// Releases memory and addresses, unless the end of the context has. Needs no current context.
    ///
    /// # Safety
    /// No part is in use.
    pub(super) unsafe fn unmap(self) {
        if !self.lives() {
            return;
        }
        // SAFETY: reserved and mapped by us; nobody uses it by the caller's promise.
        if let Err(failure) = unsafe { self.driver.unmap(self.base, self.mapped, self.reserved) } {
            log::debug!("giving back memory of lists: {}", self.driver.reason(failure));
        }
    }
}
