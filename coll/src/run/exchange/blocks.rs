//! Where a block of the plan lies in device memory, and how a device copies it.

use cableway_common_cuda::{BlockCopy, CopyShape, Devices, Strided};
use cableway_pml::DeviceRange;

use crate::plan::{Block, Kind, Plan};
use crate::run::site::Site;

/// The memory of a block: a run of bytes, or blocks at regular distances.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// The first byte.
    pub(super) address: *mut u8,
    /// The bytes from the first to the last one.
    pub(super) len: usize,
    /// The places of the data in it, unless it is all of it.
    pub(super) blocks: Option<Strided>,
}

/// Device memory with the data of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceBlocks {
    /// The memory from the first byte to the last one.
    pub(super) range: DeviceRange,
    /// The places of the data in it, unless it is all of it.
    pub(super) blocks: Option<Strided>,
}

/// Data that is copied from. A device of this process reaches it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// The address from which offsets count.
    pub(super) address: *const u8,
    /// The places of the data, unless it is one run.
    pub(super) blocks: Option<Strided>,
}

impl Extent {
    /// Returns the memory of a block. Returns `None` if the block has no data, or is irregular.
    pub(super) fn of(site: &Site, plan: &Plan, block: &Block) -> Option<Extent> {
        if let Some((address, len)) = site.run(plan, block) {
            let len = usize::try_from(len).ok().filter(|&len| len != 0)?;
            return Some(Extent { address, len, blocks: None });
        }
        let Kind::Typed(index) = block.kind else { return None };
        let (low, len, blocks) = plan.types[index].strided(block.count)?.within_span()?;
        let address = site.address(block.place).wrapping_offset(low as isize);
        Some(Extent { address, len: usize::try_from(len).ok()?, blocks: Some(blocks) })
    }
}

impl DeviceBlocks {
    /// Returns the number of bytes of the data.
    pub(super) fn bytes(&self) -> u64 {
        let all = Some(self.range.len as u64);
        self.blocks.map_or(all, |blocks| blocks.size()).unwrap_or(0)
    }

    /// Checks whether kernels of the memory's device copy blocks there now.
    pub(super) fn reached_by_kernels(&self, devices: &Devices) -> bool {
        let DeviceRange { address, location, .. } = &self.range;
        devices.kernels(location) && devices.kernel_reaches(location, *address)
    }

    /// Describes a copy to here. The source has as many bytes of data.
    pub(super) fn copy_from(&self, source: &Source) -> CopyShape {
        if self.blocks.is_none() && source.blocks.is_none() {
            return CopyShape::Run;
        }
        let len = self.bytes();
        let run = Strided::run(len);
        CopyShape::Blocks(Box::new(BlockCopy {
            dst: self.range.address,
            dst_blocks: self.blocks.unwrap_or(run),
            src: source.address,
            src_blocks: source.blocks.unwrap_or(run),
            len,
        }))
    }
}

/// Describes a copy from `from` as one of blocks, also if it is one of a run.
pub(super) fn as_blocks(how: &CopyShape, to: &DeviceRange, from: *const u8) -> BlockCopy {
    match how {
        CopyShape::Blocks(copy) => **copy,
        _ => BlockCopy::run(to.address, from, to.len),
    }
}

#[cfg(test)]
mod tests {
    use cableway_common_cuda::Location;
    use cableway_datatype::{Datatype, Predefined};

    use super::*;
    use crate::placing::Working;
    use crate::plan::Place;

    fn extent(count: u64, datatype: &Datatype) -> Option<Extent> {
        let site = Site { scratch: 0, working: Working::Host, first_tag: 0, settled: false, registered: false };
        let plan = Plan { types: vec![datatype.commit()], ..Plan::default() };
        Extent::of(&site, &plan, &Block { place: Place::User(10_000), count, kind: Kind::Typed(0) })
    }

    fn places(extent: Option<Extent>) -> Option<(usize, usize, Option<Strided>)> {
        extent.map(|extent| (extent.address as usize, extent.len, extent.blocks))
    }

    #[test]
    fn the_extent_of_a_block_has_all_its_data_and_no_more() {
        let int = Predefined::Int.datatype();
        let (one, none) = ((1, 0), None);
        assert_eq!(places(extent(3, &int)), Some((10_000, 12, None)));
        assert_eq!(places(extent(0, &int)), none);
        let rows = Datatype::vector(5, 2, 10, &int).unwrap();
        let blocks = Strided { offset: 0, block: 8, dimensions: [(5, 40), one, one] };
        assert_eq!(places(extent(1, &rows)), Some((10_000, 168, Some(blocks))));
        assert_eq!(places(extent(0, &rows)), none);
        // From the last row to the first one: the first block in packing order lies at the end.
        let backwards = Datatype::vector(5, 2, -10, &int).unwrap();
        let blocks = Strided { offset: 160, block: 8, dimensions: [(5, -40), one, one] };
        assert_eq!(places(extent(1, &backwards)), Some((9840, 168, Some(blocks))));
        let irregular = Datatype::indexed(&[1, 3, 2], &[0, 4, 9], &int).unwrap();
        assert_eq!(places(extent(1, &irregular)), none);
    }

    fn memory(len: usize, blocks: Option<Strided>) -> DeviceBlocks {
        let address = std::ptr::without_provenance_mut(1 << 20);
        DeviceBlocks { range: DeviceRange { address, len, location: Location::HOST }, blocks }
    }

    #[test]
    fn engines_copy_runs_and_kernels_everything_else() {
        let one = (1, 0);
        let rows = Strided { offset: 0, block: 8, dimensions: [(5, 40), one, one] };
        let address = std::ptr::without_provenance(1 << 21);
        let (run, blocks) = (Source { address, blocks: None }, Source { address, blocks: Some(rows) });
        assert!(matches!(memory(40, None).copy_from(&run), CopyShape::Run));
        let spread = memory(168, Some(rows));
        assert_eq!((spread.bytes(), memory(40, None).bytes()), (40, 40));
        for (to, from, shapes) in [
            (memory(40, None), blocks, [Strided::run(40), rows]),
            (spread, run, [rows, Strided::run(40)]),
            (spread, blocks, [rows, rows]),
        ] {
            let CopyShape::Blocks(copy) = to.copy_from(&from) else { panic!("a run") };
            assert_eq!([copy.dst_blocks, copy.src_blocks], shapes);
            assert_eq!((copy.dst as usize, copy.src as usize, copy.len), (1 << 20, 1 << 21, 40));
        }
    }
}
