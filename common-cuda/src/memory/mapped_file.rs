//! Files that are mapped for the CPU alone.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use cableway_base::fork::Registered;

use super::anonymous;

/// A mapping of a file that other processes map, too.
pub(crate) struct MappedFile {
    memory: NonNull<u8>,
    len: usize,
    /// A forked child has memory of its own there. Present until it is dropped.
    unshared: Option<Registered>,
}

// SAFETY: an address. Its users access the memory by atomics.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps so many bytes.
    pub(crate) fn new(file: BorrowedFd<'_>, len: usize) -> io::Result<MappedFile> {
        let memory = anonymous::map_file(file, len)?;
        // SAFETY: a new mapping of whole pages. `drop` removes the registration first. A child's copy does nothing.
        let unshared = Some(unsafe { Registered::mapping(memory, len) });
        Ok(MappedFile { memory, len, unshared })
    }

    pub(crate) fn address<T>(&self) -> *mut T {
        self.memory.as_ptr().cast()
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        drop(self.unshared.take());
        // SAFETY: the whole mapping, which only this referred to.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
    }
}
