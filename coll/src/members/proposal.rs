//! Proposals under way.

use cableway_pml::{Error, Task};

use crate::agreement::Notice;
use crate::run::Note;

/// A proposal under way: a synchronous send. Its sender learns whether the receiver has left.
pub(super) struct Proposal<F> {
    note: Note<{ Notice::LEN }>,
    lost: F,
}

impl<F: Fn(Error)> Proposal<F> {
    /// Calls `lost` if the proposal fails.
    pub(super) fn new(note: Note<{ Notice::LEN }>, lost: F) -> Proposal<F> {
        Proposal { note, lost }
    }
}

impl<F: Fn(Error) + Send + Sync> Task for Proposal<F> {
    fn poll(&self) -> bool {
        if !self.note.is_over() {
            return false;
        }
        if let Some(error) = self.note.failure() {
            (self.lost)(error);
        }
        true
    }
}
