//! The numbers of devices in a process that may use two vendors.
//!
//! A driver numbers its own devices from 0. The vendor whose devices are counted first keeps these numbers. The other
//! vendor's devices follow. So a [`DeviceIndex`] names its vendor, too, and in a process with one vendor it is the
//! driver's own number.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Failure, FailureKind};
use crate::location::DeviceIndex;

/// The first number that no vendor has.
static NEXT: Mutex<u32> = Mutex::new(0);

/// Set in the ids of one vendor's allocations, so that an id names its vendor, too.
pub(crate) const AMD_ALLOCATION: u64 = 1 << 61;

/// Set in [`Numbering::range`] once the devices are counted.
const COUNTED: u64 = 1 << 63;

/// The numbers of one vendor's devices. Every driver library of the vendor shares them.
pub(crate) struct Numbering {
    /// The first number, and above it the count. 0 before the devices are counted.
    range: AtomicU64,
}

impl Numbering {
    pub(crate) const fn new() -> Numbering {
        Numbering { range: AtomicU64::new(0) }
    }

    /// Checks whether a device is one of this vendor's.
    #[inline]
    pub(crate) fn holds(&self, device: DeviceIndex) -> bool {
        self.known().is_some_and(|range| range.contains(&device.0))
    }

    /// Returns the numbers, or `None` before the devices are counted.
    #[inline]
    fn known(&self) -> Option<Range<u32>> {
        let range = self.range.load(Ordering::Relaxed);
        let (first, count) = (range as u32, ((range & !COUNTED) >> 32) as u32);
        (range != 0).then(|| first..first + count)
    }

    /// Returns the number of the driver's first device. The first call counts the devices.
    pub(crate) fn first(&self, count: impl FnOnce() -> Result<u32, Failure>) -> Result<u32, Failure> {
        if let Some(range) = self.known() {
            return Ok(range.start);
        }
        let count = count()?;
        let mut next = NEXT.lock();
        if let Some(range) = self.known() {
            return Ok(range.start);
        }
        let first = *next;
        *next += count;
        self.range.store(COUNTED | u64::from(count) << 32 | u64::from(first), Ordering::Relaxed);
        Ok(first)
    }

    /// Converts a device's number in this process to the driver's.
    pub(crate) fn ordinal(
        &self,
        device: DeviceIndex,
        count: impl FnOnce() -> Result<u32, Failure>,
    ) -> Result<std::ffi::c_int, Failure> {
        let ordinal = device.0.checked_sub(self.first(count)?).and_then(|ordinal| ordinal.try_into().ok());
        ordinal.ok_or(Failure::found("device", FailureKind::InvalidValue))
    }

    /// Converts a driver's number of a device. `None` for a number below 0, which names no device.
    pub(crate) fn index(
        &self,
        ordinal: std::ffi::c_int,
        count: impl FnOnce() -> Result<u32, Failure>,
    ) -> Option<DeviceIndex> {
        let ordinal = u32::try_from(ordinal).ok()?;
        Some(DeviceIndex(self.first(count).ok()? + ordinal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other test of this executable counts devices through these values, but others may count at the same time.
    #[test]
    fn the_second_vendors_devices_follow_the_firsts() {
        let (one, two) = (Numbering::new(), Numbering::new());
        assert!(!one.holds(DeviceIndex(0)), "nothing is counted");
        let failed = Failure::missing("count");
        assert_eq!(one.first(|| Err(failed)), Err(failed));
        let first = one.first(|| Ok(3)).unwrap();
        let second = two.first(|| Ok(2)).unwrap();
        assert!(second >= first + 3);
        assert_eq!(one.first(|| Err(failed)), Ok(first), "counted once");
        assert_eq!(two.index(1, || Err(failed)), Some(DeviceIndex(second + 1)));
        assert_eq!(two.index(-1, || Err(failed)), None);
        assert_eq!(two.ordinal(DeviceIndex(second + 1), || Err(failed)), Ok(1));
        assert!(second == 0 || two.ordinal(DeviceIndex(second - 1), || Err(failed)).is_err());
        assert!(two.holds(DeviceIndex(second + 1)) && !two.holds(DeviceIndex(second + 2)));
        assert!(one.holds(DeviceIndex(first + 2)) && !one.holds(DeviceIndex(second)));
    }
}
