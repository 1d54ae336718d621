//! What the last messages to and from one peer have shown of its memory and ours, so that those of one allocation that
//! follow it are looked up nowhere.
//!
//! It is known by the driver's ids of allocations, which are never used twice and are asked for with every message: what
//! belongs to one that is no more is not found again.

use cableway_btl::{Access, Region, RemoteHandle};
use cableway_common_cuda::{Location, Mapped, WasMapped};

use super::handle::Handle;

/// After so many uses, whoever keeps account of exports is asked again. To be forgotten there costs a handle, and that the
/// peer keeps what is no more until its own limits ask for it; of mappings, account is kept at each use.
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
    pub(super) fn imported(&self, handle: &Handle, into: &Location) -> Option<&WasMapped> {
        let recent = self.imported.as_ref()?;
        let same = (recent.into.context, recent.into.device) == (into.context, into.device);
        (same && into.context != 0 && recent.handle.is_of_same(handle)).then_some(&recent.mapping)
    }

    pub(super) fn reached(&mut self, handle: &Handle, into: &Location, mapped: &Mapped) {
        self.imported = Some(RecentImport { handle: *handle, into: *into, mapping: mapped.remember() });
    }
}
