//! Maps a memfd.

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

/// A sealed and mapped memfd of this process or of a peer. Dropping it unmaps it. A forked child has private memory in
/// its place.
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
    file: Option<Unshared<OwnedFd>>,
    /// Dropped before the mapping.
    unshared: Option<Registered>,
}

// SAFETY: all accesses use atomics, or raw pointers whose users guarantee the order.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Without these seals a peer could make accesses here fault.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The type that fstatfs(2) reports for a memfd of ordinary pages (`TMPFS_MAGIC` in linux/magic.h).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

impl Memory {
    /// Makes a segment of `len` zeroes. A page uses memory only after its first access.
    pub(crate) fn create(name: &str, len: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = Unshared::open(|| rustix::fs::memfd_create(name, flags))?;
        rustix::fs::ftruncate(&*file, len as u64)?;
        rustix::fs::fcntl_add_seals(&*file, SEALS)?;
        let mut memory = Self::map(file.as_fd(), len)?;
        memory.file = Some(file);
        Ok(memory)
    }

    /// Maps a peer's file, if it is a memfd as [`create`](Self::create) makes it, with exactly this length.
    pub(crate) fn open(file: OwnedFd, len: usize) -> io::Result<Self> {
        let invalid = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SEALS) {
            return invalid("the peer's segment is not sealed");
        }
        // A memfd of huge pages can be sealed as well, but an access to it faults if no huge page is free.
        if rustix::fs::fstatfs(&file)?.f_type != TMPFS_MAGIC {
            return invalid("the peer's segment is not in a tmpfs");
        }
        if rustix::fs::fstat(&file)?.st_size != len as i64 {
            return invalid("the peer's segment does not have the announced size");
        }
        Self::map(file.as_fd(), len)
    }

    fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let base = map(file, len)?;
        // SAFETY: a new mapping, in whose last page a length that is no multiple of a page ends. `drop` removes the
        // registration first. A child's copy of the engine does nothing.
        let unshared = Some(unsafe { Registered::mapping(base, len) });
        Ok(Memory { base, len, file: None, unshared })
    }

    /// Returns the file to pass to peers. Only the maker has it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of `len` bytes at `offset`.
    ///
    /// # Panics
    /// Panics if the range lies outside the segment, which a checked layout excludes.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= self.len && len <= self.len - offset, "the range lies outside the segment");
        // SAFETY: within the mapping by the assertion.
        unsafe { self.base.add(offset) }
    }

    /// Returns the word at `offset`.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.object(offset)
    }

    /// Returns the header of a fragment.
    #[inline]
    pub(crate) fn header(&self, class: &Class, id: u32) -> &FragmentHeader {
        self.object(class.header(id))
    }

    /// Returns the payload of a fragment.
    #[inline]
    pub(crate) fn payload(&self, class: &Class, id: u32) -> NonNull<u8> {
        self.at(class.payload(id), class.size)
    }

    #[inline]
    fn object<T: Shared>(&self, offset: usize) -> &T {
        assert!(offset.is_multiple_of(align_of::<T>()), "misaligned in the segment");
        // SAFETY: in bounds and aligned. `T` consists of atomics, which any bytes represent and which may change at any
        // time. The mapping lives as long as `self`.
        unsafe { self.at(offset, size_of::<T>()).cast().as_ref() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.unshared = None;
        // SAFETY: the mapping belongs to this value, and all users of its addresses hold an `Arc` of it. Only invalid
        // arguments could make it fail.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: the system chooses the address of the new mapping.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, file, 0)? };
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

/// Types that consist only of atomics. References to them are valid while other processes write them.
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

// SAFETY: as for `Memory`, which this value keeps alive.
unsafe impl Send for BoxMemory {}

impl BoxMemory {
    /// Returns the box at `offset` with `slots` slots.
    pub(crate) fn new(memory: &std::sync::Arc<Memory>, offset: usize, slots: usize) -> Self {
        assert!(offset.is_multiple_of(BOX_HEADER) && slots.is_power_of_two());
        BoxMemory {
            consumed: memory.at(offset, BOX_HEADER).cast(),
            slots: memory.at(offset + BOX_HEADER, slots * size_of::<Slot>()).cast(),
            count: slots as u64,
            _memory: memory.clone(),
        }
    }

    /// Returns the byte at offset `at` from the first slot.
    #[inline(always)]
    pub(crate) fn byte(&self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.count as usize * size_of::<Slot>());
        // SAFETY: within the box, or at its end, by the callers' promise. No reference is made.
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
        // SAFETY: rings mask slot numbers by `count`, and `new` has checked that so many lie within the mapping. Other
        // processes may write an atomic at any time.
        unsafe { &(*self.slots.as_ptr().add(slot)).stamp }
    }

    #[inline(always)]
    fn consumed(&self) -> &AtomicU64 {
        // SAFETY: checked by `new`, and the mapping is kept.
        unsafe { self.consumed.as_ref() }
    }

    #[inline(always)]
    unsafe fn write(&self, at: usize, bytes: &[u8]) {
        debug_assert!(bytes.len() <= PAYLOAD);
        // SAFETY: within a line by the caller's promise, and rings mask positions by `count`. `bytes` is private, so
        // the two do not overlap.
        unsafe { copy_short(self.byte(at), bytes.as_ptr(), bytes.len()) };
    }

    #[inline(always)]
    unsafe fn read(&self, at: usize, out: &mut [u8]) {
        debug_assert!(out.len() <= PAYLOAD);
        // SAFETY: as for `write`, in the other direction.
        unsafe { copy_short(out.as_mut_ptr(), self.byte(at), out.len()) };
    }
}

/// A FIFO in a segment.
pub(crate) struct FifoMemory {
    /// The tail. The head and the cells follow it.
    base: NonNull<u8>,
    count: usize,
    _memory: std::sync::Arc<Memory>,
}

// SAFETY: as for `Memory`, which this value keeps alive.
unsafe impl Send for FifoMemory {}

impl FifoMemory {
    /// Returns the FIFO of a segment, with this many cells.
    pub(crate) fn new(memory: std::sync::Arc<Memory>, count: usize) -> Self {
        assert!(count.is_power_of_two());
        let base = memory.at(0, super::Layout::FIFO_CELLS + count * size_of::<AtomicU64>());
        FifoMemory { base, count, _memory: memory }
    }

    /// # Safety
    /// A word of the FIFO must lie at `offset`.
    #[inline(always)]
    unsafe fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `new` has checked that all words lie within the mapping, which is kept. Segments begin at a page.
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
        // SAFETY: the tail lies there.
        unsafe { self.word(super::Layout::FIFO_TAIL) }
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        // SAFETY: the head lies there.
        unsafe { self.word(super::Layout::FIFO_HEAD) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a sealed memfd like [`Memory::create`], but of one huge page, and returns its length. Returns `None` if
    /// the system has no such memfds. No free huge page is needed, because none is reserved.
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
            Err(error) => return eprintln!("skipped: this system has no memfd of huge pages: {error}"),
        };
        let refused = Memory::open(file, len).map(drop).unwrap_err();
        assert!(refused.to_string().contains("tmpfs"), "{refused}");
    }

    #[test]
    fn peers_map_the_memory_of_a_segment() {
        let made = Memory::create("made", 4096).unwrap();
        let passed = made.file().unwrap().try_clone_to_owned().unwrap();
        let opened = Memory::open(passed, 4096).unwrap();
        made.word(0).store(7, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(opened.word(0).load(std::sync::atomic::Ordering::Relaxed), 7);
    }
}
