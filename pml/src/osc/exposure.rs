//! The memory that a window exposes in this process, and the check that an operation stays within it.

use parking_lot::RwLock;

use super::wire::Reach;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::shapes::{Block, Elements};

/// What a process exposes in a window.
#[derive(Clone, Copy, Debug)]
pub enum Exposed {
    /// One range of host or device memory. Displacements count from its beginning.
    Memory {
        /// The first byte.
        address: *mut u8,
        /// The length in bytes.
        len: u64,
        /// The bytes of one unit of displacements.
        unit: u32,
    },
    /// Memory that is attached later. Displacements are addresses.
    Attached,
}

pub(super) struct Exposure {
    /// The address and the bytes of one unit of displacements, unless memory is attached.
    fixed: Option<(usize, u32)>,
    regions: RwLock<Vec<Region>>,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    address: usize,
    len: u64,
}

impl Region {
    fn covers(&self, first: i128, len: u64) -> bool {
        let start = self.address as i128;
        first >= start && first + i128::from(len) <= start + i128::from(self.len)
    }
}

/// Bytes of exposed memory.
#[derive(Debug)]
pub(super) struct Reached {
    /// Of the lowest byte.
    address: usize,
    /// `None`: one run.
    elements: Option<Elements>,
    /// The bytes of data.
    pub(super) len: u64,
}

impl Reached {
    /// Returns the first byte and the number of bytes, if they are one run.
    pub(super) fn run(&self) -> Option<(*mut u8, u64)> {
        self.elements.is_none().then(|| (std::ptr::with_exposed_provenance_mut(self.address), self.len))
    }

    pub(super) fn buffer(&self) -> Buffer<'_> {
        let address = std::ptr::with_exposed_provenance(self.address);
        match &self.elements {
            None => Buffer::bytes(address, self.len),
            Some(elements) => elements.buffer(address),
        }
    }
}

impl Exposure {
    pub(super) fn new(exposed: Exposed) -> Self {
        match exposed {
            Exposed::Memory { address, len, unit } => {
                let address = address.expose_provenance();
                Exposure { fixed: Some((address, unit)), regions: RwLock::new(vec![Region { address, len }]) }
            }
            Exposed::Attached => Exposure { fixed: None, regions: RwLock::default() },
        }
    }

    pub(super) fn attach(&self, address: *mut u8, len: u64) -> Result<(), Error> {
        let address = address.expose_provenance();
        let bad = |reason| Err(Error::BadAttachment { address, len, reason });
        if self.fixed.is_some() {
            return bad("the window is not dynamic");
        }
        if address.checked_add(usize::try_from(len).unwrap_or(usize::MAX)).is_none() {
            return bad("its addresses wrap around");
        }
        let mut regions = self.regions.write();
        let overlaps = |region: &Region| {
            let (end, other_end) = (address as u64 + len, region.address as u64 + region.len);
            (address as u64) < other_end && (region.address as u64) < end
        };
        if regions.iter().any(overlaps) {
            return bad("it overlaps memory that is attached already; detach that first");
        }
        regions.push(Region { address, len });
        Ok(())
    }

    pub(super) fn detach(&self, address: *const u8) -> Result<(), Error> {
        let address = address.expose_provenance();
        let mut regions = self.regions.write();
        match regions.iter().position(|region| region.address == address) {
            Some(at) if self.fixed.is_none() => {
                regions.swap_remove(at);
                Ok(())
            }
            _ => Err(Error::BadAttachment { address, len: 0, reason: "no memory was attached at this address" }),
        }
    }

    /// Finds the bytes that an operation reaches, all of which must be exposed.
    pub(super) fn find(&self, displacement: i64, reach: &Reach, blocks: &[Block]) -> Result<Reached, Refusal> {
        let origin = match self.fixed {
            Some((address, unit)) => address as i128 + i128::from(displacement) * i128::from(unit),
            // The address's bits.
            None => i128::from(displacement as u64),
        };
        let reached = match *reach {
            Reach::Run { offset, len } => {
                let address = self.check(origin + i128::from(offset), len)?;
                Reached { address, elements: None, len }
            }
            Reach::Elements { count, extent, .. } => {
                if count == 0 {
                    return Ok(Reached { address: 0, elements: None, len: 0 });
                }
                let elements = Elements::of_blocks(blocks, count, extent).ok_or(Refusal::OutOfRange)?;
                let address = self.check(origin + i128::from(elements.low()), elements.range())?;
                let len = elements.len();
                Reached { address, elements: Some(elements), len }
            }
        };
        Ok(reached)
    }

