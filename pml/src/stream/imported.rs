//! Memory of peers that is mapped for puts, and its end.

use std::sync::{Arc, Weak};

use cableway_base::Rank;
use cableway_common_cuda::Mapped;

use super::shared::Shared;

/// A mapping that its registration keeps.
pub(super) struct Imported {
    shared: Weak<Shared>,
    /// The peer, and its driver's id of the allocation.
    id: (Rank, u64),
    /// `None` in the drop only.
    mapped: Option<Mapped>,
}

impl Imported {
    pub(super) fn new(shared: &Arc<Shared>, id: (Rank, u64), mapped: Mapped) -> Imported {
        Imported { shared: Arc::downgrade(shared), id, mapped: Some(mapped) }
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        let (Some(mapped), Some(shared)) = (self.mapped.take(), self.shared.upgrade()) else { return };
        if shared.engine.is_forked() {
            // The driver does not work in a forked child, and locks may be held for ever.
            return std::mem::forget(mapped);
        }
        shared.unneeded.add(self.id, mapped);
        // The thread closes it.
        shared.called();
    }
}
