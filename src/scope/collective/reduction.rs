//! Operations that reduce.

use cableway_base::Rank;
use cableway_coll::ReduceOperation;

use super::{CollectiveRequest, Scope};
use crate::Error;
use crate::collective::{self, Operands};
use crate::elements::{RecvElements, SendElements};

impl<'scope, 'env> Scope<'scope, 'env> {
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

    /// Starts what [`Communicator::reduce_scatter_block`](crate::Communicator::reduce_scatter_block) does (`MPI_Ireduce_scatter_block`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn reduce_scatter_block<S, R>(
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
        unsafe {
            self.start(collective::reduce_scatter(self.communicator.member(), "reduce_scatter_block", &operands, None))
        }
    }

    /// Starts what [`Communicator::reduce_scatter_block_in_place`](crate::Communicator::reduce_scatter_block_in_place) does (`MPI_Ireduce_scatter_block`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn reduce_scatter_block_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvElements + ?Sized),
        operation: ReduceOperation,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let operands = Operands::in_place(buffer, operation)?;
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe {
            self.start(collective::reduce_scatter(
                self.communicator.member(),
                "reduce_scatter_block_in_place",
                &operands,
                None,
            ))
        }
    }

    /// Starts what [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter) does (`MPI_Ireduce_scatter`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn reduce_scatter<S, R>(
        &'scope self,
        send: &'scope S,
        receive: &'scope mut R,
        counts: &[usize],
        operation: ReduceOperation,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error>
    where
        S: SendElements + ?Sized,
        R: RecvElements<Item = S::Item> + ?Sized,
    {
        let operands = Operands::apart(send, Some(receive), operation)?;
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe {
            self.start(collective::reduce_scatter(
                self.communicator.member(),
                "reduce_scatter",
                &operands,
                Some(counts),
            ))
        }
    }

    /// Starts what [`Communicator::reduce_scatter_in_place`](crate::Communicator::reduce_scatter_in_place) does (`MPI_Ireduce_scatter`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn reduce_scatter_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvElements + ?Sized),
        counts: &[usize],
        operation: ReduceOperation,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let operands = Operands::in_place(buffer, operation)?;
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe {
            self.start(collective::reduce_scatter(
                self.communicator.member(),
                "reduce_scatter_in_place",
                &operands,
                Some(counts),
            ))
        }
    }
}
