//! One-sided operations on memory that the caller keeps.

use cableway_pml::{Outcome, Signal, Target};

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
    pub unsafe fn put_raw<'k>(
        &self,
        data: &RawBuffer<'_>,
        to: impl Into<Target<'k>>,
        signal: Option<Signal<'_>>,
    ) -> Result<RawRequest, Error> {
        let (from, to) = (data.readable()?, to.into());
        let operation = Operation::one_sided("put", &to.place(), from.len());
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
    pub unsafe fn get_raw<'k>(
        &self,
        buffer: &mut RawBuffer<'_>,
        from: impl Into<Target<'k>>,
        signal: Option<Signal<'_>>,
    ) -> Result<RawRequest, Error> {
        let (into, from) = (buffer.writable()?, from.into());
        let operation = Operation::one_sided("get", &from.place(), into.len());
        let request = RawRequest::in_flight(self);
        // SAFETY: as in `put_raw`.
        let started = unsafe { self.world().one_sided.get(into, from, signal, &raw const *request) };
        let _: Outcome = started.map_err(|error| operation.failed(error))?;
        Ok(RawRequest::of_message(self, request, operation))
    }
}
