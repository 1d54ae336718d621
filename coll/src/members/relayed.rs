//! The proposals that this process has passed on, and whose decisions it still has to pass on.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::agreement::Notice;

/// Ranks that wait for a decision. This process must not leave before they have got it.
#[derive(Default)]
pub(super) struct Relayed(Mutex<BTreeSet<u32>>);

impl Relayed {
    /// Notes that a notice is passed on to a rank.
    pub(super) fn note(&self, rank: u32, notice: Notice) {
        let mut waiting = self.0.lock();
        match notice {
            Notice::Propose { .. } => drop(waiting.insert(rank)),
            Notice::Decide(_) => drop(waiting.remove(&rank)),
            _ => {}
        }
    }

    /// Notes that a proposal has not reached a rank. Returns whether it was passed on, and the rank would wait.
    pub(super) fn lose(&self, rank: u32) -> bool {
        self.0.lock().remove(&rank)
    }

    /// Checks whether no rank waits for a decision.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
