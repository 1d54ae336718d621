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
pub use mapped::{Mapped, Reach, WasMapped};

use crate::exported::{Exported, Given};

/// A request for the descriptor of an export, as the owner described it.
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
    /// The export as the owner described it.
    pub fn of(exported: &Exported) -> Self {
        let Exported { buffer_id, base, len, .. } = exported.whole();
        Wanted { buffer_id, base, len }
    }
}

/// The owner's answer.
#[derive(Debug)]
pub enum Answer {
    /// The descriptors of its pieces. They are closed once the memory is mapped.
    Given(Vec<Given>),
    /// The allocation does not exist, or was freed.
    Gone,
    /// No descriptor of it can be had.
    Refused,
}

/// Pieces that a run has at most: descriptors that travel at once.
pub const MOST_PIECES: usize = 64;

/// The numbers of runs have this bit, which no driver's ids come to.
const RUN: u64 = 1 << 63;
/// Checks whether a [`buffer_id`](Exported::buffer_id) is the number of a run.
fn is_run(buffer_id: u64) -> bool {
    buffer_id & RUN != 0
}
