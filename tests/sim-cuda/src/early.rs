//! Synchronous calls that return before they are complete.
//!
//! `cuPointerSetAttribute` waits for those on the allocation whose `SYNC_MEMOPS` it sets, and for nothing else: measured on
//! an H200, driver 580 (`benches/results/2026-11-29-one-h200-queues`).

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};

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

/// The number of such calls on each range.
static CALLS: Mutex<Option<HashMap<u64, usize>>> = Mutex::new(None);
static DONE: Condvar = Condvar::new();

impl Early {
    /// Marks ranges by their ids.
    pub(crate) fn of(ids: impl Iterator<Item = u64>) -> Early {
        let ids: Vec<u64> = ids.collect();
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        ids.iter().for_each(|id| *calls.get_or_insert_default().entry(*id).or_default() += 1);
        Early(ids)
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.get_or_insert_default();
        for id in &self.0 {
            if let Some(count) = calls.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    calls.remove(id);
                }
            }
        }
        DONE.notify_all();
    }
}

/// Waits until no such call uses the range of this id.
pub(crate) fn wait(id: u64) {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    while calls.as_ref().is_some_and(|calls| calls.contains_key(&id)) {
        calls = DONE.wait(calls).unwrap_or_else(PoisonError::into_inner);
    }
}
