//! The receiver's state of a GET.

use cableway_btl::RemoteHandle;
use cableway_common_cuda::Strided;
use smallvec::{SmallVec, smallvec};

/// Memory of the sender that can be fetched from.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    /// The serial of the link that reaches it.
    pub(crate) link: u32,
    pub(crate) handle: RemoteHandle,
    /// The data's blocks in the memory, if there are several.
    pub(crate) blocks: Option<Strided>,
    /// Whether a device fetches.
    pub(crate) by_device: bool,
}

pub(crate) struct Fetch {
    pub(crate) from: Remote,
    /// Ranges that are neither on offer nor passed to the link, in any order.
    pub(crate) ranges: SmallVec<[(u64, u64); 2]>,
    /// Ranges that could not be fetched.
    pub(crate) refused: Vec<(u64, u64)>,
    /// Whether the queue of GETs has the message.
    pub(crate) queued: bool,
    /// Whether ranges are offered to the sender instead of fetched.
    pub(crate) offering: bool,
    /// Whether some were offered.
    pub(crate) offered_any: bool,
    /// Bytes that were fetched.
    pub(crate) fetched: u64,
    /// Whether the sender stores the ranges that it claims (see [`halves`](super::super::halves)).
    pub(crate) halves: bool,
    /// The registrations that let the sender store.
    pub(crate) keepers: Vec<Box<dyn Send>>,
}

impl Fetch {
    /// Creates the state for `len` bytes.
    pub(crate) fn new(from: Remote, len: u64, offering: bool) -> Self {
        Fetch {
            from,
            ranges: smallvec![(0, len)],
            refused: Vec::new(),
            queued: true,
            offering,
            offered_any: false,
            fetched: 0,
            halves: false,
            keepers: Vec::new(),
        }
    }

    /// Leaves the first `len` bytes of a new fetch to this process.
    pub(crate) fn leave(&mut self, len: u64) {
        self.ranges = smallvec![(0, len)];
    }

    /// Notes that a range and the rest cannot be fetched.
    pub(crate) fn refuse(&mut self, range: (u64, u64)) {
        self.refused.push(range);
        self.refuse_rest();
    }

    /// Notes that the rest cannot be fetched.
    pub(crate) fn refuse_rest(&mut self) {
        self.refused.extend(self.ranges.drain(..).rev());
    }

    /// Removes the next range, at most `most` bytes of it.
    pub(crate) fn take(&mut self, most: u64) -> Option<(u64, u64)> {
        let (from, to) = self.ranges.last_mut()?;
        let piece = (*from, (*from + most.max(1)).min(*to));
        *from = piece.1;
        if from == to {
            self.ranges.pop();
        }
        Some(piece)
    }

    /// Gives up the ranges that were neither requested nor fetched. Returns the number of bytes.
    pub(crate) fn abort(&mut self) -> u64 {
        self.ranges.drain(..).chain(self.refused.drain(..)).map(|(from, to)| to - from).sum()
    }
}
