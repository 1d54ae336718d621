//! Collective operations on memory that the caller keeps.

use cableway_base::Rank;
use cableway_coll::ReduceOperation;

use super::RawRequest;
use crate::collective::{self, Exchange, Operands, Prepared, Running, region, region_mut};
use crate::communicator::Communicator;
use crate::elements::Reducible;
use crate::{Elements, ElementsMut, Error, RawBuffer};

/// Each starts what the method of [`Scope`](crate::Scope) with its name does. Without a buffer to send it is the form in
/// place. [`RawRequest::wait`] returns failures that are found later.
impl Communicator {
    /// Starts to send the root's buffer to all.
    ///
    /// # Safety
    /// The caller keeps the buffer, as that of [`isend_raw`](Self::isend_raw).
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn broadcast_raw(&self, buffer: &mut RawBuffer<'_>, root: Rank) -> Result<RawRequest, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start_raw(collective::broadcast(self.member(), region_mut(buffer)?, root)) }
    }

    /// Starts to gather the buffers of all at all.
    ///
    /// # Safety
    /// The caller keeps the buffers, as that of [`isend_raw`](Self::isend_raw).
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn allgather_raw(
        &self,
        send: Option<&RawBuffer<'_>>,
        receive: &mut RawBuffer<'_>,
    ) -> Result<RawRequest, Error> {
        let (send, receive) = (send.map(region).transpose()?, (region_mut(receive)?, None));
        let call = Exchange { name: "allgather", send, receive };
        // SAFETY: the caller's promise.
        unsafe { self.start_raw(collective::allgather(self.member(), call)) }
    }

    /// Starts to exchange parts of one length.
    ///
    /// # Safety
    /// The caller keeps the buffers, as that of [`isend_raw`](Self::isend_raw).
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn alltoall_raw(
        &self,
        send: Option<&RawBuffer<'_>>,
        receive: &mut RawBuffer<'_>,
    ) -> Result<RawRequest, Error> {
        let send = send.map(region).transpose()?.map(|send| (send, None));
        let call = Exchange { name: "alltoall", send, receive: (region_mut(receive)?, None) };
        // SAFETY: the caller's promise.
        unsafe { self.start_raw(collective::alltoall(self.member(), call)) }
    }

    /// Starts to reduce, with the result at all.
    ///
    /// # Safety
    /// The caller keeps the buffers, as that of [`isend_raw`](Self::isend_raw).
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn allreduce_raw<T: Reducible>(
        &self,
        send: Option<&Elements<'_, T>>,
        receive: &mut ElementsMut<'_, T>,
        operation: ReduceOperation,
    ) -> Result<RawRequest, Error> {
        let operands = match send {
            Some(send) => Operands::apart(send, Some(receive), operation)?,
            None => Operands::in_place(receive, operation)?,
        };
        // SAFETY: the caller's promise.
        unsafe { self.start_raw(collective::allreduce("allreduce", &operands)) }
    }

    /// Starts to reduce, with the result at the root, which alone passes a buffer to receive into.
    ///
    /// # Safety
    /// The caller keeps the buffers, as that of [`isend_raw`](Self::isend_raw).
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn reduce_raw<T: Reducible>(
        &self,
        send: Option<&Elements<'_, T>>,
        receive: Option<&mut ElementsMut<'_, T>>,
        operation: ReduceOperation,
        root: Rank,
    ) -> Result<RawRequest, Error> {
        let operands = match (send, receive) {
            (Some(send), receive) => Operands::apart(send, receive, operation)?,
            (None, Some(receive)) => Operands::in_place(receive, operation)?,
            (None, None) => {
                return Err(crate::ErrorKind::BadBuffer("a reduction needs a contribution".to_owned()).into());
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.start_raw(collective::reduce(self.member(), ("reduce", root), &operands)) }
    }

    /// # Safety
    /// The buffers of the call are kept until the request has completed.
    unsafe fn start_raw(&self, call: Result<Prepared<'_>, Error>) -> Result<RawRequest, Error> {
        let call = call?;
        // SAFETY: the caller's promise. The request waits for the operation.
        let started = unsafe { self.begin(&call) }?;
        let running = Running::start(self.engine(), call.operation, started);
        Ok(RawRequest::of_collective(self, running))
    }
}