    /// Returns the address of bytes that are exposed.
    fn check(&self, first: i128, len: u64) -> Result<usize, Refusal> {
        if len == 0 {
            return Ok(0);
        }
        let covered = self.regions.read().iter().any(|region| region.covers(first, len));
        if covered { usize::try_from(first).map_err(|_| Refusal::OutOfRange) } else { Err(Refusal::OutOfRange) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(memory: &mut [u8], unit: u32) -> Exposure {
        Exposure::new(Exposed::Memory { address: memory.as_mut_ptr(), len: memory.len() as u64, unit })
    }

    fn run(offset: i64, len: u64) -> Reach {
        Reach::Run { offset, len }
    }

    #[test]
    fn runs_stay_within_the_window() {
        let mut memory = [0; 64];
        let base = memory.as_ptr() as usize;
        let exposure = fixed(&mut memory, 8);
        let at = |displacement, offset, len| {
            exposure.find(displacement, &run(offset, len), &[]).map(|reached| reached.address - base)
        };
        assert_eq!(at(0, 0, 64), Ok(0));
        assert_eq!(at(7, 0, 8), Ok(56));
        assert_eq!(at(7, 1, 7), Ok(57));
        assert_eq!(at(1, -8, 64), Ok(0));
        for (displacement, offset, len) in [
            (0, 0, 65),
            (8, 0, 1),
            (-1, 0, 8),
            (0, -1, 1),
            (i64::MAX, 0, 8),
            (i64::MIN, i64::MIN, 8),
            (1, 0, u64::MAX),
            (0, i64::MAX, u64::MAX),
        ] {
            assert_eq!(at(displacement, offset, len), Err(Refusal::OutOfRange), "{displacement} {offset} {len}");
        }
        assert!(exposure.find(99, &run(0, 0), &[]).is_ok_and(|reached| reached.len == 0));
    }

    #[test]
    fn elements_stay_within_the_window() {
        let mut memory = [0; 64];
        let exposure = fixed(&mut memory, 1);
        let blocks = [Block { offset: 4, len: 4 }, Block { offset: -4, len: 2 }];
        let find = |displacement, count, extent| {
            let reach = Reach::Elements { blocks: 2, count, extent };
            exposure.find(displacement, &reach, &blocks).map(|reached| reached.len)
        };
        assert_eq!(find(4, 1, 100), Ok(6));
        assert_eq!(find(4, 4, 16), Ok(24));
        assert_eq!(find(56, 4, -16), Ok(24));
        assert_eq!(find(4, 0, 16), Ok(0));
        for (displacement, count, extent) in [
            (3, 1, 100),
            (57, 1, 100),
            (4, 5, 16),
            (9, 4, 16),
            (51, 4, -16),
            (4, u64::MAX, 16),
            (4, u64::MAX, 0),
            (4, 2, i64::MAX),
            (4, 2, i64::MIN),
        ] {
            assert_eq!(find(displacement, count, extent), Err(Refusal::OutOfRange), "{displacement} {count} {extent}");
        }
        let huge = [Block { offset: i64::MAX, len: u64::MAX }, Block { offset: i64::MIN, len: i64::MAX as u64 }];
        let reach = Reach::Elements { blocks: 2, count: 1, extent: 8 };
        for blocks in [&huge[..], &huge[..1], &huge[1..]] {
            assert!(exposure.find(0, &reach, blocks).is_err());
        }
    }

    #[test]
    fn attached_memory_is_reached_by_address_until_it_is_detached() {
        let mut memory = [0_u8; 64];
        let address = memory.as_mut_ptr();
        let exposure = Exposure::new(Exposed::Attached);
        let at = |offset: i64, len| exposure.find(address as i64 + offset, &run(0, len), &[]).map(drop);
        assert_eq!(at(0, 1), Err(Refusal::OutOfRange));
        exposure.attach(address, 32).unwrap();
        assert!(exposure.attach(address.wrapping_add(31), 2).is_err());
        exposure.attach(address.wrapping_add(32), 32).unwrap();
        assert_eq!((at(0, 32), at(32, 32)), (Ok(()), Ok(())));
        // No operation reaches over two attachments.
        assert_eq!(at(16, 32), Err(Refusal::OutOfRange));
        assert!(exposure.detach(address.wrapping_add(1)).is_err());
        exposure.detach(address).unwrap();
        assert_eq!((at(0, 1), at(32, 1)), (Err(Refusal::OutOfRange), Ok(())));
        assert!(exposure.attach(std::ptr::without_provenance_mut(usize::MAX), 2).is_err());
        assert!(fixed(&mut memory, 1).attach(address, 1).is_err());
    }
}
