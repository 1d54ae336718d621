//! Collective operations that move data from all ranks to all ranks.

use super::Communicator;
use crate::collective::{self, Exchange, Neighbors, Parts, divided, divided_mut, region};
use crate::{Error, RecvBuffer, SendBuffer};

impl Communicator {
    /// Gathers the `send` buffers of all members, which have the same length, in rank order in each one's `receive` buffer
    /// (`MPI_Allgather`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut all = vec![0; everyone.size() as usize];
    /// everyone.allgather(&[everyone.rank()], &mut all)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `receive` has not room for exactly one part for each rank, or a member failed.
    pub fn allgather(
        &self,
        send: &(impl SendBuffer + ?Sized),
        receive: &mut (impl RecvBuffer + ?Sized),
    ) -> Result<(), Error> {
        let (send, receive) = (Some(region(send)?), divided_mut(receive, None)?);
        self.perform(collective::allgather(self.member(), Exchange { name: "allgather", send, receive }))
    }

    /// Gathers as [`allgather`](Self::allgather) does. Each member's own part is in `buffer` already. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut all = vec![0; everyone.size() as usize];
    /// all[everyone.rank() as usize] = everyone.rank();
    /// everyone.allgather_in_place(&mut all)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`allgather`](Self::allgather).
    pub fn allgather_in_place(&self, buffer: &mut (impl RecvBuffer + ?Sized)) -> Result<(), Error> {
        let call = Exchange { name: "allgather_in_place", send: None, receive: divided_mut(buffer, None)? };
        self.perform(collective::allgather(self.member(), call))
    }

    /// Gathers buffers of different lengths at the places that `parts` names, which are parts of the same lengths in all
    /// members (`MPI_Allgatherv`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// // Rank r sends r + 1 values.
    /// let counts: Vec<usize> = (1..=everyone.size() as usize).collect();
    /// let mine = vec![everyone.rank(); counts[everyone.rank() as usize]];
    /// let mut all = vec![0; counts.iter().sum()];
    /// everyone.allgatherv(&mine, &mut all, cableway::Parts::new(&counts))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A part lies outside `receive` or overlaps another one, this rank's part has another length than `send`, or a member
    /// failed.
    pub fn allgatherv(
        &self,
        send: &(impl SendBuffer + ?Sized),
        receive: &mut (impl RecvBuffer + ?Sized),
        parts: Parts<'_>,
    ) -> Result<(), Error> {
        let (send, receive) = (Some(region(send)?), divided_mut(receive, Some(parts))?);
        self.perform(collective::allgather(self.member(), Exchange { name: "allgatherv", send, receive }))
    }

    /// Gathers as [`allgatherv`](Self::allgatherv) does. Each member's own part is in `buffer` already. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let counts = vec![3; everyone.size() as usize];
    /// let mut all = vec![everyone.rank(); 3 * counts.len()];
    /// everyone.allgatherv_in_place(&mut all, cableway::Parts::new(&counts))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`allgatherv`](Self::allgatherv).
    pub fn allgatherv_in_place(&self, buffer: &mut (impl RecvBuffer + ?Sized), parts: Parts<'_>) -> Result<(), Error> {
        let call = Exchange { name: "allgatherv_in_place", send: None, receive: divided_mut(buffer, Some(parts))? };
        self.perform(collective::allgather(self.member(), call))
    }

    /// Sends part `r` of `send` to rank `r`, and receives rank `r`'s part for this one as part `r` of `receive`
    /// (`MPI_Alltoall`). All parts have the same length. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let size = everyone.size() as usize;
    /// let (mine, mut theirs) = (vec![everyone.rank(); size], vec![0; size]);
    /// everyone.alltoall(&mine, &mut theirs)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A buffer is not exactly one part for each rank, their lengths differ, or a member failed.
    pub fn alltoall(
        &self,
        send: &(impl SendBuffer + ?Sized),
        receive: &mut (impl RecvBuffer + ?Sized),
    ) -> Result<(), Error> {
        let (send, receive) = (Some(divided(send, None)?), divided_mut(receive, None)?);
        self.perform(collective::alltoall(self.member(), Exchange { name: "alltoall", send, receive }))
    }

