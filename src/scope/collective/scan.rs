//! Operations that reduce over the ranks up to each.

use cableway_coll::ReduceOperation;

use super::{CollectiveRequest, Scope};
use crate::Error;
use crate::collective::{self, Operands};
use crate::elements::{RecvElements, SendElements};

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts what [`Communicator::scan`](crate::Communicator::scan) does (`MPI_Iscan`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let (mine, mut sums) = ([everyone.rank()], [0]);
    /// everyone.scope(|scope| scope.scan(&mine, &mut sums, cableway::ReduceOperation::Sum)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn scan<S, R>(
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
        unsafe { self.start(collective::scan("scan", &operands, false)) }
    }

    /// Starts what [`Communicator::scan_in_place`](crate::Communicator::scan_in_place) does (`MPI_Iscan`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn scan_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvElements + ?Sized),
        operation: ReduceOperation,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let operands = Operands::in_place(buffer, operation)?;
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::scan("scan_in_place", &operands, false)) }
    }

    /// Starts what [`Communicator::exclusive_scan`](crate::Communicator::exclusive_scan) does (`MPI_Iexscan`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn exclusive_scan<S, R>(
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
        unsafe { self.start(collective::scan("exclusive_scan", &operands, true)) }
    }

    /// Starts what [`Communicator::exclusive_scan_in_place`](crate::Communicator::exclusive_scan_in_place) does (`MPI_Iexscan`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn exclusive_scan_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvElements + ?Sized),
        operation: ReduceOperation,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let operands = Operands::in_place(buffer, operation)?;
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::scan("exclusive_scan_in_place", &operands, true)) }
    }
}
