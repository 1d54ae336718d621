//! Scratch memory of operations.

use cableway_common_cuda::{Devices, HostMemory, HostPool, Location, PooledScratch, ScratchPool};

use crate::error::Error;
use crate::placing::Working;

/// Where scratch memory comes from.
pub(crate) struct Pools {
    pub(crate) devices: Devices,
    /// Host memory for data in transit from and to devices.
    pub(crate) host: HostPool,
    /// Device memory for data in transit.
    pub(crate) scratch: ScratchPool,
}

/// The scratch memory of one operation. The pools keep it for the next one when it is dropped.
pub(crate) enum Block {
    None,
    Heap(Vec<u128>),
    Host(HostMemory),
    Device(PooledScratch),
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
        let taken = pools.scratch.take(&pools.devices, at, len)?;
        Ok(taken.map_or(Block::Later { at: *at, len }, Block::Device))
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
            Block::Device(memory) => Some(memory.address().expose_provenance()),
            Block::Later { .. } => None,
        })
    }
}
