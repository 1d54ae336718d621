//! Counters of mappings.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of mappings of peers' memory, and of those found mapped already.
#[derive(Debug, Default)]
pub struct MappingCounts {
    pub(crate) made: AtomicU64,
    pub(crate) hits: AtomicU64,
}

impl MappingCounts {
    /// Mappings made and mappings used again since this was last asked.
    pub fn take(&self) -> (u64, u64) {
        (self.made.swap(0, Ordering::Relaxed), self.hits.swap(0, Ordering::Relaxed))
    }
}
