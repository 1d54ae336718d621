//! The importer's side: mappings of peers' exported memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ahash::AHashMap;
use cableway_base::Parameters;
use parking_lot::Mutex;

use super::mapped::{Mapped, OpenMapping, Reach, WeakMapping};
use super::{Answer, DescriptorRequest, is_run};
use crate::devices::Devices;
use crate::error::DeviceError;
use crate::exported::{ExportKind, Exported, PieceDescriptor};
use crate::location::Location;
use crate::platform::Mapping;

/// The number of consecutive failures after which no more memory of a kind is mapped from a peer.
const PATIENCE: u32 = 4;
/// The number of concurrent requests for descriptors to a peer.
const ASKED: usize = 8;
/// The number of remembered allocations without a mapping, for each mapping that may be kept.
const MET: usize = 4;

/// The mappings of peers' memory, bounded by number and by bytes. The least recently used are closed. A mapping in use
/// is closed when its last user drops it, or once that is not held off any more ([`Devices::hold_mappings`]).
pub struct Imports {
    devices: Devices,
    most: usize,
    most_bytes: u64,
    at_once: u64,
    state: Mutex<State>,
    /// True once any mapping was refused. Until then `failures` need not be read.
    troubled: AtomicBool,
}

#[derive(Default)]
struct State {
    slots: AHashMap<Key, Slot>,
    /// Consecutive failures for each peer and kind.
    failures: AHashMap<(u32, ExportKind), u32>,
    uses: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    peer: u32,
    kind: ExportKind,
    buffer_id: u64,
    /// The id of the importing context.
    context: u64,
}

struct Slot {
    device: [u8; 16],
    base: u64,
    len: u64,
    found: SlotState,
    used: u64,
}

enum SlotState {
    /// Used once.
    Seen,
    /// Used again. A descriptor was requested from its owner, for the context of this location.
    Requested(Location),
    Refused,
    Open(Arc<OpenMapping>),
}

impl Imports {
    /// Creates a cache with the limits of the parameters `device_ipc_mappings`, `device_ipc_bytes` and
    /// `device_ipc_open_size`.
    pub fn new(devices: &Devices, parameters: &Parameters) -> Self {
        Imports {
            devices: devices.clone(),
            most: parameters.device_ipc_mappings.max(1),
            most_bytes: parameters.device_ipc_bytes as u64,
            at_once: parameters.device_ipc_open_size as u64,
            state: Mutex::default(),
            troubled: AtomicBool::new(false),
        }
    }

    /// Maps the allocation that `peer` exported into the context of `into`, for a copy of `len` bytes, unless it is
    /// mapped already, mapping does not pay yet, or mappings are held off ([`Devices::hold_mappings`]).
    ///
    /// Logs a refusal by the driver as a warning, once for each cause. Mapping can take milliseconds, but other callers
    /// do not wait.
    ///
    /// Refuses memory of another vendor's device than that of `into`.
    ///
    /// # Errors
    /// The context of `into` is destroyed.
    pub fn reach(&self, peer: u32, exported: &Exported, into: &Location, len: u64) -> Result<Reach, DeviceError> {
        let reach = self.reach_whole(peer, &exported.whole(), into, len)?;
        Ok(match reach {
            Reach::Mapped(pool) if exported.kind == ExportKind::Pool => {
                match pool.open.mapping.clone().within(exported) {
                    Ok(mapping) => {
                        if self.troubled.load(Ordering::Relaxed) {
                            self.state.lock().failures.insert((peer, exported.kind), 0);
                        }
                        Reach::Mapped(Mapped { open: OpenMapping::new(mapping) })
                    }
                    Err(error) => {
                        if let Some(platform) = self.devices.platform_at(into) {
                            platform.context_id(into)?;
                        }
                        self.state.lock().count_failure(&self.troubled, peer, exported.kind, &error);
                        Reach::Refused
                    }
                }
            }
            reach => reach,
        })
    }

