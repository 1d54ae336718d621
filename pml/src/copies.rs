//! Device copies under way, and what happens once they are done.

use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_base::Rank;
use cableway_btl::{Fragment, Retained};
use cableway_common_cuda::{BounceBuffer, Completion, DeviceError, Location};

use crate::batches::{Batches, Plain};
use crate::completion::{Active, Done};
use crate::engine::Engine;
use crate::error::Error;
use crate::kept::Kept;
use crate::request::Status;
use crate::wire::Id;
use cableway_base::lock::{Lock, Locking};

/// A copy and what follows it.
pub(crate) struct Copying {
    pub(crate) completion: Completion,
    pub(crate) then: Then,
    pub(crate) bytes: u64,
}

pub(crate) enum Then {
    /// An eager message is ready to leave.
    SendMessage { peer: Rank, link: u32, id: Id, fragment: Fragment, len: usize },
    /// A fragment is.
    SendFragment { peer: Rank, link: u32, id: Id, fragment: Fragment, len: usize },
    /// The default stream's work on data that is to be announced is done.
    Ordered { peer: Rank, id: Id },
    /// The same of a buffer into which data is to be moved.
    Move { peer: Rank, id: Id },
    /// So many bytes of an announced message are where they belong.
    Arrived { peer: Rank, id: Id, bytes: u64, source: Source },
    /// So many bytes of a message that comes in pieces are unpacked, out of this lane.
    Unpacked { peer: Rank, id: Id, lane: usize, bytes: u64 },
    /// An eager message is.
    Received { request: Active, status: Status, truncated: Option<Error>, source: Source },
}

/// Keeps the host memory that a copy reads.
pub(crate) enum Source {
    /// The transport's.
    Retained { _message: Retained },
    /// Ours, registered with the device's driver.
    Bounce { _buffer: BounceBuffer },
    /// A message that was kept.
    Kept { _message: Box<Kept> },
}

impl Source {
    /// Whether it is page-locked: transports let nothing else be retained.
    pub(crate) fn page_locked(&self) -> bool {
        !matches!(self, Source::Kept { .. })
    }
}

/// The copies of one engine.
pub(crate) struct Copies {
    batches: Lock<Batches>,
    count: AtomicUsize,
}

impl Copies {
    /// With batches that are full from so many bytes on.
    pub(crate) fn new(locking: Locking, batch_size: usize) -> Self {
        Copies { batches: Lock::new(locking, Batches::new(batch_size)), count: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

impl Engine {
    /// Sees to it that `copy.then` happens once the copy is done; what copies no bytes is only waited for.
    pub(crate) fn start_copy(&self, copy: Copying) {
        if copy.bytes != 0 {
            self.counters.device_copies.increment();
            self.counters.device_bytes.add(copy.bytes);
        }
        self.copies.count.fetch_add(1, Ordering::Release);
        self.copies.batches.lock().add_running(copy.completion, copy.then);
    }

    /// Has a copy set out with others, at the latest when this turn of progress ends, or the call of the program's does
    /// that it came with ([`set_out_copies`](Self::set_out_copies)).
    ///
    /// # Safety
    /// Both ranges stay allocated, the source unwritten and the destination untouched, until `copy.then` has happened or
    /// is dropped.
    pub(crate) unsafe fn gather_copy(&self, copy: Plain) {
        self.counters.device_copies.increment();
        self.counters.device_bytes.add(copy.len as u64);
        self.copies.count.fetch_add(1, Ordering::Release);
        // SAFETY: the caller's promise.
        unsafe { self.copies.batches.lock().add(copy) };
    }

    /// Lets gathered copies set out.
    pub(crate) fn set_out_copies(&self) {
        if !self.copies.is_empty() {
            self.copies.batches.lock().set_out(&self.devices);
        }
    }

    /// What is done once the default stream's work on a buffer is; none if it is already.
    pub(crate) fn default_stream(&self, at: &Location) -> Result<Option<Completion>, DeviceError> {
        let mut completion = self.devices.default_stream(at)?;
        Ok(if completion.poll()? { None } else { Some(completion) })
    }

    /// Looks which copies are done; returns how many were.
    #[cold]
    pub(crate) fn poll_copies(&self) -> usize {
        let ended = {
            // Another thread that polls is as good.
            let Some(mut batches) = self.copies.batches.try_lock() else { return 0 };
            let ended = batches.ended();
            batches.set_out(&self.devices);
            ended
        };
        let count = ended.len();
        if count == 0 {
            return 0;
        }
        let mut done = Done::default();
        for (then, result) in ended {
            self.copied(then, result, &mut done);
        }
        // Only now: whoever finds none left may rely on what followed them.
        self.copies.count.fetch_sub(count, Ordering::Release);
        self.set_out_copies();
        done.run();
        count
    }

    fn copied(&self, then: Then, result: Result<(), DeviceError>, done: &mut Done) {
        match then {
            Then::SendMessage { peer, link, id, fragment, len } => {
                let Some(peer) = self.known_peer(peer) else { return };
                self.with_links(peer, done, |links, done| {
                    self.message_copied(peer, links, (id, link), (fragment, len), result, done);
                });
            }
            Then::SendFragment { peer, link, id, fragment, len } => {
                let Some(peer) = self.known_peer(peer) else { return };
                self.with_links(peer, done, |links, done| {
                    self.fragment_copied(peer, links, (id, link), (fragment, len), result, done);
                });
            }
            Then::Ordered { peer, id } => {
                let Some(peer) = self.known_peer(peer) else { return };
                self.with_links(peer, done, |links, done| self.ordered(peer, links, id, result, done));
            }
            Then::Move { peer, id } => {
                let Some(peer) = self.known_peer(peer) else { return };
                self.with_links(peer, done, |links, done| self.ordered_receive(peer, links, id, result, done));
            }
            Then::Arrived { peer, id, bytes, source } => {
                let Some(peer) = self.known_peer(peer) else { return };
                self.with_links(peer, done, |links, done| links.copied_in(id, bytes, result, done));
                drop(source);
            }
            Then::Unpacked { peer, id, lane, bytes } => {
                let Some(peer) = self.known_peer(peer) else { return };
                self.with_links(peer, done, |links, done| {
                    self.piece_unpacked(links, (id, lane, bytes), result, done);
                });
            }
            Then::Received { mut request, status, truncated, source } => {
                drop(source);
                let address = request.inner().room.address();
                let failed = result.err().map(|error| Error::Device { address, len: status.len, source: error });
                request.complete(status, failed.or(truncated), done);
            }
        }
    }
}
