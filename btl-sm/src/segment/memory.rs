//! A mapped memfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use cableway_base::fork::{Registered, Unshared};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::layout::{BOX_HEADER, Class, FragmentHeader, Slot};
use crate::copy::copy_short;
use crate::ring::fast_box::{PAYLOAD, Slots};

/// A sealed memfd, mapped: this process's own, or a peer's. Unmapped when dropped. In a forked child it is private
/// memory.
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
    file: Option<Unshared<OwnedFd>>,
    /// Given up before the mapping is.
    unshared: Option<Registered>,
}

// SAFETY: all access goes through atomics, or through raw pointers whose users say what orders it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Without these a peer could make our accesses fault.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What fstatfs(2) says of a memfd of ordinary pages (`TMPFS_MAGIC` of linux/magic.h).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

impl Memory {
    /// Makes `len` bytes of zeroes. No page is in use before it is touched.
    pub(crate) fn create(name: &str, len: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = Unshared::open(|| rustix::fs::memfd_create(name, flags))?;
        rustix::fs::ftruncate(&*file, len as u64)?;
        rustix::fs::fcntl_add_seals(&*file, SEALS)?;
        let mut memory = Self::map(file.as_fd(), len)?;
        memory.file = Some(file);
        Ok(memory)
    }

    /// Maps a file that a peer passed, if it is what [`create`](Self::create) makes, of just this length.
    pub(crate) fn open(file: OwnedFd, len: usize) -> io::Result<Self> {
        let invalid = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SEALS) {
            return invalid("the peer's segment is not sealed");
        }
        // A memfd of huge pages can be sealed, too. Where no huge page is left, an access to it faults.
        if rustix::fs::fstatfs(&file)?.f_type != TMPFS_MAGIC {
            return invalid("the peer's segment is not in a tmpfs");
        }
        if rustix::fs::fstat(&file)?.st_size != len as i64 {
            return invalid("the peer's segment has another size than it said");
        }
        Self::map(file.as_fd(), len)
    }

    fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let base = map(file, len)?;
        // SAFETY: a mapping of its own; a length that is no multiple of a page ends in the mapping's last one. `drop`
        // gives this up first. A child's copy of the engine does nothing.
        let unshared = Some(unsafe { Registered::mapping(base, len) });
        Ok(Memory { base, len, file: None, unshared })
    }

    /// The file, to be passed on. Only the maker has it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// `len` bytes at `offset`.
    ///
    /// # Panics
    /// They are not within, which a checked layout excludes.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= self.len && len <= self.len - offset, "beyond the segment");
        // SAFETY: within the mapping by the assertion.
        unsafe { self.base.add(offset) }
    }

    /// The word at `offset`.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.object(offset)
    }

    /// The header of a fragment.
    #[inline]
    pub(crate) fn header(&self, class: &Class, id: u32) -> &FragmentHeader {
        self.object(class.header(id))
    }

    /// The payload of a fragment.
    #[inline]
    pub(crate) fn payload(&self, class: &Class, id: u32) -> NonNull<u8> {
        self.at(class.payload(id), class.size)
    }

    #[inline]
    fn object<T: Shared>(&self, offset: usize) -> &T {
        assert!(offset.is_multiple_of(align_of::<T>()), "misaligned in the segment");
        // SAFETY: in bounds and aligned; `T` consists of atomics, for which any bytes will do and which may change at
        // any time; the mapping lives as long as `self`.
        unsafe { self.at(offset, size_of::<T>()).cast().as_ref() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.unshared = None;
        // SAFETY: this is our mapping; whoever points into it holds an `Arc` of it. Only a bad argument could fail.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address of the system's choice.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, file, 0)? };
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

/// Types that consist of atomics alone and may therefore be referred to while other processes write them.
trait Shared {}
impl Shared for AtomicU64 {}
impl Shared for FragmentHeader {}

/// A fast box in a segment.
pub(crate) struct BoxMemory {
    consumed: NonNull<AtomicU64>,
    slots: NonNull<Slot>,
    count: u64,
    _memory: std::sync::Arc<Memory>,
}

// SAFETY: as `Memory`, which it keeps.
unsafe impl Send for BoxMemory {}

impl BoxMemory {
    /// The box at `offset`, of `slots` slots.
    pub(crate) fn new(memory: &std::sync::Arc<Memory>, offset: usize, slots: usize) -> Self {
        assert!(offset.is_multiple_of(BOX_HEADER) && slots.is_power_of_two());
        BoxMemory {
            consumed: memory.at(offset, BOX_HEADER).cast(),
            slots: memory.at(offset + BOX_HEADER, slots * size_of::<Slot>()).cast(),
            count: slots as u64,
            _memory: memory.clone(),
        }
    }

    /// The byte at `at` behind the first slot's beginning.
    #[inline(always)]
    pub(crate) fn byte(&self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.count as usize * size_of::<Slot>());
        // SAFETY: within the box, or right behind it, by what callers promise; no reference is made.
        unsafe { self.slots.as_ptr().cast::<u8>().add(at) }
    }
}

impl Slots for BoxMemory {
    type Word = AtomicU64;

    #[inline(always)]
    fn count(&self) -> u64 {
        self.count
    }

    #[inline(always)]
    fn stamp(&self, slot: usize) -> &AtomicU64 {
        debug_assert!((slot as u64) < self.count);
        // SAFETY: rings mask slot numbers by `count`, and `new` has checked that so many lie within the mapping; an
        // atomic may be written by others at any time.
        unsafe { &(*self.slots.as_ptr().add(slot)).stamp }
    }

    #[inline(always)]
    fn consumed(&self) -> &AtomicU64 {
        // SAFETY: checked by `new`, and kept mapped.
        unsafe { self.consumed.as_ref() }
    }

    #[inline(always)]
    unsafe fn write(&self, at: usize, bytes: &[u8]) {
        debug_assert!(bytes.len() <= PAYLOAD);
        // SAFETY: within a line by the caller's promise, and rings mask positions by `count`; `bytes` is private, so that the two do not overlap.
        unsafe { copy_short(self.byte(at), bytes.as_ptr(), bytes.len()) };
    }

    #[inline(always)]
    unsafe fn read(&self, at: usize, out: &mut [u8]) {
        debug_assert!(out.len() <= PAYLOAD);
        // SAFETY: as `write`, the other way round.
        unsafe { copy_short(out.as_mut_ptr(), self.byte(at), out.len()) };
    }
}

/// A FIFO in a segment.
pub(crate) struct FifoMemory {
    /// The tail; the head and the cells lie behind it.
    base: NonNull<u8>,
    count: usize,
    _memory: std::sync::Arc<Memory>,
}

// SAFETY: as `Memory`, which it keeps.
unsafe impl Send for FifoMemory {}

impl FifoMemory {
    /// The FIFO of a segment, of so many cells.
    pub(crate) fn new(memory: std::sync::Arc<Memory>, count: usize) -> Self {
        assert!(count.is_power_of_two());
        let base = memory.at(0, super::Layout::FIFO_CELLS + count * size_of::<AtomicU64>());
        FifoMemory { base, count, _memory: memory }
    }

    /// # Safety
    /// A word of the FIFO lies at `offset`.
    #[inline(always)]
    unsafe fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `new` has checked that all words lie within the mapping, which is kept; segments begin on a page.
        unsafe { self.base.add(offset).cast().as_ref() }
    }
}

