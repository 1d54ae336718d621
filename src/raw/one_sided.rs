//! One-sided operations on memory that the caller keeps.

use cableway_pml::{Outcome, Place, Signal};

use super::RawRequest;
use crate::buffer::sealed::{Readable, Writable};
use crate::communicator::Communicator;
use crate::error::Operation;
use crate::{Error, RawBuffer};

impl Communicator {
    /// Starts what [`put_signal`](Self::put_signal) does, or [`put`](Self::put) without a signal.
    ///
    /// # Safety
    /// The same as that of [`isend_raw`](Self::isend_raw).
    ///
    /// # Errors
    /// Those that can be known before the owner answers. [`RawRequest::wait`] returns the others.
    pub unsafe fn put_raw(
        &self,
        data: &RawBuffer<'_>,
        to: Place<'_>,
        signal: Option<Signal<'_>>,
    ) -> Result<RawRequest, Error> {
        let from = data.readable()?;
        let operation = Operation::one_sided("put", &to, from.len());
        let request = RawRequest::in_flight(self);
        // SAFETY: the request is new and its drop waits; the caller keeps the buffer until then.
        let started = unsafe { self.world().one_sided.put(from, to, signal, &raw const *request) };
        // A request of an operation that was complete at once stays inactive, which counts as complete.
        let _: Outcome = started.map_err(|error| operation.failed(error))?;
        Ok(RawRequest::of_message(self, request, operation))
    }

    /// Starts what [`get_signal`](Self::get_signal) does, or [`get`](Self::get) without a signal.
    ///
    /// # Safety
    /// The same as that of [`isend_raw`](Self::isend_raw).
    ///
    /// # Errors
    /// The same as those of [`put_raw`](Self::put_raw).
    pub unsafe fn get_raw(
        &self,
        buffer: &mut RawBuffer<'_>,
        from: Place<'_>,
        signal: Option<Signal<'_>>,
    ) -> Result<RawRequest, Error> {
        let into = buffer.writable()?;
        let operation = Operation::one_sided("get", &from, into.len());
        let request = RawRequest::in_flight(self);
        // SAFETY: as in `put_raw`.
        let started = unsafe { self.world().one_sided.get(into, from, signal, &raw const *request) };
        let _: Outcome = started.map_err(|error| operation.failed(error))?;
        Ok(RawRequest::of_message(self, request, operation))
    }
}
