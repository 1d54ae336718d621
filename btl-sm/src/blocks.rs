//! Memory of the program that peers map, so that they read and write it as their own.
//!
//! Each block is a sealed memfd. A peer opens it by the owner's entry in `/proc`, under the same condition as a single
//! copy: one pid namespace. A handle names the file's inode, because a pid and a descriptor may be reused.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use cableway_btl::{Mapping, RemoteHandle};
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags};
use zerocopy::{FromBytes, IntoBytes};

use crate::handle::{Handle, Place, PlacedHandle};
use crate::segment::Memory;

/// The blocks of this process, by address.
#[derive(Clone, Default)]
pub(crate) struct Blocks(Arc<Mutex<BTreeMap<usize, Arc<Memory>>>>);

/// Frees a block once nothing uses it.
struct Block {
    blocks: Blocks,
    address: usize,
}

impl Drop for Block {
    fn drop(&mut self) {
        let memory = self.blocks.0.lock().remove(&self.address);
        drop(memory);
    }
}

impl Blocks {
    /// Allocates `len` bytes of zeros.
    pub(crate) fn allocate(&self, len: usize) -> io::Result<Mapping> {
        let memory = Arc::new(Memory::create("cableway-block", len.max(1))?);
        let first = memory.at(0, len);
        let address = first.as_ptr().addr();
        self.0.lock().insert(address, memory);
        let keeper = Arc::new(Block { blocks: self.clone(), address });
        // SAFETY: mapped until the keeper is dropped. The seals keep the file as long as it is, so that no page is missing.
        Ok(unsafe { Mapping::new(first, len, keeper) })
    }

    /// Returns the block that contains these bytes, and their offset in it.
    fn find(&self, address: *const u8, len: usize) -> Option<(Arc<Memory>, usize)> {
        let blocks = self.0.lock();
        let (first, memory) = blocks.range(..=address.addr()).next_back()?;
        let offset = address.addr() - first;
        (offset.checked_add(len)? <= memory.len()).then(|| (memory.clone(), offset))
    }

    pub(crate) fn contain(&self, address: *const u8, len: usize) -> bool {
        self.find(address, len).is_some()
    }

    /// Returns the handle of memory, which tells its place if it lies in a block.
    pub(crate) fn handle(&self, handle: Handle, address: *const u8, len: usize) -> Option<RemoteHandle> {
        let placed = self.find(address, len).and_then(|(memory, offset)| {
            let file = memory.file()?;
            let inode = inode(file).ok()?;
            let (descriptor, file_len) = ((file.as_raw_fd() as u32).into(), (memory.len() as u64).into());
            Some(Place { descriptor, inode: inode.into(), file_len, offset: (offset as u64).into() })
        });
        match placed {
            Some(place) => RemoteHandle::new(PlacedHandle { handle, place }.as_bytes()),
            None => handle.to_remote(),
        }
    }
}

/// Maps the memory of a handle, which process `pid` has made. Returns `None` if it does not lie in a block.
///
/// # Errors
/// The handle names something else than the block of a peer, or the system refused.
pub(crate) fn map(pid: u32, handle: &RemoteHandle) -> io::Result<Option<Mapping>> {
    let invalid = |reason: &str| io::Error::new(io::ErrorKind::InvalidData, reason);
    let Ok(PlacedHandle { handle, place }) = PlacedHandle::read_from_bytes(handle.as_bytes()) else { return Ok(None) };
    let Place { descriptor, inode: named, file_len, offset } = place;
    let too_long = |_| invalid("the peer's memory is longer than the address space");
    let file_len = usize::try_from(file_len.get()).map_err(too_long)?;
    let (offset, len) =
        (usize::try_from(offset.get()).map_err(too_long)?, usize::try_from(handle.len()).map_err(too_long)?);
    if offset.checked_add(len).is_none_or(|end| end > file_len) {
        return Err(invalid("the peer's memory leaves its block"));
    }
    let path = format!("/proc/{pid}/fd/{descriptor}");
    // A descriptor of a peer may be a device or a pipe, whose opening has effects. So look at it first.
    let found = rustix::fs::stat(&path)?;
    if found.st_ino != named.get() || FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(invalid("that descriptor of the peer is not its block"));
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(&path, flags, Mode::empty())?;
    if inode(file.as_fd())? != named.get() {
        return Err(invalid("the file of that descriptor is not the peer's block"));
    }
    let memory = Arc::new(Memory::open(file, file_len)?);
    let first = memory.at(offset, len);
    // SAFETY: within the mapping, which the keeper holds. It is a sealed memfd of this length, so that no page is missing.
    Ok(Some(unsafe { Mapping::new(first, len, memory) }))
}

fn inode(file: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::fstat(file)?.st_ino)
}

#[cfg(test)]
mod tests {
    use cableway_btl::Access;

    use super::*;

    fn handle(blocks: &Blocks, address: *const u8, len: usize) -> RemoteHandle {
        blocks.handle(Handle::new(address, len, Access::RemoteWrite), address, len).unwrap()
    }

    #[test]
    fn parts_of_a_block_are_mapped_until_they_are_dropped() {
        let blocks = Blocks::default();
        let made = blocks.allocate(10_000).unwrap();
        let first = made.address().as_ptr();
        let part = first.wrapping_add(5000);
        assert!(blocks.contain(part, 5000) && !blocks.contain(part, 5001) && !blocks.contain(first.wrapping_sub(1), 1));
        let mapped = map(std::process::id(), &handle(&blocks, part, 100)).unwrap().unwrap();
        assert_eq!(mapped.len(), 100);
        assert_ne!(mapped.address().as_ptr(), part, "it is another mapping");
        // SAFETY: both mappings are this test's, and shared memory is accessed by raw pointers only.
        unsafe {
            mapped.address().as_ptr().add(99).write(7);
            assert_eq!(part.add(99).read(), 7);
        }
        drop(made);
        assert!(!blocks.contain(part, 1));
        // SAFETY: as above; the mapping keeps the pages.
        assert_eq!(unsafe { mapped.address().as_ptr().add(99).read() }, 7);
    }

    #[test]
    fn other_memory_has_no_place() {
        let blocks = Blocks::default();
        let plain = [0_u8; 8];
        let handle = handle(&blocks, plain.as_ptr(), 8);
        assert_eq!(handle.as_bytes().len(), size_of::<Handle>());
        assert!(map(std::process::id(), &handle).unwrap().is_none());
    }

    /// A peer may write anything into a handle.
    #[test]
    fn forged_places_are_refused() {
        let blocks = Blocks::default();
        let made = blocks.allocate(8192).unwrap();
        let bytes = handle(&blocks, made.address().as_ptr(), 8192);
        let right = PlacedHandle::read_from_bytes(bytes.as_bytes()).unwrap();
        let tries = |place: Place| {
            let forged = PlacedHandle { place, ..right };
            map(std::process::id(), &RemoteHandle::new(forged.as_bytes()).unwrap()).map(|mapped| mapped.is_some())
        };
        assert!(tries(right.place).unwrap());
        for forged in [
            Place { offset: 1.into(), ..right.place },
            Place { offset: u64::MAX.into(), ..right.place },
            Place { file_len: 4096.into(), ..right.place },
            Place { file_len: 16384.into(), ..right.place },
            Place { inode: (right.place.inode.get() + 1).into(), ..right.place },
            Place { descriptor: u32::MAX.into(), ..right.place },
            Place { descriptor: 0.into(), ..right.place },
        ] {
            assert!(tries(forged).is_err(), "{forged:?}");
        }
    }
}
