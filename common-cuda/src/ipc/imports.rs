//! The importer's side: mappings of peers' exported memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use cableway_base::Parameters;
use parking_lot::Mutex;

use super::mapped::{Mapped, OpenMapping, Reach, WeakMapping};
use super::slots::{Key, PATIENCE, Slot, SlotState, State};
use super::{Answer, DescriptorRequest};
use crate::devices::Devices;
use crate::error::DeviceError;
use crate::exported::{ExportKind, Exported, PieceDescriptor};
use crate::location::Location;
use crate::platform::Mapping;

/// The number of concurrent requests for descriptors to a peer.
const ASKED: usize = 8;
/// The mappings of peers' memory, bounded by number and by bytes. The least recently used are closed. A mapping in use
/// is closed when its last user drops it, or once that is not held off any more ([`Devices::hold_mappings`]).
///
/// What is used while mappings are held off is mapped once they are allowed ([`Devices::allow_mappings`]).
pub struct Imports {
    /// For mappings that are opened later.
    this: Weak<Imports>,
    devices: Devices,
    most: usize,
    most_bytes: u64,
    at_once: u64,
    state: Mutex<State>,
    /// True once any mapping was refused. Until then `failures` need not be read.
    troubled: AtomicBool,
}

impl Imports {
    /// Creates a cache with the limits of the parameters `device_ipc_mappings`, `device_ipc_bytes` and
    /// `device_ipc_open_size`.
    pub fn new(devices: &Devices, parameters: &Parameters) -> Arc<Self> {
        Arc::new_cyclic(|this| Imports {
            this: this.clone(),
            devices: devices.clone(),
            most: parameters.device_ipc_mappings.max(1),
            most_bytes: parameters.device_ipc_bytes as u64,
            at_once: parameters.device_ipc_open_size as u64,
            state: Mutex::default(),
            troubled: AtomicBool::new(false),
        })
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
        let Some(_opening) = self.devices.mapping_gate().enter() else {
            self.postpone(key, exported, into, len);
            return Ok(Reach::NotYet);
        };
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

    /// Has memory that is used again mapped once mappings are not held off any more. Memory that needs descriptors is not:
    /// its owner passes them only in calls.
    fn postpone(&self, key: Key, exported: &Exported, into: &Location, len: u64) {
        if exported.kind.needs_descriptors() {
            return;
        }
        let mut state = self.state.lock();
        state.uses += 1;
        let found = match state.slots.get(&key).filter(|slot| slot.is_of(exported)) {
            None if len < self.at_once => SlotState::Seen,
            None | Some(Slot { found: SlotState::Seen, .. }) => SlotState::Postponed,
            Some(_) => return,
        };
        let wanted = matches!(found, SlotState::Postponed);
        let closed = state.remove(|other, slot| slot.is_displaced(other, key.peer, exported));
        state.insert(key, exported, found);
        let more = state.shrink(self.most, self.most_bytes);
        drop(state);
        drop((closed, more));
        let (this, exported, into) = (self.this.clone(), *exported, *into);
        let open = move || {
            if let Some(imports) = this.upgrade() {
                imports.open_postponed(key, &exported, &into);
            }
        };
        if wanted && !self.devices.mapping_gate().open_later(open) {
            self.state.lock().insert(key, &exported, SlotState::Seen);
        }
    }

    /// Maps memory that was postponed, unless a message has mapped it or its owner has freed it.
    fn open_postponed(&self, key: Key, exported: &Exported, into: &Location) {
        let is_wanted = |slot: &Slot| slot.is_of(exported) && matches!(slot.found, SlotState::Postponed);
        if self.state.lock().slots.get(&key).is_some_and(is_wanted) {
            // Its owner may have freed it. So a failure says nothing about other memory.
            if let Err(error) = self.try_to_open(key, exported, into, &[]) {
                log::debug!("memory of process {} is not mapped later: {error}", key.peer);
            }
        }
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

    /// Maps the memory, or records and counts that it cannot be mapped.
    fn open_now(&self, key: Key, exported: &Exported, into: &Location, given: &[PieceDescriptor]) -> Reach {
        self.try_to_open(key, exported, into, given).unwrap_or_else(|error| {
            self.state.lock().count_failure(&self.troubled, key.peer, key.kind, &error);
            Reach::Refused
        })
    }

    /// Maps the memory, or records that it cannot be mapped.
    fn try_to_open(
        &self,
        key: Key,
        exported: &Exported,
        into: &Location,
        given: &[PieceDescriptor],
    ) -> Result<Reach, DeviceError> {
        let Some(platform) = self.devices.platform_at(into) else { return Ok(Reach::Refused) };
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
            Ok(_) if !given.is_empty() && !state.slots.contains_key(&key) => return Ok(Reach::NotYet),
            Ok(mapping) => {
                log::debug!("mapped {} bytes of process {peer} in {:?}", exported.len, begun.elapsed());
                state.failures.insert((peer, key.kind), 0);
                self.devices.mappings().made.fetch_add(1, Ordering::Relaxed);
                let open = OpenMapping::new(mapping);
                (SlotState::Open(open.clone()), Ok(Reach::Mapped(Mapped { open })))
            }
            Err(error) => (SlotState::Refused, Err(error)),
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

impl std::fmt::Debug for Imports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (count, bytes) = self.open();
        f.debug_struct("Imports").field("open", &count).field("bytes", &bytes).finish()
    }
}
