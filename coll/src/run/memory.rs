//! Scratch memory of operations.

use cableway_common_cuda::{Devices, HostMemory, HostPool, Location, Scratch};
use parking_lot::Mutex;

use crate::error::Error;
use crate::placing::Working;

/// Where scratch memory comes from.
pub(crate) struct Pools {
    pub(crate) devices: Devices,
    /// Host memory for data in transit from and to devices.
    pub(crate) host: HostPool,
    pub(crate) scratch: ScratchCache,
}

/// Device memory of ended operations, for the next ones.
#[derive(Default)]
pub(crate) struct ScratchCache(Mutex<Vec<Kept>>);

/// The most bytes that are kept, and the largest block among them.
const MOST_KEPT: usize = 256 << 20;
const LARGEST_KEPT: usize = 128 << 20;
/// Blocks have at least this size.
const SMALLEST: usize = 1 << 20;

/// A block of device memory.
pub(crate) struct Kept {
    memory: Scratch,
    len: usize,
    /// The context of the memory that it was allocated beside.
    context: u64,
}

impl ScratchCache {
    fn take(&self, at: &Location, len: usize) -> Option<Kept> {
        let mut kept = self.0.lock();
        kept.retain(|block| block.memory.lives());
        let fits = |block: &Kept| {
            block.context == at.context && block.memory.location().device == at.device && block.len >= len
        };
        // The smallest one that fits.
        let best = kept.iter().enumerate().filter(|(_, block)| fits(block)).min_by_key(|(_, block)| block.len)?.0;
        Some(kept.swap_remove(best))
    }

    fn put(&self, block: Kept) {
        let mut kept = self.0.lock();
        let bytes: usize = kept.iter().map(|block| block.len).sum();
        if block.len <= LARGEST_KEPT && bytes + block.len <= MOST_KEPT {
            kept.push(block);
        }
    }
}

/// The scratch memory of one operation.
pub(crate) enum Block {
    None,
    Heap(Vec<u128>),
    Host(HostMemory),
    Device(Kept),
    /// Device memory that cannot be allocated while the default stream is busy.
    Later {
        at: Location,
        len: usize,
    },
}

impl Block {
    /// Takes memory where the operation works.
    pub(super) fn take(pools: &Pools, working: &Working, bytes: u64) -> Result<Block, Error> {
        let none = Error::NoMemory { bytes };
        let Some(len) = usize::try_from(bytes).ok().filter(|&len| len <= isize::MAX as usize) else { return Err(none) };
        if len == 0 {
            return Ok(Block::None);
        }
        match working {
            Working::Device(at) => Block::on_device(pools, at, len),
            Working::Host => {
                // Registered memory, as long as there is some, since a device may copy to it.
                if pools.devices.present()
                    && let Some(memory) = pools.host.take(len)
                {
                    return Ok(Block::Host(memory));
                }
                Block::on_heap(bytes)
            }
        }
    }

    /// Takes host memory that no device knows.
    pub(super) fn on_heap(bytes: u64) -> Result<Block, Error> {
        let none = Error::NoMemory { bytes };
        let Some(len) = usize::try_from(bytes).ok().filter(|&len| len <= isize::MAX as usize) else { return Err(none) };
        if len == 0 {
            return Ok(Block::None);
        }
        let units = len.div_ceil(size_of::<u128>());
        let mut heap = Vec::new();
        heap.try_reserve_exact(units).map_err(|_| none)?;
        heap.resize(units, 0);
        Ok(Block::Heap(heap))
    }

    fn on_device(pools: &Pools, at: &Location, len: usize) -> Result<Block, Error> {
        if let Some(kept) = pools.scratch.take(at, len) {
            return Ok(Block::Device(kept));
        }
        let len = len.max(SMALLEST).next_power_of_two();
        Ok(match pools.devices.scratch(at, len)? {
            Some(memory) => Block::Device(Kept { memory, len, context: at.context }),
            None => Block::Later { at: *at, len },
        })
    }

    /// Returns the address, or `None` if the memory cannot be allocated yet.
    pub(super) fn address(&mut self, pools: &Pools) -> Result<Option<usize>, Error> {
        if let &mut Block::Later { at, len } = self {
            *self = Block::on_device(pools, &at, len)?;
        }
        Ok(match self {
            Block::None => Some(0),
            Block::Heap(heap) => Some(heap.as_mut_ptr().expose_provenance()),
            Block::Host(memory) => Some(memory.address().expose_provenance()),
            Block::Device(kept) => Some(kept.memory.address().expose_provenance()),
            Block::Later { .. } => None,
        })
    }

    /// Keeps the memory for other operations.
    pub(super) fn give_back(self, pools: &Pools) {
        if let Block::Device(kept) = self {
            pools.scratch.put(kept);
        }
    }
}