impl crate::ring::fifo::Cells for FifoMemory {
    type Word = AtomicU64;

    #[inline(always)]
    fn count(&self) -> u64 {
        self.count as u64
    }

    #[inline(always)]
    fn cell(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < self.count);
        // SAFETY: FIFOs mask cell numbers by `count`.
        unsafe { self.word(super::Layout::FIFO_CELLS + index * size_of::<AtomicU64>()) }
    }

    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        // SAFETY: it lies there.
        unsafe { self.word(super::Layout::FIFO_TAIL) }
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        // SAFETY: it lies there.
        unsafe { self.word(super::Layout::FIFO_HEAD) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sealed memfd as [`Memory::create`] makes it, but of huge pages, and its length: one such page. None where the
    /// system has no such memfds. It need not have a page to spare, since none is reserved.
    fn of_huge_pages() -> io::Result<(OwnedFd, usize)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let file = rustix::fs::memfd_create("huge", flags)?;
        let len = rustix::fs::fstat(&file)?.st_blksize as usize;
        rustix::fs::ftruncate(&file, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok((file, len))
    }

    #[test]
    fn huge_pages_are_refused() {
        let (file, len) = match of_huge_pages() {
            Ok(made) => made,
            Err(error) => return eprintln!("skipped: there is no memfd of huge pages here: {error}"),
        };
        let refused = Memory::open(file, len).map(drop).unwrap_err();
        assert!(refused.to_string().contains("tmpfs"), "{refused}");
    }

    #[test]
    fn what_a_process_makes_its_peers_map() {
        let made = Memory::create("made", 4096).unwrap();
        let passed = made.file().unwrap().try_clone_to_owned().unwrap();
        let opened = Memory::open(passed, 4096).unwrap();
        made.word(0).store(7, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(opened.word(0).load(std::sync::atomic::Ordering::Relaxed), 7);
    }
}
