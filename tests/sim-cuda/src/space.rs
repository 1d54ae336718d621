//! The addresses that the driver knows, and the memory there.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::abi::Address;
use crate::context::Context;
use crate::device::Charge;
use crate::driver::AfterInit;
use crate::error::{Error, Outcome};
use crate::physical::Physical;
use crate::pool;
use crate::pool_memory::{Importing, InPool};
use crate::sharing::{Accesses, READ_WRITE};
use crate::store::{Mapping, Piece};

/// The kind of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemHostAlloc`.
    HostAllocated,
    /// `cuMemHostRegister`.
    HostRegistered,
    /// `cuMemAllocAsync` and the like, from the pool with this handle.
    Pool { pool: usize, exportable: bool },
    /// `cuMemMap`.
    Mapped,
    /// `cuIpcOpenMemHandle`.
    Imported,
}

impl Kind {
    /// Checks whether a CPU may touch it.
    pub(crate) fn is_host(self) -> bool {
        matches!(self, Kind::HostAllocated | Kind::HostRegistered)
    }
}

/// A range that one call made and one call frees.
pub(crate) struct Range {
    pub(crate) base: Address,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    pub(crate) device: c_int,
    /// `None` for memory of pools and of `cuMemMap`, for which the driver names none.
    pub(crate) context: Option<Arc<Context>>,
    /// Never given out twice.
    pub(crate) id: u64,
    /// The address of the byte at `base` for the copy functions.
    pub(crate) alias: usize,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub(crate) synchronous: AtomicBool,
    /// Of `cuMemMap` only.
    pub(crate) mapping: Option<Mapped>,
    pub(crate) backing: Backing,
}

/// The part of a range that `cuMemMap` and `cuMemSetAccess` add.
pub(crate) struct Mapped {
    pub(crate) physical: Arc<Physical>,
    /// The reservation of the addresses: its beginning and length.
    pub(crate) reserved: (Address, usize),
    pub(crate) access: Accesses,
}

/// Keeps a range's memory. It is dropped with the last use of the range, work in flight included.
#[derive(Default)]
pub(crate) struct Backing {
    /// The addresses that the user knows.
    pub(crate) _addresses: Option<Mapping>,
    /// The mapping for the copy functions, of a separate file.
    pub(crate) _data: Option<Mapping>,
    pub(crate) piece: Option<Arc<Piece>>,
    /// A file of its own, which begins with it, where dma-bufs can be mapped: there is no piece then.
    pub(crate) file: Option<OwnedFd>,
    pub(crate) _charge: Option<Charge>,
    /// Of memory of pools only.
    pub(crate) _pool: Option<InPool>,
    pub(crate) _import: Option<Importing>,
}

impl Range {
    pub(crate) fn end(&self) -> Address {
        self.base + self.len
    }

    /// Checks whether copies may touch it.
    pub(crate) fn is_accessible(&self) -> bool {
        self.mapping.as_ref().is_none_or(|mapping| mapping.access.any())
    }

    /// Checks whether a device may write to it. It may write to another's pool or mapped memory only if it was granted
    /// access. Peer access between the two does not count.
    pub(crate) fn is_writable_by(&self, device: c_int) -> Outcome<bool> {
        if let Some(mapping) = &self.mapping {
            return Ok(mapping.access.get(device) == Some(READ_WRITE));
        }
        match self.kind {
            Kind::Pool { pool, .. } if self.device != device => Ok(pool::access(pool, device)? == READ_WRITE),
            _ => Ok(true),
        }
    }

    /// Ends the process if memory is freed that another has imported and not freed, which the documentation forbids: a real
    /// driver gives it to the pool's next allocation, and what is written through the import lands there.
    pub(crate) fn check_free(&self) {
        let Some(piece) = self.backing.piece.as_ref().filter(|piece| piece.store().is_some()) else { return };
        let [count, last] = piece.shared();
        let (count, last) = (count.load(Ordering::SeqCst), last.load(Ordering::SeqCst));
        // A process that has ended has freed its import. A zombie has no maps.
        let lives = || std::fs::read(format!("/proc/{last}/maps")).is_ok_and(|maps| !maps.is_empty());
        if count > 0 && lives() {
            eprintln!(
                "sim-cuda: memory of a pool at {:#x} is freed that process {last} has imported; with a real driver its \
                 copies land in the next allocation",
                self.base
            );
            std::process::abort()
        }
    }

