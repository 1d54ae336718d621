//! Device memory of our own, in parts of any size, for which no call waits until a device is idle.
//!
//! Addresses are reserved for as much as there may be, and physical memory is mapped there from the first one on, as far as
//! it was ever of use. So what small parts leave serves a large one. Unlike to free an allocation, to unmap waits for
//! nobody.

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
    /// Bytes from the first on that have memory.
    mapped: usize,
    granularity: usize,
    /// By which the first piece of memory is known again.
    id: Option<u64>,
    /// Free ranges, as offsets in bytes.
    free: RangeAllocator<usize>,
}

/// Bytes of an arena.
pub(super) type Part = Range<usize>;

impl Arena {
    /// One that grows to `limit` bytes at most, on the current context's device. Memory is taken in multiples of what the
    /// driver hands out, so that the last piece may exceed the limit.
    pub(super) fn reserve(driver: &'static dyn Driver, limit: usize) -> Result<Arena, Failure> {
        let device = driver.current_device()?;
        let granularity = driver.granularity(device)?;
        let reserved = limit.next_multiple_of(granularity);
        let base = driver.reserve(reserved)?;
        let free = RangeAllocator::new(0..limit);
        Ok(Arena { driver, device, base, reserved, mapped: 0, granularity, id: None, free })
    }

    /// Takes so many bytes; `None` if there is no room.
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

    /// Checks whether its memory still exists, whatever became of the context that used it.
    pub(super) fn lives(&self) -> bool {
        self.mapped == 0 || self.driver.buffer_id(self.base) == self.id
    }

    /// Releases memory and addresses, unless the context's end has released them. Needs no current context.
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
