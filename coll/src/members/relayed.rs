//! The proposals that this process has passed on, and whose decisions it still has to pass on.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::agreement::Notice;

/// Ranks that wait for a decision. This process must not leave before they have got it.
#[derive(Default)]
pub(super) struct Relayed(Mutex<BTreeSet<u32>>);

impl Relayed {
    /// Notes what becomes of a proposal to a rank: a notice is passed on, or [`Notice::Lost`] says that the proposal has
    /// not reached it. Returns whether the rank waited for a decision before.
    pub(super) fn note(&self, rank: u32, notice: Option<Notice>) -> bool {
        let mut waiting = self.0.lock();
        match notice {
            Some(Notice::Propose { .. }) => !waiting.insert(rank),
            Some(Notice::Decide { .. } | Notice::Lost) => waiting.remove(&rank),
            _ => waiting.contains(&rank),
        }
    }

    /// Checks whether no rank waits for a decision.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
