//! Storage of simulated memory: sparse nameless files, divided into pieces for allocations.
//!
//! A piece is never reused. So a mapping that outlives its allocation (for example a stale cached import) sees zeroes,
//! and never the memory of the next allocation. The page before a piece holds its identity, by which another process
//! detects whether the piece still exists.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::driver::{fresh_id, random_id};
use crate::error::{Error, Outcome};

pub(crate) const PAGE: usize = 4096;
/// The size of the sparse file, far more than all pieces together.
const FILE_BYTES: u64 = 1 << 46;

pub(crate) fn round_up(len: usize, to: usize) -> Outcome<usize> {
    len.checked_next_multiple_of(to).ok_or(Error::OUT_OF_MEMORY)
}

/// A sparse file. Its first page describes it.
pub(crate) struct Store {
    file: OwnedFd,
    purpose: Purpose,
    /// Distinguishes this file from all others, of any process.
    cookie: u64,
    next: AtomicU64,
}

/// The purpose of a file. A receiver of its descriptor learns only this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// `cuMemAlloc` and pools that are not shared.
    Device = 1,
    /// A shared pool.
    Pool = 2,
    /// One `cuMemCreate` that is shared: its piece is the first.
    Physical = 3,
}

/// The first page of a file. Each field has 8 bytes, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) purpose: u64,
    pub(crate) cookie: u64,
    /// The device's number in the machine.
    pub(crate) device: u64,
}

impl Description {
    /// Reads it from a passed descriptor.
    pub(crate) fn read(file: BorrowedFd<'_>) -> Outcome<Description> {
        let [magic, purpose, cookie, device] = read_words(file, 0)?;
        if magic == MAGIC { Ok(Description { purpose, cookie, device }) } else { Err(Error::INVALID_VALUE) }
    }
}

const MAGIC: u64 = u64::from_be_bytes(*b"sim-cuda");

fn read_words<const N: usize>(file: BorrowedFd<'_>, offset: u64) -> Outcome<[u64; N]> {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        let mut bytes = [0_u8; 8];
        match rustix::io::pread(file, &mut bytes[..], offset + 8 * index as u64) {
            Ok(8) => *word = u64::from_ne_bytes(bytes),
            _ => return Err(Error::INVALID_VALUE),
        }
    }
    Ok(words)
}

/// Identifies a piece in the file for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct PieceName {
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) id: u64,
}

/// The identity of a piece, in the page before it; zeroes after the piece is freed. The page also has words that the
/// piece's users share.
#[repr(C)]
struct Header {
    cookie: AtomicU64,
    id: AtomicU64,
    len: AtomicU64,
    shared: [AtomicU64; 2],
}

impl Store {
    pub(crate) fn create(purpose: Purpose, device: usize) -> Outcome<Arc<Store>> {
        let file = memfd_create("sim-cuda", MemfdFlags::CLOEXEC).map_err(|_| Error::OPERATING_SYSTEM)?;
        ftruncate(&file, FILE_BYTES).map_err(|_| Error::OPERATING_SYSTEM)?;
        let cookie = random_id();
        let description = [MAGIC, purpose as u64, cookie, device as u64].map(u64::to_ne_bytes).concat();
        match rustix::io::pwrite(&file, &description, 0) {
            Ok(written) if written == description.len() => {}
            _ => return Err(Error::OPERATING_SYSTEM),
        }
        Ok(Arc::new(Store { file, purpose, cookie, next: AtomicU64::new(PAGE as u64) }))
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns a new piece of at least `len` bytes, all zero.
    pub(crate) fn piece(self: &Arc<Self>, len: usize) -> Outcome<Piece> {
        let len = round_up(len, PAGE)?;
        let whole = (len + PAGE) as u64;
        let offset = self.next.fetch_add(whole, Ordering::Relaxed);
        if offset.checked_add(whole).is_none_or(|end| end > FILE_BYTES) {
            return Err(Error::OUT_OF_MEMORY);
        }
        let name = PieceName { cookie: self.cookie, offset, len: len as u64, id: fresh_id() };
        let piece = Piece { map: Mapping::of_file(self.file(), offset, len + PAGE)?, name, owner: Some(self.clone()) };
        piece.header().cookie.store(name.cookie, Ordering::Relaxed);
        piece.header().len.store(name.len, Ordering::Relaxed);
        piece.header().id.store(name.id, Ordering::Release);
        Ok(piece)
    }
}

/// A piece of a store, readable and writable here.
pub(crate) struct Piece {
    map: Mapping,
    name: PieceName,
    /// `None` in a process that imported it.
    owner: Option<Arc<Store>>,
}

impl Piece {
    /// Maps the piece `name` of another process's file.
    ///
    /// # Errors
    /// The piece does not exist, or no longer exists.
    pub(crate) fn import(file: BorrowedFd<'_>, name: PieceName) -> Outcome<Piece> {
        let piece = Piece::import_unchecked(file, name)?;
        if piece.is_alive() { Ok(piece) } else { Err(Error::INVALID_VALUE) }
    }

