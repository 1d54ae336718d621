//! Memory of peers that is mapped for puts, and its end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cableway_base::Rank;
use cableway_common_cuda::Mapped;

use super::prepared::quiet::while_quiet;
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

impl Shared {
    /// Closes mappings that nobody needs, if no stream has anything to do. Otherwise they wait for another call.
    pub(super) fn close_unneeded(&self) {
        if !self.unneeded.is_empty() || self.engine.devices().has_unclosed_mappings() {
            let close = || self.unneeded.close_all(&self.exchange.imports);
            let closed = while_quiet(&self.engine, &self.streams(), Duration::ZERO, close);
            log::debug!("unmapped memory of peers that nobody needs: {}", closed.is_ok());
        }
    }
}
