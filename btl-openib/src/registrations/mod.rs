//! Registered memory of the program.
//!
//! Registration takes as long as moving the same bytes. Registrations are therefore cached, while the pages are known
//! to be unchanged ([`watch`]). Memory that peers may *write* is registered for one transfer only, so that nothing is
//! written late.

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
    /// That keeps up to `limit` bytes.
    pub(crate) fn new(protection: &Arc<Protection>, limit: usize) -> Self {
        let watch = (limit != 0).then(Watch::shared).and_then(|watch| {
            watch.inspect_err(|error| log::info!("{NAME}: memory is registered anew for each transfer: {error}")).ok()
        });
        Registrations {
            protection: Arc::clone(protection),
            kept: watch.map(|watch| Mutex::new(Cache::new(watch, limit))),
        }
    }

    /// A registration of these bytes, and perhaps more.
    ///
    /// # Safety
    /// They stay mapped for as long as work on them is under way.
    ///
    /// # Errors
    /// As [`MemoryRegion::new`].
    pub(crate) unsafe fn get(&self, address: *mut u8, len: usize, access: Access) -> io::Result<Arc<MemoryRegion>> {
        // SAFETY: the caller's promise; whole pages are mapped or not, and what is kept is not used once they are not.
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
            // Too much is locked, perhaps by what is kept.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && kept.clear() => {
                kept.get(&(first..end), writable, make_pages)
            }
            found => found,
        }
    }
}
