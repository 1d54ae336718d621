//! Synchronous calls that return before they are complete.
//!
//! `cuPointerSetAttribute` waits for those on the allocation whose `SYNC_MEMOPS` it sets, and for nothing else: measured on
//! an H200, driver 580 (`benches/results/2026-11-29-one-h200-queues`).

use parking_lot::{Condvar, Mutex};

/// The time when a call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Return {
    /// As for the synchronous functions.
    Synchronous,
    /// As soon as the call's memory permits it.
    Asynchronous,
}

/// Marks ranges, by their ids, that a synchronous call still uses although it has returned. Dropped with the work.
#[derive(Default)]
pub(crate) struct Early(Vec<u64>);

/// The ids, once for each such call.
static USED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
static DONE: Condvar = Condvar::new();

impl Early {
    /// Marks ranges by their ids.
    pub(crate) fn of(ids: impl Iterator<Item = u64>) -> Early {
        let ids: Vec<u64> = ids.collect();
        USED.lock().extend(&ids);
        Early(ids)
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let mut used = USED.lock();
        for id in &self.0 {
            if let Some(place) = used.iter().position(|used| used == id) {
                used.swap_remove(place);
            }
        }
        DONE.notify_all();
    }
}

/// Waits until no such call uses the range of this id.
pub(crate) fn wait(id: u64) {
    DONE.wait_while(&mut USED.lock(), |used| used.contains(&id));
}
