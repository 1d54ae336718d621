//! Device copies under way, and what follows each.

use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_base::lock::{Lock, Locking};
use cableway_common_cuda::{Completion, DeviceError};

use super::batches::{Batches, Plain};
use super::shared::Core;

/// The copies of one engine; `T` is what follows a copy.
pub(crate) struct Copies<T> {
    batches: Lock<Batches<T>>,
    count: AtomicUsize,
}

/// Copies that have ended, and how.
pub(crate) type Ended<T> = Vec<(T, Result<(), DeviceError>)>;

impl<T> Copies<T> {
    /// With batches that are full from so many bytes on.
    pub(crate) fn new(locking: Locking, batch_size: usize) -> Self {
        Copies { batches: Lock::new(locking, Batches::new(batch_size)), count: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Sees to it that `then` happens once a copy of so many bytes is done; one of none is only waited for.
    pub(crate) fn follow(&self, core: &Core, completion: Completion, bytes: u64, then: T) {
        if bytes != 0 {
            core.counters.device_copies.increment();
            core.counters.device_bytes.add(bytes);
        }
        self.count.fetch_add(1, Ordering::Release);
        self.batches.lock().add_running(completion, then);
    }

    /// Has a copy set out with others, at the latest when this turn of progress ends, or the call of the program's does
    /// that it came with ([`set_out`](Self::set_out)).
    ///
    /// # Safety
    /// Both ranges stay allocated, the source unwritten and the destination untouched, until `copy.then` has happened or
    /// is dropped.
    pub(crate) unsafe fn gather(&self, core: &Core, copy: Plain<T>) {
        core.counters.device_copies.increment();
        core.counters.device_bytes.add(copy.len as u64);
        self.count.fetch_add(1, Ordering::Release);
        // SAFETY: the caller's promise.
        unsafe { self.batches.lock().add(copy) };
    }

    /// Lets gathered copies set out.
    pub(crate) fn set_out(&self, core: &Core) {
        if !self.is_empty() {
            self.batches.lock().set_out(&core.devices);
        }
    }

    /// The copies that are done; the caller sees to what follows them, then says so ([`followed`](Self::followed)).
    #[cold]
    pub(crate) fn take_ended(&self, core: &Core) -> Ended<T> {
        // Another thread that polls is as good.
        let Some(mut batches) = self.batches.try_lock() else { return Vec::new() };
        let ended = batches.ended();
        batches.set_out(&core.devices);
        ended
    }

    /// What follows so many copies has happened. Only now may anybody find none left: who does relies on that.
    pub(crate) fn followed(&self, core: &Core, count: usize) {
        self.count.fetch_sub(count, Ordering::Release);
        self.set_out(core);
    }
}
