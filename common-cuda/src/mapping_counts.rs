//! Counters of mappings.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of new mappings of peers' memory, and of mappings that were used again.
#[derive(Debug, Default)]
pub struct MappingCounts {
    pub(crate) made: AtomicU64,
    pub(crate) hits: AtomicU64,
}

impl MappingCounts {
    /// Returns the new mappings and the mappings used again since the last call.
    pub fn take(&self) -> (u64, u64) {
        (self.made.swap(0, Ordering::Relaxed), self.hits.swap(0, Ordering::Relaxed))
    }
}
