//! The receiver's state of a message that comes in pieces through scratch memory.

use cableway_btl::Registration;
use cableway_common_cuda::Spread;
use smallvec::SmallVec;

use crate::protocol::scratch::Slot;
use crate::wire::BtlTag;

/// Pieces of a message that are on their way at a time: while one is unpacked and the next are packed, one is asked for.
pub(crate) const DEPTH: usize = 4;

pub(crate) struct Pieces {
    /// What the blocks are relative to, and the blocks.
    pub(crate) user: *mut u8,
    pub(crate) spread: Spread,
    /// Bytes that were asked for as pieces, or are to come in another way.
    pub(crate) next: u64,
    /// Ranges that could not be stored, and are to come as fragments.
    pub(crate) refused: Vec<(u64, u64)>,
    pub(crate) lanes: SmallVec<[Lane; DEPTH]>,
}

// SAFETY: the address is handed to devices, never dereferenced here; it is the transfer's, on whatever thread.
unsafe impl Send for Pieces {}

/// Scratch memory, and the piece that is in it.
pub(crate) struct Lane {
    /// Dropped before the slot that it is about.
    pub(crate) registration: Registration,
    pub(crate) slot: Slot,
    /// The link that it was registered with, as headers call it.
    pub(crate) via: (BtlTag, u8),
    pub(crate) holds: LaneState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneState {
    Nothing,
    /// The sender was asked for so many bytes from this one on.
    Asked(u64, u64),
    /// They are here, and being unpacked.
    Unpacking,
}

impl Pieces {
    pub(crate) fn new((user, spread): (*mut u8, Spread)) -> Box<Self> {
        Box::new(Pieces { user, spread, next: 0, refused: Vec::new(), lanes: SmallVec::new() })
    }

    /// The lane whose piece that is.
    pub(crate) fn asked(&mut self, offset: u64, len: u64) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.holds == LaneState::Asked(offset, len))
    }

    pub(crate) fn put_down(&mut self, lane: usize) {
        self.lanes[lane].slot.expose(false);
        self.lanes[lane].holds = LaneState::Nothing;
    }

    /// Gives up, of `wanted` bytes, those that were not asked for; how many.
    pub(crate) fn give_up(&mut self, wanted: u64) -> u64 {
        let refused: u64 = self.refused.drain(..).map(|(from, to)| to - from).sum();
        wanted - std::mem::replace(&mut self.next, wanted) + refused
    }

    /// The sender has given up, after all that it was storing.
    pub(crate) fn put_down_asked(&mut self) {
        for lane in 0..self.lanes.len() {
            if matches!(self.lanes[lane].holds, LaneState::Asked(..)) {
                self.put_down(lane);
            }
        }
    }
}
