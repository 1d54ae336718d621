//! Collective reductions.

use cableway_base::Rank;
use cableway_coll::ReduceOperation;

use super::Communicator;
use crate::Error;
use crate::collective::{self, Operands};
use crate::elements::{RecvElements, SendElements};

impl Communicator {
    /// Reduces element `i` of all members' `send` buffers to element `i` of each one's `receive` buffer (`MPI_Allreduce`).
    /// Every member gets the same bits. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mine = [f64::from(everyone.rank()); 3];
    /// let mut sums = [0.0; 3];
    /// everyone.allreduce(&mine, &mut sums, cableway::ReduceOperation::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The buffers have different numbers of elements, the operation is not defined for their type, or a member failed.
    pub fn allreduce<S, R>(&self, send: &S, receive: &mut R, operation: ReduceOperation) -> Result<(), Error>
    where
        S: SendElements + ?Sized,
        R: RecvElements<Item = S::Item> + ?Sized,
    {
        let operands = Operands::apart(send, Some(receive), operation)?;
        self.perform(collective::allreduce("allreduce", &operands))
    }

    /// Reduces as [`allreduce`](Self::allreduce) does. The result replaces `buffer`. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// use cableway::{Located, ReduceOperation};
    ///
    /// // The largest value, and the rank that has it.
    /// let mut largest = [Located { value: 1.5_f32, index: everyone.rank() as i32 }];
    /// everyone.allreduce_in_place(&mut largest, ReduceOperation::MaxLoc)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The operation is not defined for the elements' type, or a member failed.
    pub fn allreduce_in_place(
        &self,
        buffer: &mut (impl RecvElements + ?Sized),
        operation: ReduceOperation,
    ) -> Result<(), Error> {
        let operands = Operands::in_place(buffer, operation)?;
        self.perform(collective::allreduce("allreduce_in_place", &operands))
    }

    /// Reduces element `i` of all members' `send` buffers to element `i` of the root's `receive` buffer (`MPI_Reduce`). Other
    /// members pass none, or one that is not used. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut sum = [0];
    /// let at_root = (everyone.rank() == 0).then_some(&mut sum);
    /// everyone.reduce(&[everyone.rank()], cableway::ReduceOperation::Sum, 0, at_root)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The communicator has no rank `root`, the root's buffers have different numbers of elements, the operation is not
    /// defined for their type, or a member failed.
    pub fn reduce<S, R>(
        &self,
        send: &S,
        operation: ReduceOperation,
        root: Rank,
        receive: Option<&mut R>,
    ) -> Result<(), Error>
    where
        S: SendElements + ?Sized,
        R: RecvElements<Item = S::Item> + ?Sized,
    {
        let operands = Operands::apart(send, receive, operation)?;
        self.perform(collective::reduce(self.member(), ("reduce", root), &operands))
    }

    /// Reduces as [`reduce`](Self::reduce) does. At the root the result replaces `buffer`, which stays the same elsewhere.
    /// Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut product = [everyone.rank() + 1];
    /// everyone.reduce_in_place(&mut product, cableway::ReduceOperation::Product, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The communicator has no rank `root`, the operation is not defined for the elements' type, or a member failed.
    pub fn reduce_in_place(
        &self,
        buffer: &mut (impl RecvElements + ?Sized),
        operation: ReduceOperation,
        root: Rank,
    ) -> Result<(), Error> {
        let operands = Operands::in_place(buffer, operation)?;
        self.perform(collective::reduce(self.member(), ("reduce_in_place", root), &operands))
    }

    /// Reduces all members' `send` buffers, and gives each member the same number of elements of the result, in rank order
    /// (`MPI_Reduce_scatter_block`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let (mine, mut sum) = (vec![1_u64; 2 * everyone.size() as usize], [0_u64; 2]);
    /// everyone.reduce_scatter_block(&mine, &mut sum, cableway::ReduceOperation::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `send` has not exactly one part of the length of `receive` for each rank, the operation is not defined for the
    /// elements' type, or a member failed.
    pub fn reduce_scatter_block<S, R>(&self, send: &S, receive: &mut R, operation: ReduceOperation) -> Result<(), Error>
    where
        S: SendElements + ?Sized,
        R: RecvElements<Item = S::Item> + ?Sized,
    {
        let operands = Operands::apart(send, Some(receive), operation)?;
        self.perform(collective::reduce_scatter(self.member(), "reduce_scatter_block", &operands, None))
    }

    /// Reduces as [`reduce_scatter_block`](Self::reduce_scatter_block) does. The result is at the beginning of `buffer`, and
    /// the rest of `buffer` is undefined. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut values = vec![1_u64; everyone.size() as usize];
    /// everyone.reduce_scatter_block_in_place(&mut values, cableway::ReduceOperation::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `buffer` cannot be divided evenly, the operation is not defined for the elements' type, or a member failed.
    pub fn reduce_scatter_block_in_place(
        &self,
        buffer: &mut (impl RecvElements + ?Sized),
        operation: ReduceOperation,
    ) -> Result<(), Error> {
        let operands = Operands::in_place(buffer, operation)?;
        self.perform(collective::reduce_scatter(self.member(), "reduce_scatter_block_in_place", &operands, None))
    }

    /// Reduces all members' `send` buffers, and gives rank `r` the next `counts[r]` elements of the result
    /// (`MPI_Reduce_scatter`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let counts: Vec<usize> = (1..=everyone.size() as usize).collect();
    /// let mine = vec![1_u64; counts.iter().sum()];
    /// let mut sum = vec![0_u64; counts[everyone.rank() as usize]];
    /// everyone.reduce_scatter(&mine, &mut sum, &counts, cableway::ReduceOperation::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `counts` has not one entry for each rank, they do not add up to the elements of `send`, `receive` has another number
    /// of elements, the operation is not defined for their type, or a member failed.
    pub fn reduce_scatter<S, R>(
        &self,
        send: &S,
        receive: &mut R,
        counts: &[usize],
        operation: ReduceOperation,
    ) -> Result<(), Error>
    where
        S: SendElements + ?Sized,
        R: RecvElements<Item = S::Item> + ?Sized,
    {
        let operands = Operands::apart(send, Some(receive), operation)?;
        self.perform(collective::reduce_scatter(self.member(), "reduce_scatter", &operands, Some(counts)))
    }

    /// Reduces as [`reduce_scatter`](Self::reduce_scatter) does. The result is at the beginning of `buffer`, and the rest of
    /// `buffer` is undefined. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let counts = vec![2; everyone.size() as usize];
    /// let mut values = vec![1_u64; 2 * counts.len()];
    /// everyone.reduce_scatter_in_place(&mut values, &counts, cableway::ReduceOperation::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`reduce_scatter`](Self::reduce_scatter).
    pub fn reduce_scatter_in_place(
        &self,
        buffer: &mut (impl RecvElements + ?Sized),
        counts: &[usize],
        operation: ReduceOperation,
    ) -> Result<(), Error> {
        let operands = Operands::in_place(buffer, operation)?;
        self.perform(collective::reduce_scatter(self.member(), "reduce_scatter_in_place", &operands, Some(counts)))
    }
}
