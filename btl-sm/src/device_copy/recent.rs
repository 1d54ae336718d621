//! Caches the allocations of the last messages to and from one peer, so that later messages of the same allocation need
//! no lookup.
//!
//! Entries are keyed by the driver's allocation ids, which are never reused and are read for every message. A freed
//! allocation is therefore never found.

use cableway_btl::{Access, Region, RemoteHandle};
use cableway_common_cuda::{Location, Mapped, WeakMapping};

use super::handle::Handle;

/// After this many uses the cache of exports is asked again, so that it does not drop the entry. If it does, the cost
/// is a new handle, and that the peer keeps a mapping of freed memory until its own limits close it. Mappings are
/// counted at each use.
const USES: u32 = 32;

/// The cache of one peer.
#[derive(Default)]
pub(crate) struct Recent {
    /// For each access.
    exported: [Option<RecentExport>; 2],
    imported: [Option<RecentImport>; 2],
}

struct RecentExport {
    at: Location,
    handle: Handle,
    uses: u32,
}

struct RecentImport {
    handle: Handle,
    into: Location,
    mapping: WeakMapping,
}

impl Recent {
    /// Returns the handle of another part of the last exported allocation.
    #[inline]
    pub(crate) fn export(&mut self, region: &Region, access: Access) -> Option<RemoteHandle> {
        let recent = self.exported[access as usize].as_mut()?;
        if recent.uses == USES || recent.at != region.location {
            return None;
        }
        recent.uses += 1;
        recent.handle.of_part(region.address, region.len)?.to_remote()
    }

    pub(super) fn exported(&mut self, at: &Location, access: Access, handle: &Handle) {
        // Do not cache allocations without an id, nor runs, of which only the first piece is known. Whether pool memory
        // is exported depends on its length. A freed allocation is reported only once.
        if at.buffer_id != 0 && handle.is_of(at.buffer_id) && !handle.is_of_pool() && handle.gone().is_none() {
            self.exported[access as usize] = Some(RecentExport { at: *at, handle: *handle, uses: 0 });
        }
    }

    /// Returns the mapping if the handle names a part of the last used allocation, in the same context.
    #[inline]
    pub(super) fn imported(&self, handle: &Handle, access: Access, into: &Location) -> Option<&WeakMapping> {
        let recent = self.imported[access as usize].as_ref()?;
        let same = (recent.into.context, recent.into.device) == (into.context, into.device);
        (same && into.context != 0 && recent.handle.is_of_same(handle)).then_some(&recent.mapping)
    }

    pub(super) fn reached(&mut self, handle: &Handle, access: Access, into: &Location, mapped: &Mapped) {
        self.imported[access as usize] =
            Some(RecentImport { handle: *handle, into: *into, mapping: mapped.remember() });
    }
}

#[cfg(test)]
mod tests {
    use cableway_common_cuda::{DeviceIndex, ExportKind, Exported, MemoryClass, Order};

    use super::*;

    #[test]
    fn unknown_later_pieces_are_not_cached() {
        let location = Location { class: MemoryClass::Device, device: Some(DeviceIndex(0)), context: 0, buffer_id: 7 };
        let region = Region { address: 0x10_0000 as *mut u8, len: 2000, location, order: Order::None };
        for (buffer_id, remembered) in [(7, true), (1 << 63 | 1, false)] {
            let kind = ExportKind::Descriptor;
            let exported =
                Exported { kind, device: [0; 16], base: 0x10_0000, len: 4000, buffer_id, handle: [0; 64], pool: 0 };
            let handle = Handle::new(&exported, region.address, region.len, Access::RemoteRead, None);
            let mut recent = Recent::default();
            recent.exported(&location, Access::RemoteRead, &handle);
            let again = recent.export(&region, Access::RemoteRead);
            assert_eq!(again.is_some(), remembered, "{buffer_id}");
        }
    }
}
