//! Registers the program's memory.
//!
//! Registration takes as long as copying the same bytes. Therefore registrations are cached while the pages are known
//! to be unchanged ([`watch`]). Memory that peers may *write* is registered for one transfer only, so that no late
//! write reaches it.

mod cache;
mod watch;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use self::cache::Cache;
use self::watch::{PAGE, Watch};
use crate::NAME;
use crate::verbs::{Access, MemoryRegion, Protection};

pub(crate) struct Registrations {
    protection: Arc<Protection>,
    kept: Option<Mutex<Cache<MemoryRegion>>>,
}

impl Registrations {
    /// Makes a cache for up to `limit` bytes.
    pub(crate) fn new(protection: &Arc<Protection>, limit: usize) -> Self {
        let watch = (limit != 0).then(Watch::shared).and_then(|watch| {
            watch
                .inspect_err(|error| {
                    log::info!(
                        "{NAME}: each transfer registers its memory, because userfaultfd is unavailable: {error}"
                    )
                })
                .ok()
        });
        Registrations {
            protection: Arc::clone(protection),
            kept: watch.map(|watch| Mutex::new(Cache::new(watch, limit))),
        }
    }

    /// Returns a registration of at least these bytes.
    ///
    /// # Safety
    /// The bytes stay mapped until all work on them has completed.
    ///
    /// # Errors
    /// As [`MemoryRegion::new`].
    pub(crate) unsafe fn get(&self, address: *mut u8, len: usize, access: Access) -> io::Result<Arc<MemoryRegion>> {
        // SAFETY: the caller's promise covers whole pages, and a cached registration is not used after its pages are
        // unmapped.
        let make = |address: *mut u8, len, access| unsafe { MemoryRegion::new(&self.protection, address, len, access) };
        let writable = match access {
            Access::LocalRead | Access::RemoteRead => false,
            Access::LocalWrite | Access::LocalWriteRemoteRead => true,
            Access::RemoteWrite => return make(address, len, access).map(Arc::new),
        };
        let Some(kept) = &self.kept else { return make(address, len, access).map(Arc::new) };
        let first = address as usize & !(PAGE - 1);
        let Some(end) = (address as usize).checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let make_pages = |pages: &Range<usize>, writable| {
            let access = if writable { Access::LocalWriteRemoteRead } else { Access::RemoteRead };
            make(address.with_addr(pages.start), pages.len(), access)
        };
        let mut kept = kept.lock();
        let found = kept.get(&(first..end), writable, make_pages);
        match found {
            // The memory lock limit is reached, perhaps because of cached registrations.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && kept.clear() => {
                kept.get(&(first..end), writable, make_pages)
            }
            found => found,
        }
    }
}
