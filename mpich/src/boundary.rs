//! What the shim and Rust pass each other: `shim/shim.h`.

use std::ffi::{c_int, c_void};

use cableway_coll::Memory;
use cableway_datatype::{Layout, StagedBlock};

/// `enum cableway_code`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) enum Code {
    Ok,
    Internal,
    NoMemory,
}

/// `struct cableway_hello`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Hello {
    pub(crate) host: u64,
    pub(crate) id: u64,
    pub(crate) secret: [u8; 32],
    pub(crate) expects: u64,
}

/// `struct cableway_card`
#[repr(C)]
pub(crate) struct CardDescription {
    pub(crate) ready: u64,
    pub(crate) device: u64,
    pub(crate) length: u64,
    pub(crate) context: u64,
}

/// `struct cableway_memory`
#[repr(C)]
pub(crate) struct MemoryDescription {
    address: *mut c_void,
    count: u64,
    length: u64,
    layout: *const Layout,
}

/// `struct cableway_side`
#[repr(C)]
pub(crate) struct Side {
    parts: *const MemoryDescription,
    count: usize,
    read: bool,
    written: bool,
}

/// `struct cableway_call`
#[repr(C)]
pub(crate) struct CallDescription {
    pub(crate) kind: c_int,
    pub(crate) root: c_int,
    pub(crate) in_place: bool,
    pub(crate) send: Side,
    pub(crate) receive: Side,
    pub(crate) operation: c_int,
    pub(crate) element: c_int,
    pub(crate) elements: u64,
    pub(crate) input: *const c_void,
    pub(crate) output: *mut c_void,
    counts: *const c_int,
    ranks: usize,
}

/// `enum cableway_kind`
pub(crate) mod kind {
    use std::ffi::c_int;

    pub(crate) const BROADCAST: c_int = 0;
    pub(crate) const GATHER: c_int = 1;
    pub(crate) const SCATTER: c_int = 2;
    pub(crate) const ALLGATHER: c_int = 3;
    pub(crate) const ALLTOALL: c_int = 4;
    pub(crate) const ALLREDUCE: c_int = 5;
    pub(crate) const REDUCE: c_int = 6;
    pub(crate) const REDUCE_SCATTER: c_int = 7;
    pub(crate) const SCAN: c_int = 8;
    pub(crate) const EXCLUSIVE_SCAN: c_int = 9;
}

/// Makes a slice of an array that may be null if it is empty.
///
/// # Safety
/// The array holds so many entries for as long as the slice is used.
pub(crate) unsafe fn slice<'a, T>(array: *const T, len: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(array, len) } }
}

impl CallDescription {
    /// Returns the counts of a reduce-scatter for so many ranks. One count stands for all.
    ///
    /// # Safety
    /// The description is valid.
    pub(crate) unsafe fn counts(&self, ranks: usize) -> Vec<u64> {
        // SAFETY: the caller's promise.
        let counts = unsafe { slice(self.counts, self.ranks) };
        let count = |at: usize| counts.get(if counts.len() == 1 { 0 } else { at }).copied().unwrap_or(0);
        (0..ranks).map(|rank| u64::try_from(count(rank)).unwrap_or(0)).collect()
    }
}

impl Side {
    /// # Safety
    /// The description is valid, and its layouts live as long as the result.
    pub(crate) unsafe fn memory<'a>(&self) -> Vec<Memory<'a>> {
        // SAFETY: the caller's promise.
        unsafe { slice(self.parts, self.count) }.iter().map(|part| unsafe { part.memory() }).collect()
    }

    /// # Safety
    /// The description is valid.
    pub(crate) unsafe fn blocks(&self) -> Vec<StagedBlock> {
        // SAFETY: the caller's promise.
        let parts = unsafe { slice(self.parts, self.count) };
        let block = |part: &MemoryDescription| StagedBlock {
            address: part.address.expose_provenance(),
            count: if part.layout.is_null() { part.length } else { part.count },
            // SAFETY: as above.
            layout: unsafe { part.layout.as_ref() }.cloned(),
            read: self.read,
            written: self.written,
        };
        parts.iter().map(block).collect()
    }
}

impl MemoryDescription {
    /// # Safety
    /// The layout is null, or lives as long as the result.
    unsafe fn memory<'a>(&self) -> Memory<'a> {
        // SAFETY: the caller's promise.
        let layout = unsafe { self.layout.as_ref() };
        let count = if layout.is_some() { self.count } else { self.length };
        Memory { address: self.address.cast(), count, layout }
    }
}
