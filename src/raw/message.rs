//! Messages on memory that the caller keeps.

use cableway_base::Rank;
use cableway_pml::{Outcome, SendMode};

use super::RawRequest;
use crate::buffer::sealed::{Readable, Writable};
use crate::communicator::Communicator;
use crate::error::Operation;
use crate::selector::{Sender, Tag, raw_rank};
use crate::{Error, RawBuffer};

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
        let request = RawRequest::in_flight(self);
        // SAFETY: the request is new and its drop waits; the caller keeps the buffer until then.
        let started = unsafe { self.engine().isend(self.raw(), raw_rank(to), tag, buffer, &mode, &raw const *request) };
        match started {
            // A request of a send that was complete at once stays inactive, which counts as complete.
            Ok(Outcome::Complete | Outcome::Started) => Ok(RawRequest::of_message(self, request, operation)),
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
        let request = RawRequest::in_flight(self);
        // SAFETY: as in `isend_raw`.
        unsafe { self.engine().irecv(self.raw(), from.raw(), tag.raw(), buffer, &raw const *request) }
            .map_err(|error| operation.failed(error))?;
        Ok(RawRequest::of_message(self, request, operation))
    }
}
