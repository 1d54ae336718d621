//! A connection's queue pairs, and the work under way on each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_btl::Token;

use crate::gpudirect::Held;
use crate::memory::Buffer;
use crate::port::Port;
use crate::receives::Receives;
use crate::settings::SPARE_WORK;
use crate::verbs::QueuePair;

/// The capacity that an empty queue keeps.
pub(crate) const LEAST: usize = 4;

/// A queue pair of a connection: it takes the messages that the peer's buffers at its other end hold.
pub(crate) struct Lane {
    // Dropped before its buffers.
    pub(crate) pair: Arc<QueuePair>,
    _receives: Arc<Receives>,
    /// Longest message.
    pub(crate) size: usize,
    /// Messages that the peer takes before it says that it has consumed some.
    pub(crate) window: u64,
}

impl Lane {
    pub(crate) fn new(pair: Arc<QueuePair>, receives: Arc<Receives>, size: usize, window: u64) -> Self {
        Lane { pair, _receives: receives, size, window }
    }
}

/// Resources that work holds until it completes.
pub(crate) enum Owner {
    Nothing,
    Buffer { _buffer: Buffer },
    Transfer { token: Token, _memory: Held },
}

/// Work on one queue pair.
#[derive(Default)]
pub(crate) struct Works {
    /// Under way, the oldest first.
    queue: VecDeque<Owner>,
    /// The number of the oldest.
    oldest: u32,
    /// Messages for which fragments are out.
    pub(crate) reserved: usize,
    /// Requests since the last signalled one.
    unsignalled: usize,
    /// Signalled requests under way.
    signalled: usize,
    /// Of several queue pairs: messages that the peer is not known to have consumed.
    pub(crate) waiting: u64,
}

impl Works {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Gives back the memory of a queue that was long and is empty.
    pub(crate) fn rest(&mut self) {
        if self.queue.is_empty() {
            self.queue.shrink_to(LEAST);
        }
    }

    /// Whether something under way will report its end.
    pub(crate) fn is_watched(&self) -> bool {
        self.signalled != 0
    }

    /// Whether work is under way, as far as is known.
    #[inline]
    pub(crate) fn is_under_way(&self, number: u32) -> bool {
        number.wrapping_sub(self.oldest) < u32::MAX / 2
    }

    /// The number of the next.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.oldest.wrapping_add(self.queue.len() as u32)
    }

    /// Whether there is room for another message, and for all that fragments are out for.
    #[inline]
    pub(crate) fn has_room(&self, port: &Port) -> bool {
        self.queue.len() + self.reserved + SPARE_WORK < port.depth && port.has_completions()
    }

    /// The same, for what is no message: room is spared for it.
    pub(crate) fn has_spare_room(&self, port: &Port) -> bool {
        self.queue.len() + self.reserved + SPARE_WORK <= port.depth && port.has_completions()
    }

    /// Whether the next, that need not report its end, should: not too late, for the queue has an end, and what
    /// holds nothing is let go of by the completion of what follows.
    #[inline]
    pub(crate) fn is_due(&self, port: &Port) -> bool {
        self.unsignalled + 1 >= (port.depth / 4).max(1)
    }

    /// Records that the next request has begun.
    #[inline]
    pub(crate) fn push(&mut self, port: &Port, owner: Owner, signalled: bool) {
        port.under_way.fetch_add(1, Ordering::Relaxed);
        self.queue.push_back(owner);
        if signalled {
            self.unsignalled = 0;
            self.signalled += 1;
        } else {
            self.unsignalled += 1;
        }
    }

    /// Work `number` and all before it is done: what each held is handed to `each`. False if there is no such work.
    #[inline]
    pub(crate) fn finish(&mut self, port: &Port, number: u32, mut each: impl FnMut(Owner, bool)) -> bool {
        let count = number.wrapping_sub(self.oldest) as usize + 1;
        if count > self.queue.len() {
            return false;
        }
        for place in 1..=count {
            let Some(owner) = self.queue.pop_front() else { break };
            each(owner, place == count);
        }
        self.oldest = number.wrapping_add(1);
        self.signalled = self.signalled.saturating_sub(1);
        port.under_way.fetch_sub(count, Ordering::Relaxed);
        true
    }

    /// Takes all work back, since the device will report no more completions.
    pub(crate) fn abandon(&mut self, port: &Port) -> VecDeque<Owner> {
        port.under_way.fetch_sub(self.queue.len(), Ordering::Relaxed);
        self.signalled = 0;
        std::mem::take(&mut self.queue)
    }
}
