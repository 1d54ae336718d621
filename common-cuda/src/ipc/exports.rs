//! The owner's side: exported memory, and whether it still exists.

use parking_lot::Mutex;

use super::piece::{Piece, warn_refused};
use super::table::{Known, Table};
use super::{Answer, DescriptorRequest};
use crate::devices::Devices;
use crate::exported::{ExportKind, Exported, POOL, PieceDescriptor};
use crate::location::Location;

/// The allocations that this process has exported. Their number is bounded: the least recently used one is forgotten.
pub struct Exports {
    devices: Devices,
    most: usize,
    pool_size: usize,
    table: Mutex<Table>,
}

impl Exports {
    /// Creates a cache of at most `most` allocations outside of pools.
    pub fn new(devices: &Devices, most: usize) -> Self {
        Exports { devices: devices.clone(), most: most.max(1), pool_size: usize::MAX, table: Mutex::default() }
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
        let mut table = self.table.lock();
        let table = &mut *table;
        table.uses += 1;
        let known = match table.known.get_mut(&buffer_id) {
            Some(known) => known,
            None => {
                let mut known = Known::new(platform, at, address, buffer_id)?;
                table.make_room(&self.devices, self.most);
                table.number_pool(platform, &mut known, self.most);
                table.known.entry(buffer_id).or_insert(known)
            }
        };
        known.used = table.uses;
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
            table.pools.tell(exported.pool, piece, peer, table.uses);
            return Some(exported);
        }
        if exported.kind != ExportKind::Descriptor {
            return None;
        }
        let run = address as u64..(address as u64).checked_add(len as u64)?;
        let known = table.run(&self.devices, self.most, at, &run)?;
        known.told.insert(peer);
        known.exported
    }

    /// Answers a peer's request for descriptors of an exported allocation.
    pub fn answer(&self, wanted: &DescriptorRequest, peer: u32) -> Answer {
        let (at, exported, pieces) = {
            let table = self.table.lock();
            if wanted.buffer_id & !(POOL - 1) == POOL && (wanted.base, wanted.len) == (0, 0) {
                return table.pools.answer(wanted.buffer_id & (POOL - 1), peer);
            }
            let known = table.known.get(&wanted.buffer_id).filter(|known| known.told.contains(&peer));
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
        self.table.lock().gone.get(&peer)?.front().copied()
    }

    /// Finds allocations that were freed, and reports each by `say(peer, id)` to each process that has its export. If
    /// `say` returns false, the next call tries again.
    pub fn tell_gone(&self, mut say: impl FnMut(u32, u64) -> bool) {
        let mut table = self.table.lock();
        table.forget_freed(&self.devices, self.most);
        for (peer, ids) in &mut table.gone {
            while ids.front().is_some_and(|id| say(*peer, *id)) {
                ids.pop_front();
            }
        }
    }

    /// Forgets the exports that a process has.
    pub fn forget_peer(&self, peer: u32) {
        let mut table = self.table.lock();
        table.gone.remove(&peer);
        table.pools.forget_peer(peer);
        for known in table.known.values_mut() {
            known.told.remove(&peer);
        }
    }
}

impl std::fmt::Debug for Exports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exports").field("known", &self.table.lock().known.len()).finish()
    }
}
