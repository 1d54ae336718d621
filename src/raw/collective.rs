//! Collective operations on memory that the caller keeps.

use cableway_base::Rank;
use cableway_coll::ReduceOperation;

use super::RawRequest;
use crate::collective::{self, Exchange, Operands, Parts, Prepared, divided, divided_mut, region, region_mut};
use crate::communicator::Communicator;
use crate::elements::Reducible;
use crate::{Elements, ElementsMut, Error, RawBuffer};

/// A collective operation that was not begun yet. Its arguments are right, as far as one process can see.
#[must_use = "perform or start it"]
pub struct RawCollective<'a> {
    on: &'a Communicator,
    call: Prepared<'a>,
}

impl RawCollective<'_> {
    /// Performs the operation.
    ///
    /// # Errors
    /// A member failed, or passed other arguments.
    pub fn perform(self) -> Result<(), Error> {
        self.on.perform(Ok(self.call))
    }

    /// Starts the operation.
    ///
    /// # Errors
    /// A member failed. [`RawRequest::wait`] returns failures that are found later.
    pub fn start(self) -> Result<RawRequest, Error> {
        // SAFETY: whoever made the call promised to keep the buffers until the operation has ended.
        let running = unsafe { self.on.start(&self.call) }?;
        Ok(RawRequest::of_collective(self.on, running))
    }
}

impl std::fmt::Debug for RawCollective<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawCollective({} on {:?})", self.call.operation, self.on)
    }
}

/// A buffer to send with a part for each rank: those that are named, or parts of one length.
pub type RawParts<'a, 'b, 'p> = (&'a RawBuffer<'b>, Option<Parts<'p>>);

/// A buffer to receive into with a part for each rank.
pub type RawPartsMut<'a, 'b, 'p> = (&'a mut RawBuffer<'b>, Option<Parts<'p>>);

/// Each prepares what the method with its name does, blocking or in a [`Scope`](crate::Scope). Without a buffer to send it
/// is the form in place.
///
/// The caller keeps the buffers of a call as those of [`isend_raw`](Self::isend_raw), until the operation that the call
/// performs or starts has ended.
impl Communicator {
    /// Starts a barrier: the request completes when all members have started or called it.
    ///
    /// # Errors
    /// A member failed.
    pub fn barrier_raw(&self) -> Result<RawRequest, Error> {
        Ok(RawRequest::of_collective(self, self.start_barrier()?))
    }

