//! Collective prefix reductions.

use cableway_coll::ReduceOperation;

use super::Communicator;
use crate::Error;
use crate::collective::{self, Operands};
use crate::elements::{RecvElements, SendElements};

impl Communicator {
    /// Reduces the `send` buffers of ranks 0 to `r` to the `receive` buffer of rank `r` (`MPI_Scan`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut sum = [0];
    /// everyone.scan(&[10 * everyone.rank()], &mut sum, cableway::ReduceOperation::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The buffers have different numbers of elements, the operation is not defined for their type, or a member failed.
    pub fn scan<S, R>(&self, send: &S, receive: &mut R, operation: ReduceOperation) -> Result<(), Error>
    where
        S: SendElements + ?Sized,
        R: RecvElements<Item = S::Item> + ?Sized,
    {
        let operands = Operands::apart(send, Some(receive), operation)?;
        self.perform(collective::scan("scan", &operands, false))
    }

    /// Reduces as [`scan`](Self::scan) does. The result replaces `buffer`. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut sum = [everyone.rank()];
    /// everyone.scan_in_place(&mut sum, cableway::ReduceOperation::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The operation is not defined for the elements' type, or a member failed.
    pub fn scan_in_place(
        &self,
        buffer: &mut (impl RecvElements + ?Sized),
        operation: ReduceOperation,
    ) -> Result<(), Error> {
        let operands = Operands::in_place(buffer, operation)?;
        self.perform(collective::scan("scan_in_place", &operands, false))
    }

    /// Reduces the `send` buffers of ranks 0 to `r - 1` to the `receive` buffer of rank `r` (`MPI_Exscan`). Rank 0 gets no result, and its `receive` buffer
    /// stays the same. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut sum = [0];
    /// everyone.exclusive_scan(&[10 * everyone.rank()], &mut sum, cableway::ReduceOperation::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The buffers have different numbers of elements, the operation is not defined for their type, or a member failed.
    pub fn exclusive_scan<S, R>(&self, send: &S, receive: &mut R, operation: ReduceOperation) -> Result<(), Error>
    where
        S: SendElements + ?Sized,
        R: RecvElements<Item = S::Item> + ?Sized,
    {
        let operands = Operands::apart(send, Some(receive), operation)?;
        self.perform(collective::scan("exclusive_scan", &operands, true))
    }

    /// Reduces as [`exclusive_scan`](Self::exclusive_scan) does. The result replaces `buffer`. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut sum = [everyone.rank()];
    /// everyone.exclusive_scan_in_place(&mut sum, cableway::ReduceOperation::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The operation is not defined for the elements' type, or a member failed.
    pub fn exclusive_scan_in_place(
        &self,
        buffer: &mut (impl RecvElements + ?Sized),
        operation: ReduceOperation,
    ) -> Result<(), Error> {
        let operands = Operands::in_place(buffer, operation)?;
        self.perform(collective::scan("exclusive_scan_in_place", &operands, true))
    }
}