    pub(crate) fn is_synchronous(&self) -> bool {
        self.synchronous.load(Ordering::Relaxed)
    }
}

/// Part of a range.
#[derive(Clone)]
pub(crate) struct Extent {
    pub(crate) range: Arc<Range>,
    pub(crate) alias: usize,
    pub(crate) len: usize,
}

/// All ranges; they do not overlap.
#[derive(Default)]
pub(crate) struct AddressSpace {
    ranges: BTreeMap<Address, Arc<Range>>,
    /// Addresses that `cuMemAddressReserve` returned, mapped or not.
    pub(crate) reservations: BTreeMap<Address, Mapping>,
}

pub(crate) static SPACE: AfterInit<RwLock<AddressSpace>> = AfterInit::new(RwLock::default);

impl AddressSpace {
    pub(crate) fn insert(&mut self, range: Range) -> Arc<Range> {
        let range = Arc::new(range);
        self.ranges.insert(range.base, range.clone());
        range
    }

    /// The range that holds `address`.
    pub(crate) fn find(&self, address: Address) -> Option<&Arc<Range>> {
        self.ranges.range(..=address).next_back().map(|(_, range)| range).filter(|range| address < range.end())
    }

    /// The ranges that have a byte in common with `len` bytes at `base`.
    pub(crate) fn overlapping(&self, base: Address, len: usize) -> Vec<Arc<Range>> {
        let before = self.ranges.range(..base.saturating_add(len)).rev();
        before.map(|(_, range)| range.clone()).take_while(|range| range.end() > base).collect()
    }

    /// Returns the kind of a range that overlaps.
    pub(crate) fn first_overlap(&self, base: Address, len: usize) -> Option<Kind> {
        self.overlapping(base, len).last().map(|range| range.kind)
    }

    /// The reservation that holds `address`: beginning and length.
    pub(crate) fn reservation(&self, address: Address) -> Option<(Address, usize)> {
        let (base, mapping) = self.reservations.range(..=address).next_back()?;
        (address - base < mapping.len()).then_some((*base, mapping.len()))
    }

    pub(crate) fn remove(&mut self, base: Address) -> Option<Arc<Range>> {
        self.ranges.remove(&base)
    }

    /// Removes what belongs to a context that ends.
    pub(crate) fn remove_of_context(&mut self, id: u64) -> Vec<Arc<Range>> {
        let belongs = |range: &Arc<Range>| range.context.as_ref().is_some_and(|context| context.id == id);
        let removed = self.ranges.values().filter(|range| belongs(range)).cloned().collect();
        self.ranges.retain(|_, range| !belongs(range));
        removed
    }

    /// The parts of ranges that make up `len` bytes at `address`; None if the driver does not know its first byte.
    ///
    /// # Errors
    /// It begins in a known range and ends outside, or a part of it has no access rights.
    pub(crate) fn extents(&self, address: Address, len: usize) -> Outcome<Option<Vec<Extent>>> {
        let mut extents = Vec::new();
        let (mut at, mut left) = (address, len);
        while left > 0 || extents.is_empty() {
            let Some(range) = self.find(at) else {
                return if extents.is_empty() { Ok(None) } else { Err(Error::INVALID_VALUE) };
            };
            if !range.is_accessible() {
                return Err(Error::INVALID_VALUE);
            }
            let part = left.min(range.end() - at);
            extents.push(Extent { range: range.clone(), alias: range.alias + (at - range.base), len: part });
            at += part;
            left -= part;
        }
        Ok(Some(extents))
    }

    /// Bytes of all ranges.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.ranges.values().map(|range| range.len as u64).sum()
    }
}
