//! What an importer knows of peers' allocations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ahash::AHashMap;

use super::is_run;
use super::mapped::OpenMapping;
use crate::error::DeviceError;
use crate::exported::{ExportKind, Exported};
use crate::location::Location;

/// The number of consecutive failures after which no more memory of a kind is mapped from a peer.
pub(super) const PATIENCE: u32 = 4;
/// The number of remembered allocations without a mapping, for each mapping that may be kept.
const MET: usize = 4;

#[derive(Default)]
pub(super) struct State {
    pub(super) slots: AHashMap<Key, Slot>,
    /// Consecutive failures for each peer and kind.
    pub(super) failures: AHashMap<(u32, ExportKind), u32>,
    pub(super) uses: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) peer: u32,
    pub(super) kind: ExportKind,
    pub(super) buffer_id: u64,
    /// The id of the importing context.
    pub(super) context: u64,
}

pub(super) struct Slot {
    pub(super) device: [u8; 16],
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) found: SlotState,
    pub(super) used: u64,
}

pub(super) enum SlotState {
    /// Used once.
    Seen,
    /// Used again while mappings were held off. It is mapped once they are not.
    Postponed,
    /// Used again. A descriptor was requested from its owner, for the context of this location.
    Requested(Location),
    Refused,
    Open(Arc<OpenMapping>),
}

impl Slot {
    /// Checks whether it maps exactly this allocation.
    pub(super) fn is_of(&self, exported: &Exported) -> bool {
        (self.base, self.len, self.device) == (exported.base, exported.len, exported.device)
    }

    /// Checks whether this memory of process `other` cannot exist beside the exported one. Runs may overlap with each
    /// other and with single pieces; their owner reports when they end.
    pub(super) fn is_displaced(&self, other: &Key, peer: u32, exported: &Exported) -> bool {
        let end = |base: u64, len: u64| base.saturating_add(len);
        let overlaps = self.device == exported.device
            && self.base < end(exported.base, exported.len)
            && exported.base < end(self.base, self.len);
        let apart = other.kind != exported.kind || !(is_run(other.buffer_id) || is_run(exported.buffer_id));
        let same = (self.base, self.len) == (exported.base, exported.len);
        other.peer == peer && overlaps && (apart || same)
    }
}

impl State {
    /// Warns about memory that cannot be mapped. After repeated failures, stops mapping this peer's memory of the kind.
    pub(super) fn count_failure(&mut self, troubled: &AtomicBool, peer: u32, kind: ExportKind, error: &DeviceError) {
        let failures = self.failures.entry((peer, kind)).or_default();
        *failures += 1;
        troubled.store(true, Ordering::Relaxed);
        cableway_base::warn_once(&format!("cuda/ipc/import/{}", error.reason), || {
            format!("device memory of process {peer} is copied through the host, as it cannot be mapped: {error}")
        });
    }

    pub(super) fn insert(&mut self, key: Key, exported: &Exported, found: SlotState) {
        let Exported { device, base, len, .. } = *exported;
        self.slots.insert(key, Slot { device, base, len, found, used: self.uses });
    }

    /// Removes the matching slots. The caller drops them after it releases the lock, because closing waits for the
    /// device.
    pub(super) fn remove(&mut self, mut matches: impl FnMut(&Key, &Slot) -> bool) -> Vec<Slot> {
        self.slots.extract_if(|key, slot| matches(key, slot)).map(|(_, slot)| slot).collect()
    }

    /// Removes the least recently used mappings until the rest is within the limits. The most recent one stays.
    pub(super) fn shrink(&mut self, most: usize, most_bytes: u64) -> Vec<Slot> {
        let mut taken = Vec::new();
        loop {
            let open = || self.slots.values().filter(|slot| matches!(slot.found, SlotState::Open(_)));
            let (count, bytes) = (open().count(), open().map(|slot| slot.len).sum::<u64>());
            let too_much = count > most || bytes > most_bytes;
            if !too_much && self.slots.len() <= most.saturating_mul(1 + MET) {
                return taken;
            }
            let uses = self.uses;
            // The exact time of use is not recorded. Sort it just before the mapping that was used last.
            for slot in self.slots.values_mut() {
                if matches!(&slot.found, SlotState::Open(open) if open.used.swap(false, Ordering::Relaxed)) {
                    slot.used = slot.used.max(uses.saturating_sub(1));
                }
            }
            let able = |slot: &Slot| slot.used != uses && (!too_much || matches!(slot.found, SlotState::Open(_)));
            let oldest = self.slots.iter().filter(|(_, slot)| able(slot)).min_by_key(|(_, slot)| slot.used);
            let Some(key) = oldest.map(|(key, _)| *key) else { return taken };
            taken.extend(self.slots.remove(&key));
        }
    }
}
