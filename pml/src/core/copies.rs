//! Tracks device copies under way and the next step of each.

use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_base::lock::{Lock, Locking};
use cableway_common_cuda::{Completion, DeviceError};

use super::batches::{Batches, Plain};
use super::shared::Core;

/// The copies of one engine. `T` is the next step of a copy.
pub(crate) struct Copies<T> {
    batches: Lock<Batches<T>>,
    count: AtomicUsize,
}

/// The next steps of copies that ended, with the results of the copies.
pub(crate) type Ended<T> = Vec<(T, Result<(), DeviceError>)>;

impl<T> Copies<T> {
    /// Creates the tracker. `most_bytes` fill a batch.
    pub(crate) fn new(locking: Locking, batch_size: usize) -> Self {
        Copies { batches: Lock::new(locking, Batches::new(batch_size)), count: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Runs `then` once a copy of `len` bytes is done. With a length of 0 it only waits for `completion`.
    pub(crate) fn follow(&self, core: &Core, completion: Completion, bytes: u64, then: T) {
        if bytes != 0 {
            core.counters.device_copies.increment();
            core.counters.device_bytes.add(bytes);
        }
        self.count.fetch_add(1, Ordering::Release);
        self.batches.lock().add_running(completion, then);
    }

    /// Adds a copy to a batch. The batch starts at the latest in the next turn of progress, or when the current call of
    /// the program ends ([`set_out`](Self::set_out)).
    ///
    /// # Safety
    /// Both ranges stay allocated, the source unwritten and the destination untouched, until `copy.then` has run or is
    /// dropped.
    pub(crate) unsafe fn gather(&self, core: &Core, copy: Plain<T>) {
        core.counters.device_copies.increment();
        core.counters.device_bytes.add(copy.len as u64);
        self.count.fetch_add(1, Ordering::Release);
        // SAFETY: the caller's promise.
        unsafe { self.batches.lock().add(copy) };
    }

    /// Starts gathered copies.
    pub(crate) fn set_out(&self, core: &Core) {
        if !self.is_empty() {
            self.batches.lock().set_out(&core.devices);
        }
    }

    /// Removes the copies that are done. The caller runs their next steps and then calls [`followed`](Self::followed).
    #[cold]
    pub(crate) fn take_ended(&self, core: &Core) -> Ended<T> {
        // Another thread polls already.
        let Some(mut batches) = self.batches.try_lock() else { return Vec::new() };
        let ended = batches.ended();
        batches.set_out(&core.devices);
        ended
    }

    /// Subtracts `count` copies whose next steps have run. The count must not drop earlier: callers that find no copies
    /// rely on it.
    pub(crate) fn followed(&self, core: &Core, count: usize) {
        self.count.fetch_sub(count, Ordering::Release);
        self.set_out(core);
    }
}
