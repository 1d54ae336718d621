//! Receive buffers of one size, shared by all connections of a port or owned by one peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_btl::{Error, Retain, SharedBytes};
use cableway_common_cuda::Devices;

use crate::NAME;
use crate::memory::Slab;
use crate::receive_queues::ReceiveQueue;
use crate::verbs::{Access, Protection, QueuePair, SharedReceiveQueue};

/// Set in the ids of receives. The rest is the queue's index in the list and the buffer's index.
pub(crate) const RECEIVE: u64 = 1 << 63;
const QUEUE_SHIFT: u32 = 32;

/// Returns the index in the list of the queue that the id of a receive names.
pub(crate) fn queue_of(id: u64) -> usize {
    ((id & !RECEIVE) >> QUEUE_SHIFT) as usize
}

pub(crate) struct Receives {
    // The queue drops before its memory.
    taker: PostTarget,
    slab: Slab,
    /// The queue's index in the list.
    queue: usize,
    size: usize,
    count: usize,
    low: usize,
    /// The numbers of posted and taken buffers. Only progress changes the latter.
    posted: AtomicUsize,
    taken: AtomicUsize,
}

/// The receive queue that the buffers are posted to.
pub(crate) enum PostTarget {
    All(Arc<SharedReceiveQueue>),
    One(Arc<QueuePair>),
}

impl Receives {
    /// Maps, registers and posts all buffers.
    ///
    /// # Errors
    /// Memory is exhausted, or the limit of locked memory is too low.
    pub(crate) fn new(
        protection: &Arc<Protection>,
        taker: PostTarget,
        devices: &Devices,
        queue: usize,
        options: &ReceiveQueue,
    ) -> Result<Arc<Self>, Error> {
        let size = options.size.next_multiple_of(64);
        let slab = Slab::new(protection, devices, size * options.count, Access::LocalWrite)?;
        let low = options.low;
        let receives = Receives {
            taker,
            slab,
            queue,
            size,
            count: options.count,
            low,
            posted: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        };
        for index in 0..options.count {
            receives.post(index);
        }
        Ok(Arc::new(receives))
    }

    /// Returns the index of the queue in the list.
    #[inline]
    pub(crate) fn queue(&self) -> usize {
        self.queue
    }

    /// Posts a buffer.
    #[inline]
    pub(crate) fn post(&self, index: usize) {
        let (address, key, len) = (self.address(index), self.slab.region().local_key(), self.size as u32);
        let id = RECEIVE | (self.queue as u64) << QUEUE_SHIFT | index as u64;
        let posted = match &self.taker {
            // SAFETY: the buffer is one of the slab's, in nobody's hands now, and this value outlives the queue's use
            // of it: it goes with the port, whose queue pairs are gone by then.
            PostTarget::All(queue) => unsafe { queue.post(id, address, len, key) },
            // SAFETY: the same, and this value owns the queue pair, together with a qp that keeps this value.
            PostTarget::One(pair) => unsafe { pair.post_receive(id, address, len, key) },
        };
        match posted {
            Ok(()) => {
                self.posted.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                cableway_base::warn_once("openib/post-receive", || {
                    format!("{NAME}: a receive buffer cannot be posted any more: {error}")
                });
            }
        }
    }

    /// Records that the device has filled or flushed the buffer of a completion. Only progress calls it.
    #[inline]
    pub(crate) fn took(&self, id: u64) -> Option<usize> {
        let index = Some(id as u32 as usize).filter(|&index| index < self.count && queue_of(id) == self.queue)?;
        self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Some(index)
    }

    /// Returns the bytes in a buffer.
    ///
    /// # Safety
    /// The buffer is not posted during `'a`, and holds at least `len` bytes.
    #[inline]
    pub(crate) unsafe fn bytes<'a>(&self, index: usize, len: usize) -> SharedBytes<'a> {
        // SAFETY: within the slab, and nobody writes to it: the caller's promise.
        unsafe { SharedBytes::new(self.address(index), len.min(self.size)) }
    }

    /// Returns whether buffers can be kept for a while without delaying senders. A peer's own buffers cannot: the
    /// report that a message was consumed promises a free buffer to the peer.
    #[inline]
    pub(crate) fn plenty(&self) -> bool {
        // A buffer may be taken before the posting thread has counted it.
        let posted = self.posted.load(Ordering::Relaxed).wrapping_sub(self.taken.load(Ordering::Relaxed)) as isize;
        self.is_shared() && posted > self.low as isize
    }

    /// Returns whether all peers share the buffers.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.taker, PostTarget::All(_))
    }

    #[inline]
    fn address(&self, index: usize) -> *mut u8 {
        // SAFETY: indices are below the count, and the slab holds as many buffers.
        unsafe { self.slab.address().add(index * self.size) }.as_ptr()
    }
}

/// Lets a message stay in its buffer.
pub(crate) struct Keeping<'a> {
    pub(crate) receives: &'a Arc<Receives>,
    pub(crate) index: usize,
    pub(crate) kept: std::cell::Cell<bool>,
}

impl Retain for Keeping<'_> {
    fn retain(&self) -> Box<dyn Send> {
        self.kept.set(true);
        Box::new(Kept { receives: Arc::clone(self.receives), index: self.index })
    }
}

/// Posts the buffer again when it is dropped.
struct Kept {
    receives: Arc<Receives>,
    index: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.receives.post(self.index);
    }
}
