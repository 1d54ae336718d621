//! The owner's side: exported memory, and whether it still exists.

use std::collections::VecDeque;

use ahash::{AHashMap, AHashSet};
use parking_lot::Mutex;

use super::pools::Pool;
use super::{Answer, DescriptorRequest, is_run};
use crate::devices::Devices;
use crate::error::DeviceError;
use crate::exported::{ExportKind, Exported, NoExport, POOL, PieceDescriptor};
use crate::location::Location;
use crate::platform::Platform;

/// The number of pieces kept for each allocation. Each is checked from time to time.
const PIECES: usize = 8;

/// The allocations that this process has exported. Their number is bounded: the least recently used one is forgotten.
pub struct Exports {
    devices: Devices,
    most: usize,
    pool_size: usize,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// By buffer id, or by the number of a run.
    pub(super) known: AHashMap<u64, Known>,
    /// Ids of freed allocations, for each process that has their exports.
    gone: AHashMap<u32, VecDeque<u64>>,
    pub(super) uses: u64,
    /// By number.
    pub(super) pools: AHashMap<u64, Pool>,
    /// The last number of a run or a pool.
    pub(super) numbers: u64,
}

pub(super) struct Known {
    /// The allocation itself, or the adjacent pieces of a run in the order of their addresses.
    pub(super) pieces: Vec<Piece>,
    pub(super) at: Location,
    /// `None` if the memory cannot be exported.
    pub(super) exported: Option<Exported>,
    pub(super) told: AHashSet<u32>,
    pub(super) used: u64,
}

/// A part with an id in the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) buffer_id: u64,
}

impl Piece {
    pub(super) fn is_there(&self, devices: &Devices) -> bool {
        devices.is_allocated(self.buffer_id, self.base as usize)
    }
}

impl Exports {
    /// Creates a cache of at most `most` allocations outside of pools.
    pub fn new(devices: &Devices, most: usize) -> Self {
        Exports { devices: devices.clone(), most: most.max(1), pool_size: usize::MAX, state: Mutex::default() }
    }

    /// Creates the same cache. It exports pool memory if the export has at least this many bytes.
    pub fn with_pools(self, pool_size: usize) -> Self {
        Exports { pool_size, ..self }
    }

    /// Returns the export of the allocation around `len` bytes at `address`, or of the run of pieces that contains
    /// them, for the process `peer`. Returns `None` if there is no export: memory of an unsupported kind causes one
    /// line at level info, and a refusal by the driver one warning.
    ///
    /// `at` was determined in the same operation, so the memory was not freed since. It identifies the allocation.
    pub fn export(&self, at: &Location, address: *const u8, len: usize, peer: u32) -> Option<Exported> {
        let platform = self.devices.platform_at(at)?;
        let buffer_id = if at.buffer_id != 0 { at.buffer_id } else { platform.buffer_id(address)? };
        if buffer_id == 0 {
            return None;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        state.uses += 1;
        let known = match state.known.get_mut(&buffer_id) {
            Some(known) => known,
            None => {
                let mut known = Known::new(platform, at, address, buffer_id)?;
                state.make_room(&self.devices, self.most);
                state.number_pool(platform, &mut known, self.most);
                state.known.entry(buffer_id).or_insert(known)
            }
        };
        known.used = state.uses;
        let exported = known.exported?;
        let first = (address as u64).checked_sub(exported.base)?;
        if first.checked_add(len as u64)? <= exported.len {
            if exported.kind != ExportKind::Pool {
                known.told.insert(peer);
                return Some(exported);
            }
            if len < self.pool_size {
                return None;
            }
            let piece = known.pieces[0];
            state.tell_pool(exported.pool, piece, peer);
            return Some(exported);
        }
        if exported.kind != ExportKind::Descriptor {
            return None;
        }
        let run = address as u64..(address as u64).checked_add(len as u64)?;
        let known = state.run(&self.devices, self.most, at, &run)?;
        known.told.insert(peer);
        known.exported
    }

    /// Answers a peer's request for descriptors of an exported allocation.
    pub fn answer(&self, wanted: &DescriptorRequest, peer: u32) -> Answer {
        let (at, exported, pieces) = {
            let state = self.state.lock();
            if wanted.buffer_id & !(POOL - 1) == POOL && (wanted.base, wanted.len) == (0, 0) {
                return state.give_pool(wanted.buffer_id & (POOL - 1), peer);
            }
            let known = state.known.get(&wanted.buffer_id).filter(|known| known.told.contains(&peer));
            let Some(Known { at, exported: Some(exported), pieces, .. }) = known else { return Answer::Gone };
            (*at, *exported, pieces.clone())
        };
        if exported.kind != ExportKind::Descriptor || DescriptorRequest::of(&exported) != *wanted {
            return Answer::Gone;
        }
        let Some(platform) = self.devices.platform_at(&at) else { return Answer::Gone };
        let mut given = Vec::with_capacity(pieces.len());
        for Piece { base, len, buffer_id } in pieces {
            let object = || format!("{len} bytes of virtual memory management at {base:#x}");
            let exported = Exported { base, len, buffer_id, ..exported };
            match platform.within(&at, object, |driver| driver.descriptor(&exported)) {
                Ok(Some(descriptor)) => given.push(PieceDescriptor { descriptor, len }),
                Ok(None) => return Answer::Gone,
                Err(error) => {
                    warn_refused("cuda/ipc/descriptor", &error);
                    return Answer::Refused;
                }
            }
        }
        Answer::Descriptors(given)
    }

    /// Returns the id of a freed allocation whose export `peer` has. It stays in the queue until
    /// [`tell_gone`](Self::tell_gone).
    pub fn gone(&self, peer: u32) -> Option<u64> {
        self.state.lock().gone.get(&peer)?.front().copied()
    }

    /// Finds allocations that were freed, and reports each by `say(peer, id)` to each process that has its export. If
    /// `say` returns false, the next call tries again.
    pub fn tell_gone(&self, mut say: impl FnMut(u32, u64) -> bool) {
        let mut state = self.state.lock();
        state.forget_freed(&self.devices, self.most);
        for (peer, ids) in &mut state.gone {
            while ids.front().is_some_and(|id| say(*peer, *id)) {
                ids.pop_front();
            }
        }
    }

    /// Forgets the exports that a process has.
    pub fn forget_peer(&self, peer: u32) {
        let mut state = self.state.lock();
        state.gone.remove(&peer);
        state.forget_peer_of_pools(peer);
        for known in state.known.values_mut() {
            known.told.remove(&peer);
        }
    }
}

impl Known {
    /// Exports an allocation. Returns `None` for memory of a kind that has no export.
    #[cold]
    fn new(platform: &Platform, at: &Location, address: *const u8, buffer_id: u64) -> Option<Known> {
        let exported = match export(platform, at, address, buffer_id) {
            Ok(exported) => Some(exported),
            Err(NoExport::Kind) => {
                say_once("cuda/ipc/kind", || {
                    "managed memory, and memory of pools and of virtual memory management that was not made to be \
                     shared by file descriptor, is copied through the host, because no other process could map it"
                        .to_owned()
                });
                return None;
            }
            Err(NoExport::Refused(error)) => {
                warn_refused("cuda/ipc/export", &error);
                None
            }
        };
        let (base, len) = exported.map_or((address as u64, 0), |exported| (exported.base, exported.len));
        let pieces = vec![Piece { base, len, buffer_id }];
        Some(Known { pieces, at: *at, exported, told: AHashSet::new(), used: 0 })
    }

