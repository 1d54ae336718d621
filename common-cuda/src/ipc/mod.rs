//! Device memory of other processes of this node.
//!
//! The owner of an allocation exports it ([`Exports`]), the other process maps it ([`Imports`]) and copies from or to
//! it as it would with its own. Both sides know an allocation by the driver's buffer id, which is never used twice: the
//! owner asks for it at each export, so that memory that was freed and allocated again at the same address is another
//! allocation to both, and is never reached through the mapping of the one before.
//!
//! To open a mapping takes the driver some milliseconds. So a mapping is kept, and made only for an allocation that is
//! met a second time, or for so much data at once that it pays.
//!
//! Memory of `cudaMalloc` has handles that can be told in a message. What virtual memory management makes is passed by
//! file descriptor instead: the importer asks the owner ([`Wanted`]), who answers with one ([`Answer`]) by whatever way
//! the two have to pass descriptors. Nobody waits for that; until the memory is mapped, other protocols carry it.
//!
//! A buffer that lies in several pieces of such memory, mapped side by side, is exported as a run of them, which the
//! importer maps side by side, too. A run has a number of our own in the place of an id. Its owner names it only for what
//! lies in those of its pieces that still have their ids.
//!
//! Memory of a pool is mapped for a message only, and unmapped before that is over, in a pool that stays imported.

mod exports;
mod imports;
mod mapped;
mod pools;
mod run;

pub use exports::Exports;
pub use imports::Imports;
pub use mapped::{Mapped, MappingCounts, Reach, WasMapped};

use std::os::fd::OwnedFd;

use crate::error::DeviceError;

/// How an allocation is passed to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExportKind {
    /// By a handle that any process of the user may open: `cudaMalloc`'s memory.
    Legacy = 1,
    /// By file descriptors, for which the owner is asked: memory of `cuMemCreate` that was made to be shared so. One, or
    /// one for each piece of a run.
    Descriptor = 2,
    /// Memory of a pool that was made to be shared so: the pool by a file descriptor, for which the owner is asked, what is
    /// allocated in it by a handle.
    Pool = 3,
}

impl ExportKind {
    /// The kind of this number; none if there is none.
    pub fn from_number(number: u8) -> Option<ExportKind> {
        [ExportKind::Legacy, ExportKind::Descriptor, ExportKind::Pool].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// An allocation as its owner names it to other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// How it is passed on.
    pub kind: ExportKind,
    /// The device that it lies on: the UUID, a MIG instance's own.
    pub device: [u8; 16],
    /// Its first byte's address in the owner's process, which tells nothing but where an offset counts from.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// The driver's id of it in the owner's process, or the number of a run; never 0, never reused.
    pub buffer_id: u64,
    /// What the driver made of it; nothing for what is passed by descriptor.
    pub handle: [u8; 64],
    /// The number of the pool that it is allocated in, below 2^48; 0 if it is of none.
    pub pool: u64,
}

impl Exported {
    /// What its owner is asked for, and what stays mapped: itself, or the pool that it is allocated in.
    fn whole(&self) -> Exported {
        match self.kind {
            ExportKind::Legacy | ExportKind::Descriptor => *self,
            ExportKind::Pool => Exported { base: 0, len: 0, buffer_id: POOL | self.pool, handle: [0; 64], ..*self },
        }
    }
}

/// What its owner is asked for a descriptor of: an export, as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its [`buffer_id`](Exported::buffer_id).
    pub buffer_id: u64,
    /// Its [`base`](Exported::base).
    pub base: u64,
    /// Its [`len`](Exported::len).
    pub len: u64,
}

impl Wanted {
    /// The one that was told.
    pub fn of(exported: &Exported) -> Self {
        let Exported { buffer_id, base, len, .. } = exported.whole();
        Wanted { buffer_id, base, len }
    }
}

/// What the owner says to that.
#[derive(Debug)]
pub enum Answer {
    /// Here it is, piece by piece. Closed once the memory is mapped.
    Given(Vec<Given>),
    /// There is no such allocation, or no longer.
    Gone,
    /// No descriptor of it can be had.
    Refused,
}

/// Physical memory that its owner passes on.
#[derive(Debug)]
pub struct Given {
    /// What stands for it.
    pub descriptor: OwnedFd,
    /// Bytes of it that are mapped.
    pub len: u64,
}

/// Pieces that a run has at most: descriptors that travel at once.
pub const MOST_PIECES: usize = 64;

/// The numbers of runs have this bit, which no driver's ids come to.
const RUN: u64 = 1 << 63;
/// The numbers of pools have this one, where they stand in the place of an id.
const POOL: u64 = 1 << 62;

/// Whether a [`buffer_id`](Exported::buffer_id) is the number of a run.
fn is_run(buffer_id: u64) -> bool {
    buffer_id & RUN != 0
}

/// Why an allocation has no export.
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "made by vendors only"))]
pub(crate) enum NoExport {
    /// It is of a kind that the driver passes on in another way, or in none.
    Kind,
    /// The driver refused.
    Refused(DeviceError),
}