    /// Prepares to send the root's buffer to all.
    ///
    /// # Safety
    /// The caller keeps the buffer.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn broadcast_raw<'a>(
        &'a self,
        buffer: &'a mut RawBuffer<'_>,
        root: Rank,
    ) -> Result<RawCollective<'a>, Error> {
        self.raw_call(collective::broadcast(self.member(), region_mut(buffer)?, root))
    }

    /// Prepares to gather the buffers of all at the root, which alone needs a buffer to receive into.
    ///
    /// # Safety
    /// The caller keeps the buffers.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn gather_raw<'a>(
        &'a self,
        send: Option<&'a RawBuffer<'_>>,
        root: Rank,
        receive: Option<RawPartsMut<'a, '_, '_>>,
    ) -> Result<RawCollective<'a>, Error> {
        let receive = receive.map(|(receive, parts)| divided_mut(receive, parts)).transpose()?;
        self.raw_call(collective::gather(self.member(), ("gather", root), send.map(region).transpose()?, receive))
    }

    /// Prepares to send each member its part of the root's buffer. Only the root needs a buffer to send, and only the root
    /// may pass none to receive into: then it is in place.
    ///
    /// # Safety
    /// The caller keeps the buffers.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn scatter_raw<'a>(
        &'a self,
        send: Option<RawParts<'a, '_, '_>>,
        root: Rank,
        receive: Option<&'a mut RawBuffer<'_>>,
    ) -> Result<RawCollective<'a>, Error> {
        let send = send.map(|(send, parts)| divided(send, parts)).transpose()?;
        let receive = receive.map(region_mut).transpose()?;
        self.raw_call(collective::scatter(self.member(), ("scatter", root), send, receive))
    }

    /// Prepares to gather the buffers of all at all.
    ///
    /// # Safety
    /// The caller keeps the buffers.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn allgather_raw<'a>(
        &'a self,
        send: Option<&'a RawBuffer<'_>>,
        (receive, parts): RawPartsMut<'a, '_, '_>,
    ) -> Result<RawCollective<'a>, Error> {
        let (send, receive) = (send.map(region).transpose()?, divided_mut(receive, parts)?);
        self.raw_call(collective::allgather(self.member(), Exchange { name: "allgather", send, receive }))
    }

    /// Prepares to exchange parts.
    ///
    /// # Safety
    /// The caller keeps the buffers.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn alltoall_raw<'a>(
        &'a self,
        send: Option<RawParts<'a, '_, '_>>,
        (receive, parts): RawPartsMut<'a, '_, '_>,
    ) -> Result<RawCollective<'a>, Error> {
        let send = send.map(|(send, parts)| divided(send, parts)).transpose()?;
        let call = Exchange { name: "alltoall", send, receive: divided_mut(receive, parts)? };
        self.raw_call(collective::alltoall(self.member(), call))
    }

    /// Prepares to reduce, with the result at all.
    ///
    /// # Safety
    /// The caller keeps the buffers.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn allreduce_raw<T: Reducible>(
        &self,
        send: Option<&Elements<'_, T>>,
        receive: &mut ElementsMut<'_, T>,
        operation: ReduceOperation,
    ) -> Result<RawCollective<'_>, Error> {
        self.raw_call(collective::allreduce("allreduce", &operands(send, Some(receive), operation)?))
    }

    /// Prepares to reduce, with the result at the root, which alone passes a buffer to receive into.
    ///
    /// # Safety
    /// The caller keeps the buffers.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn reduce_raw<T: Reducible>(
        &self,
        send: Option<&Elements<'_, T>>,
        receive: Option<&mut ElementsMut<'_, T>>,
        operation: ReduceOperation,
        root: Rank,
    ) -> Result<RawCollective<'_>, Error> {
        let operands = operands(send, receive, operation)?;
        self.raw_call(collective::reduce(self.member(), ("reduce", root), &operands))
    }

    /// Prepares to reduce, with a part of the result at each: so many elements as `counts` says, or parts of one length.
    ///
    /// # Safety
    /// The caller keeps the buffers.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn reduce_scatter_raw<T: Reducible>(
        &self,
        send: Option<&Elements<'_, T>>,
        receive: &mut ElementsMut<'_, T>,
        counts: Option<&[usize]>,
        operation: ReduceOperation,
    ) -> Result<RawCollective<'_>, Error> {
        let operands = operands(send, Some(receive), operation)?;
        self.raw_call(collective::reduce_scatter(self.member(), "reduce_scatter", &operands, counts))
    }

    /// Prepares to reduce what the ranks up to this one contribute, or if it is exclusive, those before this one.
    ///
    /// # Safety
    /// The caller keeps the buffers.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn scan_raw<T: Reducible>(
        &self,
        send: Option<&Elements<'_, T>>,
        receive: &mut ElementsMut<'_, T>,
        operation: ReduceOperation,
        exclusive: bool,
    ) -> Result<RawCollective<'_>, Error> {
        let name = if exclusive { "exclusive_scan" } else { "scan" };
        self.raw_call(collective::scan(name, &operands(send, Some(receive), operation)?, exclusive))
    }

    fn raw_call<'a>(&'a self, call: Result<Prepared<'a>, Error>) -> Result<RawCollective<'a>, Error> {
        Ok(RawCollective { on: self, call: call? })
    }
}

/// Describes the operands of a reduction. Without one to send it is in place.
fn operands<T: Reducible>(
    send: Option<&Elements<'_, T>>,
    receive: Option<&mut ElementsMut<'_, T>>,
    operation: ReduceOperation,
) -> Result<Operands, Error> {
    match (send, receive) {
        (Some(send), receive) => Operands::apart(send, receive, operation),
        (None, Some(receive)) => Operands::in_place(receive, operation),
        (None, None) => {
            let text = "only the root of a reduction may be in place: pass what this process contributes";
            Err(crate::ErrorKind::BadBuffer(text.to_owned()).into())
        }
    }
}
