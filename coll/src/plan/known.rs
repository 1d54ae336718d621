//! Device memory whose location is known.

use cableway_common_cuda::Location;
use smallvec::SmallVec;

/// Ranges of device memory, each within one allocation. A driver takes a third of a microsecond to locate memory, so what a
/// plan's builder has located is not located again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(SmallVec<[Range; 4]>);

#[derive(Clone, Copy, Debug)]
struct Range {
    address: usize,
    len: usize,
    location: Location,
}

impl Known {
    pub(crate) fn add(&mut self, address: usize, len: usize, location: Location) {
        self.0.push(Range { address, len, location });
    }

    /// Returns the location of memory that lies in a known range.
    pub(crate) fn find(&self, address: usize, len: usize) -> Option<Location> {
        let inside = |range: &&Range| {
            let first = address.wrapping_sub(range.address);
            first <= range.len && len <= range.len - first
        };
        self.0.iter().find(inside).map(|range| range.location)
    }
}

#[cfg(test)]
mod tests {
    use cableway_common_cuda::{DeviceIndex, MemoryClass};

    use super::*;

    #[test]
    fn parts_of_known_ranges_are_found_and_nothing_else() {
        let location = Location { class: MemoryClass::Device, device: Some(DeviceIndex(0)), context: 1, buffer_id: 7 };
        let mut known = Known::default();
        known.add(1000, 100, location);
        for (address, len, found) in
            [(1000, 100, true), (1099, 1, true), (1100, 0, true), (999, 2, false), (1099, 2, false), (0, 5000, false)]
        {
            assert_eq!(known.find(address, len).is_some(), found, "{len} bytes at {address}");
        }
    }
}
