//! Device memory that faults when a CPU touches it.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{CONTEXT, Double};
use crate::driver::{Allocated, Attributes, ContextHandle, Failure, FailureKind, Memory, Pool};
use crate::location::{BufferKind, DeviceIndex, MemoryClass};

/// The same pages at two addresses.
pub(super) struct TwinMapping {
    hidden: NonNull<u8>,
    seen: NonNull<u8>,
    len: usize,
    id: u64,
    class: MemoryClass,
}

// SAFETY: both addresses are valid in every thread; what lies there is copied as raw memory.
unsafe impl Send for TwinMapping {}
// SAFETY: as above.
unsafe impl Sync for TwinMapping {}

impl TwinMapping {
    fn new(len: usize, id: u64, class: MemoryClass) -> std::io::Result<TwinMapping> {
        // SAFETY: the name is a C string, and the descriptor is closed below.
        let file = unsafe { libc::memfd_create(c"double".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let all = libc::PROT_READ | libc::PROT_WRITE;
        let access = if class == MemoryClass::Pinned { all } else { libc::PROT_NONE };
        // SAFETY: new mappings at addresses of the kernel's choice, of a file that is ours.
        let made = unsafe {
            let sized = libc::ftruncate(file, i64::try_from(len).unwrap_or(i64::MAX)) == 0;
            sized.then(|| (map(file, len, access), map(file, len, all)))
        };
        let error = std::io::Error::last_os_error();
        // SAFETY: mappings keep the file alive.
        unsafe { libc::close(file) };
        match made {
            Some((Some(hidden), Some(seen))) => Ok(TwinMapping { hidden, seen, len, id, class }),
            _ => Err(error),
        }
    }

    fn offset(&self, address: u64) -> Option<usize> {
        let offset = (address as usize).checked_sub(self.hidden.addr().get());
        offset.filter(|offset| *offset < self.len)
    }
}

/// # Safety
/// The file has `len` bytes.
unsafe fn map(file: i32, len: usize, access: i32) -> Option<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file, 0) };
    if address == libc::MAP_FAILED { None } else { NonNull::new(address.cast()) }
}

impl Drop for TwinMapping {
    fn drop(&mut self) {
        // SAFETY: both mappings, which nobody uses any more.
        unsafe {
            libc::munmap(self.hidden.as_ptr().cast(), self.len);
            libc::munmap(self.seen.as_ptr().cast(), self.len);
        }
    }
}

impl Double {
    fn around(&self, address: u64) -> Option<Arc<TwinMapping>> {
        self.allocations.lock().iter().find(|allocation| allocation.offset(address).is_some()).cloned()
    }

    /// Returns the address at which the vendor itself can access a program's `address`.
    pub(super) fn reachable(&self, address: *const u8) -> *mut u8 {
        let found = self.around(address as u64);
        let seen = found.and_then(|found| Some(found.seen.as_ptr().wrapping_add(found.offset(address as u64)?)));
        seen.unwrap_or(address.cast_mut())
    }

    fn make(&self, len: usize, class: MemoryClass) -> Result<u64, Failure> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let made =
            TwinMapping::new(len, id, class).map_err(|_| Failure::found("allocate", FailureKind::OutOfMemory))?;
        let address = made.hidden.as_ptr().expose_provenance() as u64;
        self.allocations.lock().push(Arc::new(made));
        Ok(address)
    }
}

impl Memory for Double {
    fn attributes(&self, address: u64) -> Result<Attributes, Failure> {
        Ok(self.around(address).map_or(Attributes::HOST, |allocation| Attributes {
            class: allocation.class,
            context: Some(ContextHandle(CONTEXT as usize)),
            device: Some(DeviceIndex(0)),
            buffer_id: allocation.id,
            synchronous: None,
        }))
    }

    fn buffer_id(&self, address: u64) -> Option<u64> {
        self.around(address).map(|allocation| allocation.id)
    }

    fn range(&self, address: u64) -> Result<(u64, usize), Failure> {
        let found = self.around(address).ok_or(Failure::found("range", FailureKind::InvalidValue))?;
        Ok((found.hidden.addr().get() as u64, found.len))
    }

    fn is_accessible(&self, address: u64) -> bool {
        self.around(address).is_some()
    }

    fn allocate(&self, len: usize) -> Result<u64, Failure> {
        self.make(len, MemoryClass::Device)
    }

    unsafe fn free(&self, address: u64) -> Result<(), Failure> {
        self.finish_all();
        self.allocations.lock().retain(|allocation| allocation.offset(address) != Some(0));
        Ok(())
    }

    fn allocate_kind(
        &self,
        kind: BufferKind,
        len: usize,
        device: DeviceIndex,
        _pool: &mut Option<Pool>,
    ) -> Result<Allocated, Failure> {
        self.check("allocate", device)?;
        let class = match kind {
            BufferKind::Pinned => MemoryClass::Pinned,
            BufferKind::Managed => return Err(Failure::found("allocate", FailureKind::NotSupported)),
            _ => MemoryClass::Device,
        };
        Ok(Allocated { kind, address: self.make(len, class)?, mapped: len })
    }

    unsafe fn free_kind(&self, allocated: &Allocated) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.free(allocated.address) }
    }
}
