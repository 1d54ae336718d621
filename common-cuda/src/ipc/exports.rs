//! The owner's side: what was exported, and whether it still exists.

use std::collections::VecDeque;

use ahash::{AHashMap, AHashSet};
use parking_lot::Mutex;

use super::{Answer, ExportKind, Exported, NoExport, Wanted};
use crate::devices::Devices;
use crate::location::Location;
use crate::vendor::Vendor;

/// The allocations that this process has exported. Bounded: the one that was not used for longest is forgotten.
pub struct Exports {
    devices: Devices,
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By buffer id.
    known: AHashMap<u64, Known>,
    /// Ids that are no more, for each process that was told of them.
    gone: AHashMap<u32, VecDeque<u64>>,
    uses: u64,
}

struct Known {
    base: u64,
    at: Location,
    /// None: the driver refused.
    exported: Option<Exported>,
    told: AHashSet<u32>,
    used: u64,
}

impl Exports {
    /// Keeps at most `most` allocations.
    pub fn new(devices: &Devices, most: usize) -> Self {
        Exports { devices: devices.clone(), most: most.max(1), state: Mutex::default() }
    }

    /// The export of the allocation around `len` bytes at `address`, for the process `peer`; none if it cannot be had:
    /// for memory of a kind that has none there is one line at level info, for a driver that refuses one warning.
    ///
    /// `at` was found out in the operation that this is for, so that the memory cannot have been freed since: it tells
    /// which allocation it is.
    pub fn export(&self, at: &Location, address: *const u8, len: usize, peer: u32) -> Option<Exported> {
        let vendor = self.devices.vendor()?;
        let buffer_id = if at.buffer_id != 0 { at.buffer_id } else { vendor.buffer_id(address)? };
        if buffer_id == 0 {
            return None;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        state.uses += 1;
        let known = match state.known.get_mut(&buffer_id) {
            Some(known) => known,
            None => {
                let known = Known::new(vendor, at, address, buffer_id)?;
                state.make_room(&self.devices, self.most);
                state.known.entry(buffer_id).or_insert(known)
            }
        };
        known.used = state.uses;
        let exported = known.exported?;
        let first = (address as u64).checked_sub(exported.base)?;
        if first.checked_add(len as u64)? > exported.len {
            return None;
        }
        known.told.insert(peer);
        Some(exported)
    }

    /// What `peer` gets that asks for a descriptor of something it was told of.
    pub fn answer(&self, wanted: &Wanted, peer: u32) -> Answer {
        let Some(vendor) = self.devices.vendor() else { return Answer::Gone };
        let (at, exported) = {
            let state = self.state.lock();
            let known = state.known.get(&wanted.buffer_id).filter(|known| known.told.contains(&peer));
            let Some((at, Some(exported))) = known.map(|known| (known.at, known.exported)) else { return Answer::Gone };
            (at, exported)
        };
        if exported.kind != ExportKind::Descriptor || Wanted::of(&exported) != *wanted {
            return Answer::Gone;
        }
        match vendor.descriptor(&at, &exported) {
            Ok(Some(descriptor)) => Answer::Given(descriptor),
            Ok(None) => Answer::Gone,
            Err(error) => {
                cableway_base::warn_once("cuda/ipc/descriptor", || {
                    format!("device memory is copied through the host, because it cannot be shared: {error}")
                });
                Answer::Refused
            }
        }
    }

    /// The id of an allocation that `peer` was told of and that is no more; each is said once.
    pub fn gone(&self, peer: u32) -> Option<u64> {
        self.state.lock().gone.get_mut(&peer)?.pop_front()
    }

    /// Looks which allocations are no more, and has each process hear of those that it was told of, by `say(peer, id)`.
    /// What cannot be said now stays for the next time.
    pub fn tell_gone(&self, mut say: impl FnMut(u32, u64) -> bool) {
        let mut state = self.state.lock();
        state.forget_freed(&self.devices, self.most);
        for (peer, ids) in &mut state.gone {
            while ids.front().is_some_and(|id| say(*peer, *id)) {
                ids.pop_front();
            }
        }
    }

    /// Forgets what a process was told.
    pub fn forget_peer(&self, peer: u32) {
        let mut state = self.state.lock();
        state.gone.remove(&peer);
        for known in state.known.values_mut() {
            known.told.remove(&peer);
        }
    }
}

impl Known {
    /// None for memory of a kind that has no export.
    #[cold]
    fn new(vendor: &dyn Vendor, at: &Location, address: *const u8, buffer_id: u64) -> Option<Known> {
        let exported = match vendor.export(at, address, buffer_id) {
            Ok(exported) => Some(exported),
            Err(NoExport::Kind) => {
                say_once("cuda/ipc/kind", || {
                    "memory of pools, managed memory, and memory of virtual memory management that was not made to be \
                     shared by file descriptor is copied through the host, because no other process could map it"
                        .to_owned()
                });
                return None;
            }
            Err(NoExport::Refused(error)) => {
                cableway_base::warn_once("cuda/ipc/export", || {
                    format!("device memory is copied through the host, because it cannot be shared: {error}")
                });
                None
            }
        };
        let base = exported.map_or(address as u64, |exported| exported.base);
        Some(Known { base, at: *at, exported, told: AHashSet::new(), used: 0 })
    }
}

impl State {
    /// Forgets what was freed, and one more if there are still too many.
    fn make_room(&mut self, devices: &Devices, most: usize) {
        self.forget_freed(devices, most);
        if self.known.len() >= most
            && let Some(oldest) = self.known.iter().min_by_key(|(_, known)| known.used).map(|(id, _)| *id)
        {
            self.known.remove(&oldest);
        }
    }

    /// Forgets what was freed. Of what each process was told, `most` are kept to be said to be no more.
    fn forget_freed(&mut self, devices: &Devices, most: usize) {
        let Some(vendor) = devices.vendor() else { return };
        let freed = |id: u64, base: u64| vendor.buffer_id(std::ptr::with_exposed_provenance(base as usize)) != Some(id);
        let gone: Vec<u64> = self.known.iter().filter(|(id, at)| freed(**id, at.base)).map(|(id, _)| *id).collect();
        for id in gone {
            let told = self.known.remove(&id).map(|known| known.told).unwrap_or_default();
            for peer in told {
                let queue = self.gone.entry(peer).or_default();
                queue.push_back(id);
                // Who is never told closes it when its own limits ask for it.
                if queue.len() > most {
                    queue.pop_front();
                }
            }
        }
    }
}

/// One line at level info for each cause.
fn say_once(cause: &'static str, message: impl FnOnce() -> String) {
    static SAID: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut said = SAID.lock();
    if !said.contains(&cause) {
        said.push(cause);
        log::info!("{}", message());
    }
}

impl std::fmt::Debug for Exports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exports").field("known", &self.state.lock().known.len()).finish()
    }
}
