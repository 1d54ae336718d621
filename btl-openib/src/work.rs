//! The queue pairs of a connection, and the work in flight on each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_btl::Token;

use crate::gpudirect::TransferMemory;
use crate::memory::Buffer;
use crate::port::Port;
use crate::receives::Receives;
use crate::settings::SPARE_WORK;
use crate::verbs::QueuePair;

/// The capacity that an empty queue keeps.
pub(crate) const LEAST: usize = 4;

/// A queue pair of a connection. It carries the messages that fit the peer's buffers at the other end.
pub(crate) struct ConnectedQp {
    // Dropped before its buffers.
    pub(crate) pair: Arc<QueuePair>,
    _receives: Arc<Receives>,
    /// The longest message.
    pub(crate) size: usize,
    /// The number of messages that the peer accepts before it reports consumption.
    pub(crate) window: u64,
}

impl ConnectedQp {
    pub(crate) fn new(pair: Arc<QueuePair>, receives: Arc<Receives>, size: usize, window: u64) -> Self {
        ConnectedQp { pair, _receives: receives, size, window }
    }
}

/// A resource that work holds until it completes.
pub(crate) enum Owner {
    Nothing,
    Buffer { _buffer: Buffer },
    Transfer { token: Token, _memory: TransferMemory },
}

/// Work on one queue pair.
#[derive(Default)]
pub(crate) struct WorkList {
    /// The work in flight, the oldest first.
    queue: VecDeque<Owner>,
    /// The number of the oldest work.
    oldest: u32,
    /// Messages with allocated fragments.
    pub(crate) reserved: usize,
    /// Requests since the last signalled one.
    unsignalled: usize,
    /// Signalled requests in flight.
    signalled: usize,
    /// With several queue pairs: messages that the peer may not have consumed.
    pub(crate) waiting: u64,
}

impl WorkList {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Releases the memory of a queue that was long and is now empty.
    pub(crate) fn rest(&mut self) {
        if self.queue.is_empty() {
            self.queue.shrink_to(LEAST);
        }
    }

    /// Returns whether some work in flight will report its completion.
    pub(crate) fn is_watched(&self) -> bool {
        self.signalled != 0
    }

    /// Returns whether work may still be in flight.
    #[inline]
    pub(crate) fn is_under_way(&self, number: u32) -> bool {
        number.wrapping_sub(self.oldest) < u32::MAX / 2
    }

    /// Returns the number of the next work.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.oldest.wrapping_add(self.queue.len() as u32)
    }

    /// Returns whether there is room for another message besides the allocated fragments.
    #[inline]
    pub(crate) fn has_room(&self, port: &Port) -> bool {
        self.queue.len() + self.reserved + SPARE_WORK < port.depth && port.has_completions()
    }

    /// Returns whether there is room for a control message, which may use the spare room.
    pub(crate) fn has_spare_room(&self, port: &Port) -> bool {
        self.queue.len() + self.reserved + SPARE_WORK <= port.depth && port.has_completions()
    }

    /// Returns whether the next request should be signalled although it need not be. The queue has a limit, and a
    /// request without an owner is only released by a later completion.
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

    /// Completes work `number` and all work before it, and passes their owners to `each`. Returns false if there is no
    /// such work.
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

    /// Returns the owners of all work, because the device will report no more completions.
    pub(crate) fn abandon(&mut self, port: &Port) -> VecDeque<Owner> {
        port.under_way.fetch_sub(self.queue.len(), Ordering::Relaxed);
        self.signalled = 0;
        std::mem::take(&mut self.queue)
    }
}