    /// Does the same for memory that stays mapped.
    fn reach_whole(&self, peer: u32, exported: &Exported, into: &Location, len: u64) -> Result<Reach, DeviceError> {
        let Some(platform) = self.devices.platform_at(into) else { return Ok(Reach::Refused) };
        if platform.vendor() != Some(exported.kind.vendor()) {
            return Ok(Reach::Refused);
        }
        let context = if into.context != 0 { into.context } else { platform.context_id(into)? };
        let key = Key { peer, kind: exported.kind, buffer_id: exported.buffer_id, context };
        if let Some(mapped) = self.use_again(&key, exported) {
            return Ok(Reach::Mapped(mapped));
        }
        let Some(_opening) = self.devices.mapping_gate().enter() else { return Ok(Reach::NotYet) };
        // The peer may have allocated again what it freed.
        self.devices.mapping_gate().close_rest();
        // Check the context only now. If the context of a mapping is destroyed, the copy itself fails.
        platform.context_id(into)?;
        let closed;
        {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            state.uses += 1;
            if *state.failures.entry((peer, exported.kind)).or_default() >= PATIENCE {
                return Ok(Reach::Refused);
            }
            match state.slots.get_mut(&key).filter(|slot| slot.is_of(exported)) {
                None if len < self.at_once => {
                    // A displaced allocation was freed. Otherwise the peer could not have allocated the new one there.
                    closed = state.remove(|other, slot| slot.is_displaced(other, peer, exported) && *other != key);
                    state.insert(key, exported, SlotState::Seen);
                    let more = state.shrink(self.most, self.most_bytes);
                    drop(guard);
                    drop((closed, more));
                    return Ok(Reach::NotYet);
                }
                Some(Slot { found: SlotState::Refused, .. }) => return Ok(Reach::Refused),
                Some(Slot { found: SlotState::Requested(_), .. }) => return Ok(Reach::NotYet),
                // Another thread was faster.
                Some(Slot { found: SlotState::Open(open), .. }) => {
                    return Ok(Reach::Mapped(Mapped { open: open.clone() }));
                }
                _ => closed = state.remove(|other, slot| slot.is_displaced(other, peer, exported)),
            }
        }
        // Close the old mapping first: the driver may reuse its addresses for the new one.
        drop(closed);
        Ok(match exported.kind {
            kind if kind.needs_descriptors() => self.ask(key, exported, into),
            _ => self.open_now(key, exported, into, &[]),
        })
    }

    /// Returns a mapping that is open already.
    fn use_again(&self, key: &Key, exported: &Exported) -> Option<Mapped> {
        let state = &mut *self.state.lock();
        let slot = state.slots.get_mut(key).filter(|slot| slot.is_of(exported))?;
        let SlotState::Open(open) = &slot.found else { return None };
        state.uses += 1;
        slot.used = state.uses;
        self.devices.mappings().hits.fetch_add(1, Ordering::Relaxed);
        Some(Mapped { open: open.clone() })
    }

    /// Returns the mapping, unless it was closed meanwhile.
    #[inline]
    pub fn again(&self, was: &WeakMapping) -> Option<Mapped> {
        let open = was.open.upgrade()?;
        open.used.store(true, Ordering::Relaxed);
        self.devices.mappings().hits.fetch_add(1, Ordering::Relaxed);
        Some(Mapped { open })
    }

    fn ask(&self, key: Key, exported: &Exported, into: &Location) -> Reach {
        let mut state = self.state.lock();
        let asked =
            |(other, slot): (&Key, &Slot)| other.peer == key.peer && matches!(slot.found, SlotState::Requested(_));
        let enough = state.slots.iter().filter(|slot| asked(*slot)).count() >= ASKED;
        state.insert(key, exported, if enough { SlotState::Seen } else { SlotState::Requested(*into) });
        let closed = state.shrink(self.most, self.most_bytes);
        drop(state);
        drop(closed);
        if enough { Reach::NotYet } else { Reach::NeedsDescriptor(DescriptorRequest::of(exported)) }
    }

    /// Handles the answer of `peer`: maps the memory and then closes the descriptors.
    pub fn supply(&self, peer: u32, wanted: &DescriptorRequest, answer: Answer) {
        let mut asked = Vec::new();
        let mut state = self.state.lock();
        for (key, slot) in &mut state.slots {
            let meant = key.peer == peer && key.kind.needs_descriptors() && key.buffer_id == wanted.buffer_id;
            if let (true, SlotState::Requested(into)) =
                (meant && (slot.base, slot.len) == (wanted.base, wanted.len), &slot.found)
            {
                asked.push((*key, slot.device, *into));
                slot.found = if matches!(answer, Answer::Refused) { SlotState::Refused } else { SlotState::Seen };
            }
        }
        drop(state);
        let Answer::Descriptors(given) = answer else { return };
        // A later message asks again.
        let Some(_opening) = self.devices.mapping_gate().enter() else { return };
        for (key, device, into) in asked {
            let DescriptorRequest { buffer_id, base, len } = *wanted;
            let exported = Exported { kind: key.kind, device, base, len, buffer_id, handle: [0; 64], pool: 0 };
            self.open_now(key, &exported, &into, &given);
        }
    }

