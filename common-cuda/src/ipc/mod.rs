//! Device memory of other processes of this node.
//!
//! The owner of an allocation exports it ([`Exports`]), the other process maps it ([`Imports`]) and copies from or to
//! it as it would with its own. Both sides know an allocation by the driver's buffer id, which is never used twice: the
//! owner asks for it at each export, so that memory that was freed and allocated again at the same address is another
//! allocation to both, and is never reached through the mapping of the one before.
//!
//! To open a mapping takes the driver some milliseconds. So a mapping is kept, and made only for an allocation that is
//! met a second time, or for so much data at once that it pays.

mod exports;
mod imports;

pub use exports::Exports;
pub use imports::{Imports, Mapped, MappingCounts, Reach};

use crate::error::DeviceError;

/// How an allocation is passed to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExportKind {
    /// By a handle that any process of the user may open: `cudaMalloc`'s memory.
    Legacy = 1,
}

impl ExportKind {
    /// The kind of this number; none if there is none.
    pub fn from_number(number: u8) -> Option<ExportKind> {
        (number == ExportKind::Legacy as u8).then_some(ExportKind::Legacy)
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
    /// The driver's id of it in the owner's process; never 0, never reused.
    pub buffer_id: u64,
    /// What the driver made of it.
    pub handle: [u8; 64],
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
