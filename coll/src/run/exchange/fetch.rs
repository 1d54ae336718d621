//! The copy of a block from the memory of another rank.

use cableway_common_cuda::{BlockCopy, CopyBatch, CopyShape, Devices, Order};
use cableway_pml::{DeviceMapping, DeviceRange, PeerBlocks};

use super::blocks::{DeviceBlocks, Source, as_blocks};

/// A block that this rank copies from the memory of another one.
pub(super) struct Fetch {
    from: DeviceMapping,
    to: DeviceRange,
    how: CopyShape,
}

impl Fetch {
    /// Describes the copy of the `offered` blocks of mapped memory, or of all of it. Returns `None` if they are not as long
    /// as what is expected here, if they do not lie in the memory, or if no kernel copies blocks now.
    pub(super) fn new(
        devices: &Devices,
        from: DeviceMapping,
        offered: Option<PeerBlocks>,
        to: &DeviceBlocks,
    ) -> Option<Fetch> {
        let (memory, data) = (from.len(), to.bytes());
        let blocks = match offered {
            Some(offered) => Some(offered.within(memory, data)?),
            None if memory as u64 == data => None,
            None => return None,
        };
        let how = to.copy_from(&Source { address: from.address().cast_const(), blocks });
        let possible = matches!(how, CopyShape::Run) || to.reached_by_kernels(devices);
        possible.then_some(Fetch { from, to: to.range, how })
    }

    /// Checks whether the blocks are one run on both sides.
    pub(super) fn is_run(&self) -> bool {
        matches!(self.how, CopyShape::Run)
    }

    /// Returns the copy as one that a kernel of the device makes, unless no kernel reaches the blocks.
    pub(super) fn by_kernel(&self, devices: &Devices) -> Option<BlockCopy> {
        let Fetch { from, to, how } = self;
        let reached = devices.kernel_reaches(&to.location, to.address);
        reached.then(|| as_blocks(how, to, from.address()))
    }

    /// Adds the copy to a batch of the device to which the memory is mapped.
    ///
    /// # Safety
    /// This rank's block is not accessed otherwise until the batch has ended, and has no byte twice. The owner of the
    /// memory does not write it until then.
    pub(super) unsafe fn add_to(&self, batch: &mut CopyBatch) {
        let (to, from) = (self.to.address, self.from.address().cast_const());
        // SAFETY: the caller's promise. The blocks lie in the memory of both sides.
        unsafe { batch.copy_shape(to, from, self.to.len, &self.how) };
    }
}

/// Returns what copies must wait for.
pub(super) fn order_of<'f>(fetches: impl Iterator<Item = &'f Fetch>, devices: &Devices) -> Order {
    fetches.map(|fetch| devices.order(&fetch.to.location)).fold(Order::None, Order::max)
}

#[cfg(test)]
mod tests {
    use cableway_common_cuda::{Location, Strided};

    use super::*;

    /// Checks whether a block is fetched from a mapped memory of so many bytes, where no kernel copies.
    fn is_fetched(memory: usize, offered: Option<Strided>, to: (usize, Option<Strided>)) -> bool {
        let from = DeviceMapping::new(std::ptr::without_provenance_mut(1 << 20), memory, Box::new(()));
        let range = DeviceRange { address: std::ptr::null_mut(), len: to.0, location: Location::HOST };
        let to = DeviceBlocks { range, blocks: to.1 };
        Fetch::new(&Devices::none(), from, offered.map(PeerBlocks::new), &to).is_some()
    }

    #[test]
    fn what_does_not_fit_is_not_fetched() {
        assert!(is_fetched(64, None, (64, None)));
        assert!(!is_fetched(63, None, (64, None)) && !is_fetched(65, None, (64, None)));
        let run = |offset, block| Some(Strided { offset, ..Strided::run(block) });
        // No kernel copies blocks here, whether or not they fit.
        assert!(!is_fetched(64, run(0, 64), (64, None)) && !is_fetched(64, None, (64, run(0, 64))));
        assert!(!is_fetched(64, run(1, 64), (64, None)));
    }
}