    pub(super) fn is_of_pool(&self, number: u64) -> bool {
        self.exported.is_some_and(|exported| exported.kind == ExportKind::Pool && exported.pool == number)
    }
}

impl State {
    /// Forgets freed allocations, and the least recently used ones until there is room for another.
    pub(super) fn make_room(&mut self, devices: &Devices, most: usize) {
        self.forget_freed(devices, most);
        let pieces = |known: &AHashMap<u64, Known>| known.values().map(|known| known.pieces.len()).sum::<usize>();
        while self.known.len() >= most || pieces(&self.known) >= most.saturating_mul(PIECES) {
            let Some(oldest) = self.known.iter().min_by_key(|(_, known)| known.used).map(|(id, _)| *id) else { return };
            // The id of an allocation may be exported again. The number of a run is never reused.
            match is_run(oldest) {
                true => self.forget(oldest, most),
                false => drop(self.known.remove(&oldest)),
            }
        }
    }

    /// Replaces a pool's handle by the pool's number.
    fn number_pool(&mut self, platform: &Platform, known: &mut Known, most: usize) {
        if let Some(exported) = known.exported.filter(|exported| exported.kind == ExportKind::Pool) {
            let number = self.pool(platform, &known.at, exported.pool, known.pieces[0], most);
            known.exported = number.map(|pool| Exported { pool, ..exported });
        }
    }

    /// Forgets allocations that were freed wholly or in part.
    fn forget_freed(&mut self, devices: &Devices, most: usize) {
        let freed = |known: &Known| !known.pieces.iter().all(|piece| piece.is_there(devices));
        let gone: Vec<u64> = self.known.iter().filter(|(_, known)| freed(known)).map(|(id, _)| *id).collect();
        for id in gone {
            self.forget(id, most);
        }
        self.forget_empty_pools(devices, most);
    }

    fn forget(&mut self, id: u64, most: usize) {
        if let Some(known) = self.known.remove(&id) {
            self.report_freed(id, known.told, most);
        }
    }

    /// Queues the id of a freed allocation for the peers that have its export, at most `most` ids for each peer.
    pub(super) fn report_freed(&mut self, id: u64, told: AHashSet<u32>, most: usize) {
        for peer in told {
            let queue = self.gone.entry(peer).or_default();
            queue.push_back(id);
            // A peer that misses an id closes the mapping when its cache is full.
            if queue.len() > most {
                queue.pop_front();
            }
        }
    }
}

/// Says once that the driver refuses to share.
pub(super) fn warn_refused(cause: &str, error: &DeviceError) {
    cableway_base::warn_once(cause, || {
        format!("device memory is copied through the host, because it cannot be shared: {error}")
    });
}

/// One line at level info for each cause.
pub(super) fn say_once(cause: &'static str, message: impl FnOnce() -> String) {
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

/// Exports the allocation of this id around an address. For pool memory, the export has the driver's handle of the pool
/// instead of the pool's number. The driver may reuse that handle for other pools.
pub(super) fn export(
    platform: &Platform,
    at: &Location,
    address: *const u8,
    buffer_id: u64,
) -> Result<Exported, NoExport> {
    let device = at.device.ok_or(NoExport::Kind)?;
    let object = || format!("the allocation around {address:p} on device {}", device.0);
    let exported = platform.within(at, object, |driver| driver.export(device, address as u64, buffer_id));
    exported.map_err(NoExport::Refused)?.ok_or(NoExport::Kind)
}
