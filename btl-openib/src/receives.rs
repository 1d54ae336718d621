//! The buffers in which messages arrive, shared by all connections of the port.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_btl::{Error, Retain, SharedBytes};
use cableway_common_cuda::Devices;

use crate::NAME;
use crate::memory::Slab;
use crate::settings::ReceiveQueue;
use crate::verbs::{Access, Protection, SharedReceiveQueue};

/// Set in the ids of receives; the rest is a buffer's index.
pub(crate) const RECEIVE: u64 = 1 << 63;

pub(crate) struct Receives {
    // Its users first: the queue is gone before its memory.
    queue: Arc<SharedReceiveQueue>,
    slab: Slab,
    size: usize,
    count: usize,
    low: usize,
    posted: AtomicUsize,
}

impl Receives {
    /// Maps, registers and posts them all.
    ///
    /// # Errors
    /// No memory, or too little of it may be locked.
    pub(crate) fn new(
        protection: &Arc<Protection>,
        queue: &Arc<SharedReceiveQueue>,
        devices: &Devices,
        options: &ReceiveQueue,
    ) -> Result<Arc<Self>, Error> {
        let size = options.size.next_multiple_of(64);
        let slab = Slab::new(protection, devices, size * options.count, Access::LocalWrite)?;
        let receives = Arc::new(Receives {
            queue: Arc::clone(queue),
            slab,
            size,
            count: options.count,
            low: options.low,
            posted: AtomicUsize::new(0),
        });
        for index in 0..options.count {
            receives.post(index);
        }
        Ok(receives)
    }

    /// Offers a buffer to whoever sends next.
    #[inline]
    pub(crate) fn post(&self, index: usize) {
        let (address, key) = (self.address(index), self.slab.region().local_key());
        // SAFETY: the buffer is one of the slab's, in nobody's hands now, and this value outlives the queue's use of
        // it: it goes with the port, whose queue pairs are gone by then.
        match unsafe { self.queue.post(RECEIVE | index as u64, address, self.size as u32, key) } {
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

    /// The buffer that a completion names has been filled, or flushed.
    #[inline]
    pub(crate) fn took(&self, id: u64) -> Option<usize> {
        let index = usize::try_from(id & !RECEIVE).ok().filter(|&index| index < self.count)?;
        self.posted.fetch_sub(1, Ordering::Relaxed);
        Some(index)
    }

    /// What arrived in a buffer.
    ///
    /// # Safety
    /// The buffer is not posted for `'a`, and holds `len` bytes at least.
    pub(crate) unsafe fn bytes<'a>(&self, index: usize, len: usize) -> SharedBytes<'a> {
        // SAFETY: within the slab, and nobody writes to it: the caller's promise.
        unsafe { SharedBytes::new(self.address(index), len.min(self.size)) }
    }

    /// Whether buffers can be kept for a while without starving senders.
    pub(crate) fn plenty(&self) -> bool {
        self.posted.load(Ordering::Relaxed) > self.low
    }

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

/// Posts its buffer when dropped, and not before.
struct Kept {
    receives: Arc<Receives>,
    index: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.receives.post(self.index);
    }
}
