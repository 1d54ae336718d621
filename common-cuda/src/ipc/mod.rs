//! Device memory of other processes of this node.
//!
//! The owner of an allocation exports it ([`Exports`]). The other process maps it ([`Imports`]) and copies from or to
//! it as with its own memory. Both identify an allocation by the driver's buffer id, which is never reused. The owner
//! asks the driver for the id at each export. So memory that was freed and allocated again at the same address counts
//! as another allocation, and an old mapping never serves it.
//!
//! The driver takes some milliseconds to open a mapping. So mappings are kept, and an allocation is mapped only at its
//! second use, or for so much data at once that mapping pays.
//!
//! Memory of `cudaMalloc` has handles that fit into a message. Memory of virtual memory management is passed by file
//! descriptors: the importer sends a [`DescriptorRequest`] to the owner, which sends an [`Answer`]. No one waits for
//! the answer; other protocols carry messages until the memory is mapped.
//!
//! A buffer may lie in several adjacent pieces of such memory. They are exported as a run, and the importer maps them
//! side by side, too. Cableway numbers runs, since they have no id in the driver. The owner exports a buffer as part of
//! a run only while the buffer's pieces have the same ids.
//!
//! Memory of a pool is mapped for one message only, and unmapped before the message completes. The pool itself stays
//! imported.

mod exports;
mod imports;
mod mapped;
mod piece;
mod pools;
mod run;
mod table;

pub use exports::Exports;
pub use imports::Imports;
pub use mapped::{Mapped, Reach, WeakMapping};

use crate::exported::{Exported, PieceDescriptor};

/// A request for the descriptors of an export, as the owner described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorRequest {
    /// Its [`buffer_id`](Exported::buffer_id).
    pub buffer_id: u64,
    /// Its [`base`](Exported::base).
    pub base: u64,
    /// Its [`len`](Exported::len).
    pub len: u64,
}

impl DescriptorRequest {
    /// Returns the request for an export.
    pub fn of(exported: &Exported) -> Self {
        let Exported { buffer_id, base, len, .. } = exported.whole();
        DescriptorRequest { buffer_id, base, len }
    }
}

/// The owner's answer to a [`DescriptorRequest`].
#[derive(Debug)]
pub enum Answer {
    /// The descriptors of its pieces. They are closed after the memory is mapped.
    Descriptors(Vec<PieceDescriptor>),
    /// The allocation is unknown, or was freed.
    Gone,
    /// The driver gives no descriptor of it.
    Refused,
}

/// The largest number of pieces of a run, and thus of descriptors in one answer.
pub const MOST_PIECES: usize = 64;

/// Numbers of runs have this bit. The driver's ids never reach it.
const RUN: u64 = 1 << 63;
/// Checks whether a [`buffer_id`](Exported::buffer_id) is the number of a run.
fn is_run(buffer_id: u64) -> bool {
    buffer_id & RUN != 0
}
