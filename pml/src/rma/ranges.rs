//! Where the registered memory of this process lies, by its addresses. The caller's memory of a put or a get is often registered,
//! too, and then the driver need not be asked about it.

use std::collections::BTreeMap;

use cableway_common_cuda::DeviceAllocation;

use crate::buffer::Buffer;

/// Where memory lies, as far as a buffer says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// In host memory that is not page-locked.
    Host,
    Device(DeviceAllocation),
}

/// Ranges of addresses. See the module.
#[derive(Default)]
pub(super) struct Ranges(BTreeMap<Range, Entry>);

/// The first byte, and the one behind the last. Ranges with one beginning are in the order of their lengths.
type Range = (usize, usize);

struct Entry {
    known: Known,
    registrations: usize,
}

impl Known {
    /// Says so of a buffer that lies there.
    pub(super) fn of(self, buffer: Buffer<'_>) -> Buffer<'_> {
        match self {
            Known::Host => buffer.in_host(),
            Known::Device(allocation) => buffer.within(Some(allocation)),
        }
    }
}

impl Ranges {
    /// Adds a registration of memory.
    pub(super) fn add(&mut self, range: Range, known: Known) {
        let entry = self.0.entry(range).or_insert(Entry { known, registrations: 0 });
        // The last one counts, in case that the program has freed memory without ending its registration.
        entry.known = known;
        entry.registrations += 1;
    }

    /// Removes a registration. If it was not added, because nothing was known of its memory then, it takes away what an equal one
    /// has added, and the driver is asked again.
    pub(super) fn remove(&mut self, range: Range) {
        if let Some(entry) = self.0.get_mut(&range) {
            entry.registrations -= 1;
            if entry.registrations == 0 {
                self.0.remove(&range);
            }
        }
    }

    /// Returns where bytes lie. Looks only at the range that begins nearest before them: a longer one may hold them, too.
    pub(super) fn find(&self, address: usize, len: usize) -> Option<Known> {
        let end = address.checked_add(len)?;
        let (range, entry) = self.0.range(..=(address, usize::MAX)).next_back()?;
        (end <= range.1).then_some(entry.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_within_a_range_are_found_and_nothing_else() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.find(100, 1), None);
        ranges.add((100, 200), Known::Host);
        for (address, len, found) in [
            (100, 100, true),
            (150, 50, true),
            (150, 51, false),
            (99, 2, false),
            (200, 1, false),
            (usize::MAX, 2, false),
        ] {
            assert_eq!(ranges.find(address, len).is_some(), found, "{len} bytes at {address}");
        }
        // Of two ranges with one beginning, the longer one.
        ranges.add((100, 300), Known::Host);
        assert_eq!((ranges.find(100, 200), ranges.find(100, 201)), (Some(Known::Host), None));
        ranges.remove((100, 300));
        assert_eq!((ranges.find(100, 100), ranges.find(100, 200)), (Some(Known::Host), None));
    }

    #[test]
    fn a_range_stays_until_its_last_registration_ends() {
        let mut ranges = Ranges::default();
        (0..3).for_each(|_| ranges.add((8, 16), Known::Host));
        for left in [2, 1, 0] {
            ranges.remove((8, 16));
            assert_eq!(ranges.find(8, 8).is_some(), left > 0);
        }
        ranges.remove((8, 16));
    }
}