    /// As [`Piece::import`], for a piece that may be freed: it reads as zeroes then.
    pub(crate) fn import_unchecked(file: BorrowedFd<'_>, name: PieceName) -> Outcome<Piece> {
        let len = usize::try_from(name.len).map_err(|_| Error::INVALID_VALUE)?;
        let whole = len.checked_add(PAGE).ok_or(Error::INVALID_VALUE)?;
        let aligned = name.offset.is_multiple_of(PAGE as u64) && len.is_multiple_of(PAGE);
        if !aligned || name.offset.checked_add(whole as u64).is_none_or(|end| end > FILE_BYTES) {
            return Err(Error::INVALID_VALUE);
        }
        let size = rustix::fs::fstat(file).map_err(|_| Error::INVALID_VALUE)?.st_size;
        if size as u64 != FILE_BYTES {
            return Err(Error::INVALID_VALUE);
        }
        Ok(Piece { map: Mapping::of_file(file, name.offset, whole)?, name, owner: None })
    }

    /// Maps the first piece of another process's file.
    pub(crate) fn import_first(file: BorrowedFd<'_>) -> Outcome<Piece> {
        let [cookie, id, len] = read_words(file, PAGE as u64)?;
        Piece::import(file, PieceName { cookie, offset: PAGE as u64, len, id })
    }

    /// Checks whether the owner still has it.
    pub(crate) fn is_alive(&self) -> bool {
        let header = self.header();
        header.id.load(Ordering::Acquire) == self.name.id && header.cookie.load(Ordering::Relaxed) == self.name.cookie
    }

    pub(crate) fn name(&self) -> PieceName {
        self.name
    }

    /// Returns its file, in the owner's process.
    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        self.owner.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.name.len as usize
    }

    /// Two words that all mappings of the piece share, zero at first.
    pub(crate) fn shared(&self) -> &[AtomicU64; 2] {
        &self.header().shared
    }

    /// Returns the address of its first byte, for the copy functions only.
    pub(crate) fn alias(&self) -> usize {
        self.map.address + PAGE
    }

    /// Creates another mapping of its bytes, readable and writable. Only in the owner's process.
    pub(crate) fn mapped_again(&self) -> Outcome<Mapping> {
        let store = self.owner.as_ref().ok_or(Error::INVALID_VALUE)?;
        Mapping::of_file(store.file(), self.name.offset + PAGE as u64, self.len())
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a page that holds a header, and lives as long as self.
        unsafe { &*(self.map.address as *const Header) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // The file of physical memory goes with its last mapping or descriptor.
        if let Some(store) = self.owner.as_ref().filter(|store| store.purpose != Purpose::Physical) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // After a failure the pages stay allocated but out of reach. The process cannot do better.
            let _ = fallocate(&store.file, flags, self.name.offset, self.map.len as u64);
        }
    }
}

/// A mapping of this process, unmapped when dropped.
pub(crate) struct Mapping {
    address: usize,
    len: usize,
}

impl Mapping {
    fn of_file(file: BorrowedFd<'_>, offset: u64, len: usize) -> Outcome<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let address =
            unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED | MapFlags::NORESERVE, file, offset) };
        Ok(Mapping { address: address.map_err(|_| Error::OUT_OF_MEMORY)? as usize, len })
    }

    /// Creates memory that begins at the start of a new file.
    pub(crate) fn with_file(len: usize) -> Outcome<(OwnedFd, Mapping)> {
        let len = round_up(len, PAGE)?;
        let file = memfd_create("sim-cuda-dma-buf", MemfdFlags::CLOEXEC).map_err(|_| Error::OPERATING_SYSTEM)?;
        ftruncate(&file, len as u64).map_err(|_| Error::OUT_OF_MEMORY)?;
        let mapping = Mapping::of_file(file.as_fd(), 0, len)?;
        Ok((file, mapping))
    }

    /// Reserves addresses without access, aligned to a power of two.
    pub(crate) fn reserved(len: usize, align: usize) -> Outcome<Mapping> {
        Mapping::anonymous(len, align, ProtFlags::empty())
    }

    /// Creates zeroed memory of this process.
    pub(crate) fn accessible(len: usize) -> Outcome<Mapping> {
        Mapping::anonymous(len, PAGE, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn anonymous(len: usize, align: usize, access: ProtFlags) -> Outcome<Mapping> {
        let len = round_up(len, PAGE)?;
        let slack = align.saturating_sub(PAGE);
        let whole = len.checked_add(slack).ok_or(Error::OUT_OF_MEMORY)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as in `of_file`.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), whole, access, flags) };
        let start = address.map_err(|_| Error::OUT_OF_MEMORY)? as usize;
        let address = round_up(start, align.max(PAGE))?;
        let (before, after) = (address - start, whole - len - (address - start));
        for (at, unused) in [(start, before), (address + len, after)] {
            if unused > 0 {
                // SAFETY: part of the mapping just made, outside what is kept.
                let _ = unsafe { munmap(at as *mut _, unused) };
            }
        }
        Ok(Mapping { address, len })
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that this value owns.
        let _ = unsafe { munmap(self.address as *mut _, self.len) };
    }
}
