//! Collective operations on memory that the caller keeps.

use cableway_base::Rank;
use cableway_coll::ReduceOperation;

use super::RawRequest;
use crate::collective::{
    self, Exchange, Neighbors, Operands, Parts, Prepared, divided, divided_mut, region, region_mut,
};
use crate::communicator::Communicator;
use crate::elements::Reducible;
use crate::{Elements, ElementsMut, Error, RawBuffer};

/// A collective operation that was not begun yet. Its arguments are right, as far as one process can see. If it is dropped,
/// nothing has happened.
#[must_use = "perform or start it"]
pub struct RawCollective<'a> {
    on: &'a Communicator,
    call: Prepared<'a>,
}

/// Collective operations begin in the same order on all members, except exchanges with neighbours.
impl RawCollective<'_> {
    /// Performs the operation, and waits for its end. Collective.
    ///
    /// # Errors
    /// A member failed, or passed other arguments.
    pub fn perform(self) -> Result<(), Error> {
        // SAFETY: whoever made the call promised to keep the buffers until the operation has ended.
        unsafe { self.on.complete(&self.call) }
    }

    /// Starts the operation. Collective.
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

/// A buffer to send with a part for each rank.
#[derive(Clone, Copy)]
pub struct RawParts<'a, 'b, 'p> {
    /// The buffer.
    pub buffer: &'a RawBuffer<'b>,
    /// The parts, or `None` if they have one length.
    pub parts: Option<Parts<'p>>,
}

/// A buffer to receive into with a part for each rank.
pub struct RawPartsMut<'a, 'b, 'p> {
    /// The buffer.
    pub buffer: &'a mut RawBuffer<'b>,
    /// The parts, or `None` if they have one length.
    pub parts: Option<Parts<'p>>,
}

/// The names of an operation's forms: apart and in place, and of each with parts of one length and of any lengths.
type Names = [[&'static str; 2]; 2];

fn name(names: Names, in_place: bool, of_any_lengths: bool) -> &'static str {
    names[usize::from(in_place)][usize::from(of_any_lengths)]
}

const GATHER: Names = [["gather", "gatherv"], ["gather_in_place", "gatherv_in_place"]];
const SCATTER: Names = [["scatter", "scatterv"], ["scatter_in_place", "scatterv_in_place"]];
const ALLGATHER: Names = [["allgather", "allgatherv"], ["allgather_in_place", "allgatherv_in_place"]];
const ALLTOALL: Names = [["alltoall", "alltoallv"], ["alltoall_in_place", "alltoallv_in_place"]];
const REDUCE_SCATTER: Names =
    [["reduce_scatter_block", "reduce_scatter"], ["reduce_scatter_block_in_place", "reduce_scatter_in_place"]];

/// Each prepares an operation, to be performed or started. Without a buffer to send it is in place.
///
/// The caller keeps the buffers of a call as those of [`isend_raw`](Self::isend_raw), until the operation that the call
/// performs or starts has ended. Counts and parts are used by the call only.
impl Communicator {
    /// Starts a barrier: the request completes when all members have started it. It does not match a blocking
    /// [`barrier`](Self::barrier). Collective.
    ///
    /// # Errors
    /// A member failed. [`RawRequest::wait`] returns later failures.
    pub fn start_barrier_raw(&self) -> Result<RawRequest, Error> {
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

    /// Prepares to gather the buffers of all at the root, which alone needs a buffer to receive into, and alone may be in
    /// place.
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
        let name = name(GATHER, send.is_none(), receive.as_ref().is_some_and(|receive| receive.parts.is_some()));
        let receive = receive.map(|receive| divided_mut(receive.buffer, receive.parts)).transpose()?;
        self.raw_call(collective::gather(self.member(), (name, root), send.map(region).transpose()?, receive))
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
        let name = name(SCATTER, receive.is_none(), send.is_some_and(|send| send.parts.is_some()));
        let send = send.map(|send| divided(send.buffer, send.parts)).transpose()?;
        let receive = receive.map(region_mut).transpose()?;
        self.raw_call(collective::scatter(self.member(), (name, root), send, receive))
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
        receive: RawPartsMut<'a, '_, '_>,
    ) -> Result<RawCollective<'a>, Error> {
        let name = name(ALLGATHER, send.is_none(), receive.parts.is_some());
        let (send, receive) = (send.map(region).transpose()?, divided_mut(receive.buffer, receive.parts)?);
        self.raw_call(collective::allgather(self.member(), Exchange { name, send, receive }))
    }

    /// Prepares to exchange data with neighbours.
    ///
    /// # Safety
    /// The caller keeps the buffers.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn neighbor_alltoall_raw<'a>(&'a self, neighbors: Neighbors<'a>) -> Result<RawCollective<'a>, Error> {
        self.raw_call(collective::neighbors(self.member(), neighbors))
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
        receive: RawPartsMut<'a, '_, '_>,
    ) -> Result<RawCollective<'a>, Error> {
        let name = name(ALLTOALL, send.is_none(), receive.parts.is_some());
        let send = send.map(|send| divided(send.buffer, send.parts)).transpose()?;
        let call = Exchange { name, send, receive: divided_mut(receive.buffer, receive.parts)? };
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
        let name = if send.is_some() { "allreduce" } else { "allreduce_in_place" };
        self.raw_call(collective::allreduce(name, &operands(send, Some(receive), operation)?))
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
        let name = if send.is_some() { "reduce" } else { "reduce_in_place" };
        let operands = operands(send, receive, operation)?;
        self.raw_call(collective::reduce(self.member(), (name, root), &operands))
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
        let name = name(REDUCE_SCATTER, send.is_none(), counts.is_some());
        let operands = operands(send, Some(receive), operation)?;
        self.raw_call(collective::reduce_scatter(self.member(), name, &operands, counts))
    }

    /// Prepares to reduce what the ranks up to this one contribute.
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
    ) -> Result<RawCollective<'_>, Error> {
        let name = if send.is_some() { "scan" } else { "scan_in_place" };
        self.raw_call(collective::scan(name, &operands(send, Some(receive), operation)?, false))
    }

    /// Prepares to reduce what the ranks before this one contribute. The buffer of rank 0 stays as it is.
    ///
    /// # Safety
    /// The caller keeps the buffers.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub unsafe fn exclusive_scan_raw<T: Reducible>(
        &self,
        send: Option<&Elements<'_, T>>,
        receive: &mut ElementsMut<'_, T>,
        operation: ReduceOperation,
    ) -> Result<RawCollective<'_>, Error> {
        let name = if send.is_some() { "exclusive_scan" } else { "exclusive_scan_in_place" };
        self.raw_call(collective::scan(name, &operands(send, Some(receive), operation)?, true))
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
