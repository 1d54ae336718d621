//! Credit counters: peers write into this process's memory how many of its messages they have consumed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cableway_btl::Error;
use cableway_common_cuda::Devices;
use parking_lot::Mutex;

use crate::memory::Slab;
use crate::verbs::{Access, Protection};

/// The counters of one slab: a page.
const CELLS: usize = 4096 / size_of::<u64>();

/// Allocates credit counters. Each peer keeps its counter until the transport closes.
pub(crate) struct CreditCounters {
    protection: Arc<Protection>,
    state: Mutex<(Option<Arc<Slab>>, usize)>,
}

/// A counter that one peer writes. Devices store its eight aligned bytes atomically.
pub(crate) struct CreditCounter {
    slab: Arc<Slab>,
    index: usize,
}

impl CreditCounters {
    pub(crate) fn new(protection: &Arc<Protection>) -> Self {
        CreditCounters { protection: Arc::clone(protection), state: Mutex::default() }
    }

    /// Allocates a counter that holds 0.
    ///
    /// # Errors
    /// The process may not lock more memory.
    pub(crate) fn take(&self) -> Result<CreditCounter, Error> {
        let mut state = self.state.lock();
        let (current, used) = &mut *state;
        let slab = match current {
            Some(slab) if *used < CELLS => Arc::clone(slab),
            _ => {
                let len = CELLS * size_of::<u64>();
                let slab = Arc::new(Slab::new(&self.protection, &Devices::none(), len, Access::RemoteWrite)?);
                *used = 0;
                Arc::clone(current.insert(slab))
            }
        };
        *used += 1;
        Ok(CreditCounter { slab, index: *used - 1 })
    }
}

impl CreditCounter {
    /// Reads the peer's latest count. Do not trust it.
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        let address = self.address();
        // SAFETY: aligned, within the slab, and only ever accessed atomically; the device's stores are like another
        // process's.
        u64::from_le(unsafe { AtomicU64::from_ptr(address) }.load(Ordering::Acquire))
    }

    fn address(&self) -> *mut u64 {
        // SAFETY: the index is below the number of cells of a slab.
        unsafe { self.slab.address().cast::<u64>().add(self.index) }.as_ptr()
    }

    /// Returns the address and the rkey that the peer needs.
    pub(crate) fn remote(&self) -> (u64, u32) {
        (self.address() as u64, self.slab.region().remote_key())
    }
}
