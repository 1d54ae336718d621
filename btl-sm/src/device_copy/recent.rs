//! What the last messages to and from one peer have shown of its memory and ours, so that those of one allocation that
//! follow it are looked up nowhere.
//!
//! It is known by the driver's ids of allocations, which are never used twice and are asked for with every message: what
//! belongs to one that is no more is not found again.

use cableway_btl::{Access, Region, RemoteHandle};
use cableway_common_cuda::{Location, Mapped, WasMapped};

use super::handle::Handle;

/// After so many uses, whoever keeps account of them is asked again.
const USES: u32 = 32;

/// Of one peer.
#[derive(Default)]
pub(crate) struct Recent {
    exported: Option<RecentExport>,
    imported: Option<RecentImport>,
}

struct RecentExport {
    at: Location,
    access: Access,
    handle: Handle,
    uses: u32,
}

struct RecentImport {
    handle: Handle,
    into: Location,
    mapping: WasMapped,
    uses: u32,
}

impl Recent {
    /// The name of another part of the allocation that was named last.
    #[inline]
    pub(crate) fn export(&mut self, region: &Region, access: Access) -> Option<RemoteHandle> {
        let recent = self.exported.as_mut()?;
        if recent.uses == USES || recent.access != access || recent.at != region.location {
            return None;
        }
        recent.uses += 1;
        recent.handle.of_part(region.address, region.len)?.to_remote()
    }

    pub(super) fn exported(&mut self, at: &Location, access: Access, handle: &Handle) {
        // An allocation without an id is none that could be known again, and what is no more is said once.
        if at.buffer_id != 0 && handle.gone().is_none() {
            self.exported = Some(RecentExport { at: *at, access, handle: *handle, uses: 0 });
        }
    }

    /// The mapping, if the handle names a part of the allocation that was used last, into the same context.
    #[inline]
    pub(super) fn imported(&mut self, handle: &Handle, into: &Location) -> Option<&WasMapped> {
        let recent = self.imported.as_mut()?;
        let same = (recent.into.context, recent.into.device) == (into.context, into.device);
        if recent.uses == USES || !same || into.context == 0 || !recent.handle.is_of_same(handle) {
            return None;
        }
        recent.uses += 1;
        Some(&recent.mapping)
    }

    pub(super) fn reached(&mut self, handle: &Handle, into: &Location, mapped: &Mapped) {
        self.imported = Some(RecentImport { handle: *handle, into: *into, mapping: mapped.remember(), uses: 0 });
    }
}
