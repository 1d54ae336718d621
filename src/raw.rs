//! Nonblocking operations whose buffers no lifetime protects, for interfaces to other languages.
//!
//! Rust programs use a [`Scope`](crate::Scope), which borrows the buffers until the operations complete.

use cableway_base::Rank;
use cableway_pml::{Engine, Outcome, SendMode};

use crate::buffer::sealed::{Readable, Writable};
use crate::communicator::Communicator;
use crate::error::Operation;
use crate::in_flight::InFlight;
use crate::scope::described;
use crate::selector::{Sender, Status, Tag, raw_rank};
use crate::{Error, RawBuffer};

/// A nonblocking operation on memory that the caller keeps in place until it completes. Dropping the request waits for
/// the operation.
///
/// It keeps the communicator alive. It may move to another thread, and is used by one thread at a time.
#[must_use = "dropping it waits for the operation"]
pub struct RawRequest {
    // Dropped before the communicator, whose engine it uses.
    request: InFlight<'static>,
    operation: Operation,
    communicator: Communicator,
}

impl Communicator {
    /// Starts to send `buffer` to rank `to`. The request completes when the buffer can be reused and, if `synchronous`,
    /// a receive has matched the message.
    ///
    /// # Safety
    /// The promise given for `buffer` holds until the request has completed, not only as long as its lifetime.
    ///
    /// # Errors
    /// The communicator has no rank `to`, the tag is negative, or the peer failed. [`RawRequest::wait`] returns later
    /// failures.
    pub unsafe fn isend_raw(
        &self,
        buffer: &RawBuffer<'_>,
        to: Rank,
        tag: i32,
        synchronous: bool,
    ) -> Result<RawRequest, Error> {
        let buffer = buffer.readable()?;
        let operation = Operation::send(&buffer, to, tag);
        self.check_tag(tag).map_err(|error| operation.failed(error))?;
        let mode = if synchronous { SendMode::Synchronous } else { SendMode::Standard };
        let raw = RawRequest::new(self, operation);
        // SAFETY: the request is new and its drop waits; the caller keeps the buffer until then.
        let started =
            unsafe { self.engine().isend(self.raw(), raw_rank(to), tag, buffer, &mode, &raw const *raw.request) };
        match started {
            // A request of a send that was complete at once stays inactive, which counts as complete.
            Ok(Outcome::Complete | Outcome::Started) => Ok(raw),
            Err(error) => Err(operation.failed(error)),
        }
    }

    /// Starts to receive into `buffer`; see [`recv`](Self::recv).
    ///
    /// # Safety
    /// The same as that of [`isend_raw`](Self::isend_raw).
    ///
    /// # Errors
    /// The communicator has no such rank, the tag is negative, or the peer failed. [`RawRequest::wait`] returns later
    /// failures.
    pub unsafe fn irecv_raw(
        &self,
        buffer: &mut RawBuffer<'_>,
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
    ) -> Result<RawRequest, Error> {
        let (from, tag, buffer) = (from.into(), tag.into(), buffer.writable()?);
        let operation = Operation::receive(&buffer, from, tag);
        self.check_selector(tag).map_err(|error| operation.failed(error))?;
        let raw = RawRequest::new(self, operation);
        // SAFETY: as in `isend_raw`.
        unsafe { self.engine().irecv(self.raw(), from.raw(), tag.raw(), buffer, &raw const *raw.request) }
            .map_err(|error| operation.failed(error))?;
        Ok(raw)
    }
}

impl RawRequest {
    fn new(communicator: &Communicator, operation: Operation) -> Self {
        let communicator = communicator.clone();
        // SAFETY: the communicator keeps the engine, which is in an `Arc` and does not move, until after the request is
        // dropped.
        let engine: &'static Engine = unsafe { &*std::ptr::from_ref(communicator.engine()) };
        RawRequest { request: InFlight::new(engine), operation, communicator }
    }

    /// Returns whether the operation is complete, so that [`wait`](Self::wait) would return at once. Progresses messages
    /// if it is not.
    pub fn is_complete(&self) -> bool {
        !self.request.is_active() || {
            self.communicator.engine().progress();
            !self.request.is_active()
        }
    }

    /// Cancels a receive that no message has matched. Has no effect on other operations.
    pub fn cancel(&self) {
        self.request.cancel();
    }

    /// Waits until the operation completes. Returns the status as [`Request::wait`](crate::Request::wait) does, or `None`
    /// if the receive was cancelled.
    ///
    /// # Errors
    /// The operation failed.
    pub fn wait(self) -> Result<Option<Status>, Error> {
        self.request.wait();
        match self.request.result() {
            Ok(status) if status.cancelled => Ok(None),
            Ok(status) => Ok(Some(described(&self.operation, status))),
            Err(error) => Err(self.operation.failed(error)),
        }
    }

    /// Waits until one of the requests is complete and returns its index (`MPI_Waitany`). Returns `None` if there are
    /// none.
    pub fn wait_any(requests: &[&RawRequest]) -> Option<usize> {
        let engine = requests.first()?.communicator.engine();
        let mut found = None;
        engine.wait_until(|| {
            // The others progress here if they are of another world: a process without a launcher may have several.
            for other in requests.iter().map(|request| request.communicator.engine()) {
                if !std::ptr::eq(other, engine) {
                    other.progress();
                }
            }
            found = requests.iter().position(|request| !request.request.is_active());
            found.is_some()
        });
        // In a forked child no request completes. Waiting for the first one returns the error.
        found.or(Some(0))
    }
}
