//! The addresses that the driver knows, and their memory.

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
    /// Checks whether a CPU may access it.
    pub(crate) fn is_host(self) -> bool {
        matches!(self, Kind::HostAllocated | Kind::HostRegistered)
    }
}

/// A range that one call creates and one call frees.
pub(crate) struct Range {
    pub(crate) base: Address,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    pub(crate) device: c_int,
    /// `None` for memory of pools and of `cuMemMap`, for which the driver reports no context.
    pub(crate) context: Option<Arc<Context>>,
    /// Never reused.
    pub(crate) id: u64,
    /// The address of the byte at `base`, for the copy functions.
    pub(crate) alias: usize,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub(crate) synchronous: AtomicBool,
    /// Only for `cuMemMap`.
    pub(crate) mapping: Option<Mapped>,
    pub(crate) backing: Backing,
}

/// The part of a range's state that `cuMemMap` and `cuMemSetAccess` set.
pub(crate) struct Mapped {
    pub(crate) physical: Arc<Physical>,
    /// The reservation of the addresses: its first address and length.
    pub(crate) reserved: (Address, usize),
    pub(crate) access: Accesses,
}

/// Keeps a range's memory alive. It is dropped with the last user of the range, including work in flight.
#[derive(Default)]
pub(crate) struct Backing {
    /// The addresses that the user knows.
    pub(crate) _addresses: Option<Mapping>,
    /// The mapping for the copy functions, of a separate file.
    pub(crate) _data: Option<Mapping>,
    pub(crate) piece: Option<Arc<Piece>>,
    /// A separate file, which begins with the memory, if dma-bufs can be mapped. There is no piece then.
    pub(crate) file: Option<OwnedFd>,
    pub(crate) _charge: Option<Charge>,
    /// Only for memory of pools.
    pub(crate) _pool: Option<InPool>,
    pub(crate) _import: Option<Importing>,
}

impl Range {
    pub(crate) fn end(&self) -> Address {
        self.base + self.len
    }

    /// Checks whether copies may access it.
    pub(crate) fn is_accessible(&self) -> bool {
        self.mapping.as_ref().is_none_or(|mapping| mapping.access.any())
    }

    /// Checks whether a device may write to it. Writing to another device's pool or mapped memory requires granted
    /// access. Peer access between the two devices does not suffice.
    pub(crate) fn is_writable_by(&self, device: c_int) -> Outcome<bool> {
        if let Some(mapping) = &self.mapping {
            return Ok(mapping.access.get(device) == Some(READ_WRITE));
        }
        match self.kind {
            Kind::Pool { pool, .. } if self.device != device => Ok(pool::access(pool, device)? == READ_WRITE),
            _ => Ok(true),
        }
    }

    /// Ends the process if memory is freed that another process has imported and not freed, which the documentation
    /// forbids. A real driver would give it to the pool's next allocation, which writes through the import would
    /// corrupt.
    pub(crate) fn check_free(&self) {
        let Some(piece) = self.backing.piece.as_ref().filter(|piece| piece.store().is_some()) else { return };
        let [count, last] = piece.shared();
        let (count, last) = (count.load(Ordering::SeqCst), last.load(Ordering::SeqCst));
        // A process that has ended has released its imports. A zombie has no mappings.
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

    /// Checks whether `SYNC_MEMOPS` is set. Memory of pools accepts it without an effect, as on an H200 (driver 580).
    pub(crate) fn is_synchronous(&self) -> bool {
        self.synchronous.load(Ordering::Relaxed) && !matches!(self.kind, Kind::Pool { .. })
    }
}

/// Part of a range.
#[derive(Clone)]
pub(crate) struct Extent {
    pub(crate) range: Arc<Range>,
    pub(crate) alias: usize,
    pub(crate) len: usize,
}

/// All ranges. They do not overlap.
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

    /// Returns the range that contains `address`.
    pub(crate) fn find(&self, address: Address) -> Option<&Arc<Range>> {
        self.ranges.range(..=address).next_back().map(|(_, range)| range).filter(|range| address < range.end())
    }

    /// Returns the ranges that overlap `len` bytes at `base`.
    pub(crate) fn overlapping(&self, base: Address, len: usize) -> Vec<Arc<Range>> {
        let before = self.ranges.range(..base.saturating_add(len)).rev();
        before.map(|(_, range)| range.clone()).take_while(|range| range.end() > base).collect()
    }

    /// Returns the kind of a range that overlaps.
    pub(crate) fn first_overlap(&self, base: Address, len: usize) -> Option<Kind> {
        self.overlapping(base, len).last().map(|range| range.kind)
    }

    /// Returns the reservation that contains `address`: first address and length.
    pub(crate) fn reservation(&self, address: Address) -> Option<(Address, usize)> {
        let (base, mapping) = self.reservations.range(..=address).next_back()?;
        (address - base < mapping.len()).then_some((*base, mapping.len()))
    }

    pub(crate) fn remove(&mut self, base: Address) -> Option<Arc<Range>> {
        self.ranges.remove(&base)
    }

    /// Removes the ranges of a destroyed context.
    pub(crate) fn remove_of_context(&mut self, id: u64) -> Vec<Arc<Range>> {
        let belongs = |range: &Arc<Range>| range.context.as_ref().is_some_and(|context| context.id == id);
        let removed = self.ranges.values().filter(|range| belongs(range)).cloned().collect();
        self.ranges.retain(|_, range| !belongs(range));
        removed
    }

    /// Returns the parts of ranges that form `len` bytes at `address`, or `None` if the driver does not know the first
    /// byte.
    ///
    /// # Errors
    /// The bytes begin in a known range and end outside, or some of them have no access rights.
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

    /// Returns the bytes of all ranges.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.ranges.values().map(|range| range.len as u64).sum()
    }
}
