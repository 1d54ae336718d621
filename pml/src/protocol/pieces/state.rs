//! The receiver's state of a message that comes in pieces through scratch memory.

use cableway_btl::Registration;
use cableway_common_cuda::Spread;
use smallvec::SmallVec;

use crate::protocol::scratch::Slot;
use crate::wire::BtlTag;

/// Pieces of a message under way at a time: one is unpacked, one is packed, and one is requested.
pub(super) const DEPTH: usize = 4;

pub(crate) struct Pieces {
    /// The base address and the blocks.
    pub(crate) user: *mut u8,
    pub(super) spread: Spread,
    /// Bytes that were requested as pieces, or will come another way.
    pub(super) next: u64,
    /// Ranges that could not be stored, and will come as fragments.
    pub(super) refused: Vec<(u64, u64)>,
    pub(super) lanes: SmallVec<[Lane; DEPTH]>,
}

// SAFETY: the address is for devices and is never dereferenced here. It belongs to the transfer on any thread.
unsafe impl Send for Pieces {}

/// A slot of scratch memory, and the piece in it.
pub(super) struct Lane {
    /// Dropped before the slot that it registers.
    pub(super) registration: Registration,
    pub(super) slot: Slot,
    /// The link that it was registered with, as headers name it.
    pub(super) via: (BtlTag, u8),
    pub(super) holds: LaneState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneState {
    Nothing,
    /// A piece was requested, with its offset and length.
    Asked(u64, u64),
    /// The piece has arrived, and is being unpacked.
    Unpacking,
}

impl Pieces {
    pub(crate) fn new((user, spread): (*mut u8, Spread)) -> Box<Self> {
        Box::new(Pieces { user, spread, next: 0, refused: Vec::new(), lanes: SmallVec::new() })
    }

    /// Returns the lane of a piece.
    pub(super) fn asked(&mut self, offset: u64, len: u64) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.holds == LaneState::Asked(offset, len))
    }

    pub(super) fn put_down(&mut self, lane: usize) {
        self.lanes[lane].slot.expose(false);
        self.lanes[lane].holds = LaneState::Nothing;
    }

    /// Gives up the bytes of `wanted` that were not requested. Returns how many.
    pub(crate) fn abort(&mut self, wanted: u64) -> u64 {
        let refused: u64 = self.refused.drain(..).map(|(from, to)| to - from).sum();
        wanted - std::mem::replace(&mut self.next, wanted) + refused
    }

    /// Handles that the sender has given up, after all its stores.
    pub(crate) fn put_down_asked(&mut self) {
        for lane in 0..self.lanes.len() {
            if matches!(self.lanes[lane].holds, LaneState::Asked(..)) {
                self.put_down(lane);
            }
        }
    }
}