    /// Maps the memory, or records that it cannot be mapped.
    fn open_now(&self, key: Key, exported: &Exported, into: &Location, given: &[PieceDescriptor]) -> Reach {
        let Some(platform) = self.devices.platform_at(into) else { return Reach::Refused };
        let begun = Instant::now();
        let queue = platform.queue(into);
        let opened = queue.and_then(|queue| {
            let gate = self.devices.mapping_gate().clone();
            Mapping::open(queue.workspace.context.clone(), gate, exported, given)
        });
        let peer = key.peer;
        let mut state = self.state.lock();
        let (found, reach) = match opened {
            // It was reported as freed while it was being mapped.
            Ok(_) if !given.is_empty() && !state.slots.contains_key(&key) => return Reach::NotYet,
            Ok(mapping) => {
                log::debug!("mapped {} bytes of process {peer} in {:?}", exported.len, begun.elapsed());
                state.failures.insert((peer, key.kind), 0);
                self.devices.mappings().made.fetch_add(1, Ordering::Relaxed);
                let open = OpenMapping::new(mapping);
                (SlotState::Open(open.clone()), Reach::Mapped(Mapped { open }))
            }
            Err(error) => {
                state.count_failure(&self.troubled, peer, key.kind, &error);
                (SlotState::Refused, Reach::Refused)
            }
        };
        state.insert(key, exported, found);
        let closed = state.shrink(self.most, self.most_bytes);
        drop(state);
        drop(closed);
        reach
    }

    /// Checks whether no memory of this kind from a peer can be mapped.
    #[inline]
    pub fn refuses(&self, peer: u32, kind: ExportKind) -> bool {
        self.troubled.load(Ordering::Relaxed) && self.has_refused(peer, kind)
    }

    #[cold]
    fn has_refused(&self, peer: u32, kind: ExportKind) -> bool {
        self.state.lock().failures.get(&(peer, kind)).is_some_and(|&failures| failures >= PATIENCE)
    }

    /// Checks whether no memory of a peer can be mapped, of all kinds used so far.
    #[inline]
    pub fn given_up(&self, peer: u32) -> bool {
        self.troubled.load(Ordering::Relaxed) && self.has_given_up(peer)
    }

    #[cold]
    fn has_given_up(&self, peer: u32) -> bool {
        let state = self.state.lock();
        let mut met = state.failures.iter().filter(|((other, _), _)| *other == peer).peekable();
        met.peek().is_some() && met.all(|(_, &failures)| failures >= PATIENCE)
    }

    /// Closes the import of an allocation that its owner has freed.
    pub fn forget(&self, peer: u32, buffer_id: u64) {
        let closed = self.state.lock().remove(|key, _| key.peer == peer && key.buffer_id == buffer_id);
        drop(closed);
    }

    /// Closes all memory of a peer that died or left.
    pub fn forget_peer(&self, peer: u32) {
        let closed = {
            let mut state = self.state.lock();
            state.failures.retain(|(other, _), _| *other != peer);
            state.remove(|key, _| key.peer == peer)
        };
        drop(closed);
    }

    /// Returns the number of kept mappings, and their bytes.
    pub fn open(&self) -> (usize, u64) {
        let state = self.state.lock();
        let open = state.slots.values().filter(|slot| matches!(slot.found, SlotState::Open(_)));
        open.fold((0, 0), |(count, bytes), slot| (count + 1, bytes + slot.len))
    }
}

impl Slot {
    /// Checks whether it maps exactly this allocation.
    fn is_of(&self, exported: &Exported) -> bool {
        (self.base, self.len, self.device) == (exported.base, exported.len, exported.device)
    }

    /// Checks whether this memory of process `other` cannot exist beside the exported one. Runs may overlap with each
    /// other and with single pieces; their owner reports when they end.
    fn is_displaced(&self, other: &Key, peer: u32, exported: &Exported) -> bool {
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
    fn count_failure(&mut self, troubled: &AtomicBool, peer: u32, kind: ExportKind, error: &DeviceError) {
        let failures = self.failures.entry((peer, kind)).or_default();
        *failures += 1;
        troubled.store(true, Ordering::Relaxed);
        cableway_base::warn_once(&format!("cuda/ipc/import/{}", error.reason), || {
            format!("device memory of process {peer} is copied through the host, as it cannot be mapped: {error}")
        });
    }

    fn insert(&mut self, key: Key, exported: &Exported, found: SlotState) {
        let Exported { device, base, len, .. } = *exported;
        self.slots.insert(key, Slot { device, base, len, found, used: self.uses });
    }

    /// Removes the matching slots. The caller drops them after it releases the lock, because closing waits for the
    /// device.
    fn remove(&mut self, mut matches: impl FnMut(&Key, &Slot) -> bool) -> Vec<Slot> {
        self.slots.extract_if(|key, slot| matches(key, slot)).map(|(_, slot)| slot).collect()
    }

    /// Removes the least recently used mappings until the rest is within the limits. The most recent one stays.
    fn shrink(&mut self, most: usize, most_bytes: u64) -> Vec<Slot> {
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

impl std::fmt::Debug for Imports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (count, bytes) = self.open();
        f.debug_struct("Imports").field("open", &count).field("bytes", &bytes).finish()
    }
}
