//! Mappings of peers' memory that nobody needs any more.
//!
//! A driver waits for streams before it unmaps memory. So these are gathered, and closed when no stream has work.

use cableway_base::Rank;
use cableway_common_cuda::{Imports, Mapped};
use parking_lot::Mutex;

/// The mappings, with the peer and its driver's id of the allocation.
#[derive(Default)]
pub(super) struct Unneeded(Mutex<Vec<((Rank, u64), Mapped)>>);

impl Unneeded {
    pub(super) fn add(&self, id: (Rank, u64), mapped: Mapped) {
        self.0.lock().push((id, mapped));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Closes the mappings. The driver may wait for streams.
    pub(super) fn close_all(&self, imports: &Imports) {
        let all = std::mem::take(&mut *self.0.lock());
        for ((peer, buffer_id), mapped) in all {
            imports.forget(peer, buffer_id);
            drop(mapped);
        }
    }
}
