//! Operations on little data in one shot: each rank stores its data in a slot of shared host memory, and takes what it
//! needs from the slots of all others.
//!
//! A rank stores its data at once, without a word from the others. So one kernel of each rank does everything, and no
//! messages go before it. [`run`](crate::run) knows the slots.

use cableway_common_cuda::MOST_SLOTS;

use super::block::{Block, Place};

/// The most ranks.
pub(crate) const MOST_RANKS: u32 = MOST_SLOTS as u32;
/// The most bytes of an exchange: of blocks, what a rank receives in all; of a reduction, the input of a rank. More data takes
/// less time by other algorithms.
pub(crate) const MOST_DATA: u64 = 16 << 10;

/// An operation in one shot. All blocks are runs of bytes where the rank works.
#[derive(Debug)]
pub(crate) struct OneShot {
    pub(crate) sent: Sent,
    /// Where the data of each rank goes, with its length. The place for this rank's own data is `None` if it stays where it
    /// is.
    pub(crate) receives: Vec<(Option<Place>, u64)>,
    pub(crate) reduction: Option<Folded>,
    /// The lengths of this rank do not fit together: there is a block of so many bytes where others are expected. So the rank
    /// takes part as one that has failed.
    pub(crate) refused: Option<(u64, u64)>,
}

/// What a rank stores in its slot.
#[derive(Debug)]
pub(crate) enum Sent {
    /// The same for all ranks.
    ToAll(Block),
    /// A block for each rank, and where its segment begins in the slots of all ranks.
    ToEach { blocks: Vec<Block>, places: Vec<u32> },
}

/// A reduction of the data of all ranks.
#[derive(Debug)]
pub(crate) struct Folded {
    /// This rank's own data.
    pub(crate) own: Place,
    pub(crate) output: Place,
    pub(crate) elements: u64,
}

impl Sent {
    /// Returns the blocks.
    pub(crate) fn blocks(&self) -> &[Block] {
        match self {
            Sent::ToAll(block) => std::slice::from_ref(block),
            Sent::ToEach { blocks, .. } => blocks,
        }
    }
}

impl OneShot {
    /// Returns the bytes that a rank takes from the slots of others.
    pub(crate) fn incoming(&self, rank: u32) -> u64 {
        let others = self.receives.iter().zip(0..).filter(|(_, from)| *from != rank);
        others.map(|(received, _)| received.1).sum()
    }
}
