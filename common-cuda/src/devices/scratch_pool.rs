//! Scratch memory on devices that is kept for the next use.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::{Devices, Scratch};
use crate::error::DeviceError;
use crate::location::Location;

/// A pool of device memory for data in transit. An allocation takes many times longer than a copy of it, so returned blocks
/// are kept: at most 256 MiB, none above 128 MiB. Clones share one pool.
#[derive(Clone, Default)]
pub struct ScratchPool {
    kept: Arc<Mutex<Vec<Block>>>,
}

/// The most bytes that are kept, and the largest block among them.
const MOST_KEPT: usize = 256 << 20;
const LARGEST_KEPT: usize = 128 << 20;
/// Blocks have at least this size.
const SMALLEST: usize = 1 << 20;

struct Block {
    memory: Scratch,
    len: usize,
    /// The context of the memory that it was allocated beside.
    context: u64,
}

impl ScratchPool {
    /// Takes at least `len` bytes of device memory in the context of the device memory at `at`. Their content is
    /// undefined. Returns `None` if memory must be allocated, which is not possible while the default stream is busy.
    ///
    /// # Errors
    /// The context is destroyed, or memory is exhausted.
    pub fn take(&self, devices: &Devices, at: &Location, len: usize) -> Result<Option<PooledScratch>, DeviceError> {
        let block = match self.reuse(at, len) {
            Some(block) => block,
            None => {
                let len = len.max(SMALLEST).checked_next_power_of_two().unwrap_or(len);
                let Some(memory) = devices.scratch(at, len)? else { return Ok(None) };
                Block { memory, len, context: at.context }
            }
        };
        Ok(Some(PooledScratch { block: Some(block), pool: Arc::downgrade(&self.kept) }))
    }

    /// Takes the smallest block that suffices.
    fn reuse(&self, at: &Location, len: usize) -> Option<Block> {
        let mut kept = self.kept.lock();
        kept.retain(|block| block.memory.lives());
        let fits = |block: &Block| {
            block.context == at.context && block.memory.location().device == at.device && block.len >= len
        };
        let best = kept.iter().enumerate().filter(|(_, block)| fits(block)).min_by_key(|(_, block)| block.len)?.0;
        Some(kept.swap_remove(best))
    }
}

/// Memory of a [`ScratchPool`]. Dropping it returns it to the pool, so nobody may use it any more.
pub struct PooledScratch {
    /// `None` only during the drop.
    block: Option<Block>,
    pool: Weak<Mutex<Vec<Block>>>,
}

impl PooledScratch {
    /// Returns the address of the first byte. The CPU must not access it.
    pub fn address(&self) -> *mut u8 {
        self.block.as_ref().map_or(std::ptr::null_mut(), |block| block.memory.address())
    }
}

impl Drop for PooledScratch {
    fn drop(&mut self) {
        let (Some(block), Some(pool)) = (self.block.take(), self.pool.upgrade()) else { return };
        let mut kept = pool.lock();
        let bytes: usize = kept.iter().map(|block| block.len).sum();
        if block.len <= LARGEST_KEPT && bytes + block.len <= MOST_KEPT {
            kept.push(block);
        } else {
            // Freeing takes long, so do it without the lock.
            drop(kept);
        }
    }
}

impl std::fmt::Debug for ScratchPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScratchPool").field("kept", &self.kept.lock().len()).finish()
    }
}

impl std::fmt::Debug for PooledScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PooledScratch").field("address", &self.address()).finish_non_exhaustive()
    }
}
