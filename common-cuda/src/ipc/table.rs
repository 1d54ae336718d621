//! The table of what this process has exported.

use std::collections::VecDeque;

use ahash::{AHashMap, AHashSet};

use super::is_run;
use super::piece::{Piece, export, say_once, warn_refused};
use super::pools::{Pool, Pools};
use crate::devices::Devices;
use crate::exported::{ExportKind, Exported, NoExport, POOL};
use crate::location::Location;
use crate::platform::Platform;

/// The number of pieces kept for each allocation. Each is checked from time to time.
const PIECES: usize = 8;

/// Allocations, runs and pools.
#[derive(Default)]
pub(super) struct Table {
    /// By buffer id, or by the number of a run.
    pub(super) known: AHashMap<u64, Known>,
    /// Ids of freed allocations, for each process that has their exports.
    pub(super) gone: AHashMap<u32, VecDeque<u64>>,
    pub(super) uses: u64,
    pub(super) pools: Pools,
    /// The last number of a run or a pool.
    pub(super) numbers: u64,
}

/// An allocation or a run.
pub(super) struct Known {
    /// The allocation itself, or the adjacent pieces of a run in the order of their addresses.
    pub(super) pieces: Vec<Piece>,
    pub(super) at: Location,
    /// `None` if the memory cannot be exported.
    pub(super) exported: Option<Exported>,
    pub(super) told: AHashSet<u32>,
    pub(super) used: u64,
}

impl Known {
    /// Exports an allocation. Returns `None` for memory of a kind that has no export.
    #[cold]
    pub(super) fn new(platform: &Platform, at: &Location, address: *const u8, buffer_id: u64) -> Option<Known> {
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

    fn is_of_pool(&self, number: u64) -> bool {
        self.exported.is_some_and(|exported| exported.kind == ExportKind::Pool && exported.pool == number)
    }
}

impl Table {
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
    pub(super) fn number_pool(&mut self, platform: &Platform, known: &mut Known, most: usize) {
        if let Some(exported) = known.exported.filter(|exported| exported.kind == ExportKind::Pool) {
            let number = self.pool(platform, &known.at, exported.pool, known.pieces[0], most);
            known.exported = number.map(|pool| Exported { pool, ..exported });
        }
    }

    /// Returns the number of the pool that has this handle and contains `piece`. The caller has just forgotten known
    /// pools without any allocation.
    fn pool(&mut self, platform: &Platform, at: &Location, handle: u64, piece: Piece, most: usize) -> Option<u64> {
        if let Some(number) = self.pools.find(handle) {
            return Some(number);
        }
        let pool = Pool::new(platform, at, handle, piece)?;
        if let Some(oldest) = self.pools.in_the_way() {
            self.forget_pool(oldest, most);
        }
        self.numbers += 1;
        self.pools.add(self.numbers, pool);
        Some(self.numbers)
    }

    /// Forgets allocations that were freed wholly or in part.
    pub(super) fn forget_freed(&mut self, devices: &Devices, most: usize) {
        let freed = |known: &Known| !known.pieces.iter().all(|piece| piece.is_there(devices));
        let gone: Vec<u64> = self.known.iter().filter(|(_, known)| freed(known)).map(|(id, _)| *id).collect();
        for id in gone {
            self.forget(id, most);
        }
        self.forget_empty_pools(devices, most);
    }

    /// Forgets pools without any known allocation.
    fn forget_empty_pools(&mut self, devices: &Devices, most: usize) {
        for number in self.pools.without_witness(devices) {
            if !self.known.values().any(|known| known.is_of_pool(number)) {
                self.forget_pool(number, most);
            }
        }
    }

    fn forget_pool(&mut self, number: u64, most: usize) {
        self.known.retain(|_, known| !known.is_of_pool(number));
        if let Some(told) = self.pools.remove(number) {
            self.report_freed(POOL | number, told, most);
        }
    }

    fn forget(&mut self, id: u64, most: usize) {
        if let Some(known) = self.known.remove(&id) {
            self.report_freed(id, known.told, most);
        }
    }

    /// Queues the id of a freed allocation for the peers that have its export, at most `most` ids for each peer.
    fn report_freed(&mut self, id: u64, told: AHashSet<u32>, most: usize) {
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
