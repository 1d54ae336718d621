//! Collective operations in scopes.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_coll::ReduceOperation;

use super::Scope;
use crate::collective::{self, Exchange, Operands, Prepared, Running, region, region_mut};
use crate::elements::{RecvElements, SendElements};
use crate::{Error, RecvBuffer, SendBuffer};

/// A nonblocking collective operation under way. If the request is dropped or leaked, the end of the scope waits for the
/// operation.
///
/// It progresses in every call of the library that waits, on any thread.
#[must_use = "wait for the request to learn whether the operation succeeded"]
pub struct CollectiveRequest<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    running: Arc<Running>,
}

impl CollectiveRequest<'_, '_> {
    /// Waits until the operation completes (`MPI_Wait`).
    ///
    /// # Errors
    /// The operation failed.
    pub fn wait(self) -> Result<(), Error> {
        self.scope.collectives.wait(&self.running)
    }

    /// Returns whether the operation is complete, so that [`wait`](Self::wait) would return at once. Progresses messages
    /// if it is not.
    pub fn is_complete(&self) -> bool {
        self.running.has_ended() || {
            self.scope.communicator.engine().progress();
            self.running.has_ended()
        }
    }
}

/// Collective operations begin in the same order on all members, blocking ones included. They may complete in any order.
impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts what [`Communicator::broadcast`](crate::Communicator::broadcast) does (`MPI_Ibcast`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut settings = [0.0_f64; 3];
    /// everyone.scope(|scope| scope.broadcast(&mut settings, 0)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn broadcast(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        root: Rank,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::broadcast(self.communicator.member(), region_mut(buffer)?, root)) }
    }

    /// Starts what [`Communicator::allgather`](crate::Communicator::allgather) does (`MPI_Iallgather`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let (mine, mut all) = ([everyone.rank()], vec![0; everyone.size() as usize]);
    /// everyone.scope(|scope| scope.allgather(&mine, &mut all)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn allgather(
        &'scope self,
        send: &'scope (impl SendBuffer + ?Sized),
        receive: &'scope mut (impl RecvBuffer + ?Sized),
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let (send, receive) = (Some(region(send)?), (region_mut(receive)?, None));
        let call = Exchange { name: "allgather", send, receive };
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::allgather(self.communicator.member(), call)) }
    }

    /// Starts what [`Communicator::allgather_in_place`](crate::Communicator::allgather_in_place) does (`MPI_Iallgather`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut all = vec![everyone.rank(); everyone.size() as usize];
    /// everyone.scope(|scope| scope.allgather_in_place(&mut all)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn allgather_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let call = Exchange { name: "allgather_in_place", send: None, receive: (region_mut(buffer)?, None) };
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::allgather(self.communicator.member(), call)) }
    }

    /// Starts what [`Communicator::alltoall`](crate::Communicator::alltoall) does (`MPI_Ialltoall`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let size = everyone.size() as usize;
    /// let (mine, mut theirs) = (vec![everyone.rank(); size], vec![0; size]);
    /// everyone.scope(|scope| scope.alltoall(&mine, &mut theirs)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn alltoall(
        &'scope self,
        send: &'scope (impl SendBuffer + ?Sized),
        receive: &'scope mut (impl RecvBuffer + ?Sized),
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let (send, receive) = (Some((region(send)?, None)), (region_mut(receive)?, None));
        let call = Exchange { name: "alltoall", send, receive };
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::alltoall(self.communicator.member(), call)) }
    }

    /// Starts what [`Communicator::alltoall_in_place`](crate::Communicator::alltoall_in_place) does (`MPI_Ialltoall`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut values = vec![everyone.rank(); everyone.size() as usize];
    /// everyone.scope(|scope| scope.alltoall_in_place(&mut values)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn alltoall_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let call = Exchange { name: "alltoall_in_place", send: None, receive: (region_mut(buffer)?, None) };
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::alltoall(self.communicator.member(), call)) }
    }

    /// Starts what [`Communicator::allreduce`](crate::Communicator::allreduce) does (`MPI_Iallreduce`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// use cableway::ReduceOperation;
    /// let (mine, mut sums) = ([1.5_f32; 8], [0.0_f32; 8]);
    /// everyone.scope(|scope| {
    ///     let request = scope.allreduce(&mine, &mut sums, ReduceOperation::Sum)?;
    ///     // Compute here.
    ///     request.wait()
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn allreduce<S, R>(
        &'scope self,
        send: &'scope S,
        receive: &'scope mut R,
        operation: ReduceOperation,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error>
    where
        S: SendElements + ?Sized,
        R: RecvElements<Item = S::Item> + ?Sized,
    {
        let operands = Operands::apart(send, Some(receive), operation)?;
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::allreduce("allreduce", &operands)) }
    }

    /// Starts what [`Communicator::allreduce_in_place`](crate::Communicator::allreduce_in_place) does (`MPI_Iallreduce`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut values = [1.5_f32; 8];
    /// everyone.scope(|scope| scope.allreduce_in_place(&mut values, cableway::ReduceOperation::Max)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn allreduce_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvElements + ?Sized),
        operation: ReduceOperation,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let operands = Operands::in_place(buffer, operation)?;
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::allreduce("allreduce_in_place", &operands)) }
    }

    /// Starts what [`Communicator::reduce`](crate::Communicator::reduce) does (`MPI_Ireduce`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let (mine, mut sums) = ([1.5_f32; 8], [0.0_f32; 8]);
    /// let at_root = (everyone.rank() == 0).then_some(&mut sums);
    /// everyone.scope(|scope| scope.reduce(&mine, cableway::ReduceOperation::Sum, 0, at_root)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn reduce<S, R>(
        &'scope self,
        send: &'scope S,
        operation: ReduceOperation,
        root: Rank,
        receive: Option<&'scope mut R>,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error>
    where
        S: SendElements + ?Sized,
        R: RecvElements<Item = S::Item> + ?Sized,
    {
        let operands = Operands::apart(send, receive, operation)?;
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::reduce(self.communicator.member(), ("reduce", root), &operands)) }
    }

    /// Starts what [`Communicator::reduce_in_place`](crate::Communicator::reduce_in_place) does (`MPI_Ireduce`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut values = [1.5_f32; 8];
    /// everyone.scope(|scope| scope.reduce_in_place(&mut values, cableway::ReduceOperation::Sum, 0)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn reduce_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvElements + ?Sized),
        operation: ReduceOperation,
        root: Rank,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let operands = Operands::in_place(buffer, operation)?;
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::reduce(self.communicator.member(), ("reduce_in_place", root), &operands)) }
    }

    /// # Safety
    /// The buffers of the call are borrowed for as long as the scope.
    unsafe fn start(&'scope self, call: Result<Prepared<'_>, Error>) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let call = call?;
        // SAFETY: the caller's promise. The scope waits for all operations in its list.
        let started = unsafe { self.communicator.begin(&call) }?;
        let running = Running::start(self.communicator.engine(), call.operation, started);
        self.collectives.push(running.clone());
        Ok(CollectiveRequest { scope: self, running })
    }
}
