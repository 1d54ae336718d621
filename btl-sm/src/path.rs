//! The paths to a peer.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::peer::Link;
use crate::ring::fast_box::Writer;
use crate::ring::{Corrupt, fifo};
use crate::segment::{BoxMemory, FifoMemory};

/// The path of messages. It only changes to the next variant, and messages keep their order.
pub(crate) enum Path {
    /// Not connected.
    None,
    /// References in the peer's FIFO, and the number of messages so far.
    Fifo(FifoPath, usize),
    /// The own fast box.
    Box(Writer<BoxMemory>),
}

/// The state needed to push to the peer's FIFO.
pub(crate) struct FifoPath {
    link: Arc<Link>,
    cells: FifoMemory,
    /// The positions of own records that the peer may not have read.
    unread: VecDeque<u64>,
}

impl FifoPath {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        let cells = FifoMemory::new(link.memory.clone(), link.layout.fifo_cells);
        FifoPath { link, cells, unread: VecDeque::new() }
    }

    /// Returns whether the own share of the FIFO has room for this many records.
    pub(crate) fn has_room(&mut self, needed: usize) -> bool {
        let quota = self.link.layout.fifo_quota;
        if self.unread.len() + needed > quota {
            let head = fifo::head(&self.cells);
            while self.unread.front().is_some_and(|&position| position < head) {
                self.unread.pop_front();
            }
        }
        self.unread.len() + needed <= quota
    }

    pub(crate) fn push(&mut self, kind: fifo::Kind, value: u32) -> Result<(), Corrupt> {
        let record = fifo::Record { producer: self.link.our_index, kind, value };
        let position = fifo::push(&self.cells, record).ok_or(Corrupt("the FIFO is full in spite of its quotas"))?;
        self.unread.push_back(position);
        Ok(())
    }
}
