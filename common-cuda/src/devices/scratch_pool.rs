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
    shared: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    kept: Vec<Block>,
    /// The bytes of blocks that are taken.
    taken: usize,
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
                let len = rounded(len);
                let Some(memory) = devices.scratch(at, len)? else { return Ok(None) };
                Block { memory, len, context: at.context }
            }
        };
        self.shared.lock().taken += block.len;
        Ok(Some(PooledScratch { block: Some(block), pool: Arc::downgrade(&self.shared) }))
    }

    /// Takes memory as [`take`](Self::take) does, but only as long as all that is taken can be kept. So its return frees
    /// nothing, which may wait for the device.
    ///
    /// # Errors
    /// As there.
    pub fn take_keepable(
        &self,
        devices: &Devices,
        at: &Location,
        len: usize,
    ) -> Result<Option<PooledScratch>, DeviceError> {
        let block = rounded(len);
        let fits = block <= LARGEST_KEPT && self.shared.lock().taken.saturating_add(block) <= MOST_KEPT;
        if fits { self.take(devices, at, len) } else { Ok(None) }
    }

    /// Takes the smallest block that suffices.
    fn reuse(&self, at: &Location, len: usize) -> Option<Block> {
        let mut state = self.shared.lock();
        let fits = |block: &Block| {
            block.context == at.context && block.memory.location().device == at.device && block.len >= len
        };
        loop {
            let fitting = state.kept.iter().enumerate().filter(|(_, block)| fits(block));
            let best = fitting.min_by_key(|(_, block)| block.len)?.0;
            let block = state.kept.swap_remove(best);
            // The end of its context frees a block.
            if block.memory.lives() {
                return Some(block);
            }
        }
    }
}

/// Returns the bytes of a block that is allocated for so many.
fn rounded(len: usize) -> usize {
    len.max(SMALLEST).checked_next_power_of_two().unwrap_or(len)
}

/// Memory of a [`ScratchPool`]. Dropping it returns it to the pool, so nobody may use it any more.
pub struct PooledScratch {
    /// `None` only during the drop.
    block: Option<Block>,
    pool: Weak<Mutex<State>>,
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
        let mut state = pool.lock();
        state.taken -= block.len;
        let bytes: usize = state.kept.iter().map(|block| block.len).sum();
        if block.len <= LARGEST_KEPT && bytes + block.len <= MOST_KEPT {
            state.kept.push(block);
        } else {
            // Freeing takes long, so do it without the lock.
            drop(state);
        }
    }
}

impl std::fmt::Debug for ScratchPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScratchPool").field("kept", &self.shared.lock().kept.len()).finish()
    }
}

impl std::fmt::Debug for PooledScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PooledScratch").field("address", &self.address()).finish_non_exhaustive()
    }
}