    /// Exchanges as [`alltoall`](Self::alltoall) does. What is received replaces what was sent. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut values = vec![everyone.rank(); everyone.size() as usize];
    /// everyone.alltoall_in_place(&mut values)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`alltoall`](Self::alltoall).
    pub fn alltoall_in_place(&self, buffer: &mut (impl RecvBuffer + ?Sized)) -> Result<(), Error> {
        let call = Exchange { name: "alltoall_in_place", send: None, receive: divided_mut(buffer, None)? };
        self.perform(collective::alltoall(self.member(), call))
    }

    /// Exchanges parts of different lengths (`MPI_Alltoallv`). The part that rank `a` sends to rank `b` has the length of
    /// the one that `b` receives from `a`. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// use cableway::Parts;
    /// // Each rank sends r + 1 values to rank r.
    /// let (rank, size) = (everyone.rank() as usize, everyone.size() as usize);
    /// let sent: Vec<usize> = (1..=size).collect();
    /// let received = vec![rank + 1; size];
    /// let (mine, mut theirs) = (vec![1.5; sent.iter().sum()], vec![0.0; size * (rank + 1)]);
    /// everyone.alltoallv((&mine, Parts::new(&sent)), (&mut theirs, Parts::new(&received)))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A part lies outside its buffer, parts of `receive` overlap, this rank's part for itself has two lengths, or a member
    /// failed.
    pub fn alltoallv(
        &self,
        (send, send_parts): (&(impl SendBuffer + ?Sized), Parts<'_>),
        (receive, receive_parts): (&mut (impl RecvBuffer + ?Sized), Parts<'_>),
    ) -> Result<(), Error> {
        let (send, receive) = (Some(divided(send, Some(send_parts))?), divided_mut(receive, Some(receive_parts))?);
        self.perform(collective::alltoall(self.member(), Exchange { name: "alltoallv", send, receive }))
    }

    /// Exchanges as [`alltoallv`](Self::alltoallv) does. What is received replaces what was sent, so the parts that two ranks
    /// exchange have the same length. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let counts = vec![3; everyone.size() as usize];
    /// let mut values = vec![everyone.rank(); 3 * counts.len()];
    /// everyone.alltoallv_in_place(&mut values, cableway::Parts::new(&counts))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`alltoallv`](Self::alltoallv).
    pub fn alltoallv_in_place(&self, buffer: &mut (impl RecvBuffer + ?Sized), parts: Parts<'_>) -> Result<(), Error> {
        let call = Exchange { name: "alltoallv_in_place", send: None, receive: divided_mut(buffer, Some(parts))? };
        self.perform(collective::alltoall(self.member(), call))
    }

    /// Sends and receives the messages of `neighbors` at the same time (`MPI_Neighbor_alltoallw`). It serves for the other
    /// collectives of a neighbourhood, too. Only ranks with messages for each other call it. The messages of several calls
    /// between two ranks match in the order of the calls.
    ///
    /// ```no_run
    /// use cableway::Neighbors;
    ///
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let (rank, size) = (everyone.rank(), everyone.size());
    /// let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    /// // A ring. The first and the last row of `field` are copies of the neighbours' rows. Data goes left as message 0, and
    /// // right as message 1.
    /// let mut field = vec![[0.0_f64; 100]; 10];
    /// if let [from_left, first, .., last, from_right] = &mut field[..] {
    ///     let mut rows = Neighbors::new();
    ///     rows.send(&*first, left, 0)?.send(&*last, right, 1)?;
    ///     rows.receive(from_left, left, 1)?.receive(from_right, right, 0)?;
    ///     everyone.neighbor_alltoall(rows)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is no such rank, two messages to or from a rank have one number, this rank sends itself what it does not receive
    /// or expects from itself what it does not send, a message has another length than its buffer, or a member failed, which
    /// may be one that is no neighbour. After a failed member or a panic during an exchange, later exchanges fail, too: a
    /// message of the earlier one may still come.
    pub fn neighbor_alltoall(&self, neighbors: Neighbors<'_>) -> Result<(), Error> {
        self.perform(collective::neighbors(self.member(), neighbors))
    }
}
