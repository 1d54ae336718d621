//! Operations that move data from all ranks to all.

use super::{CollectiveRequest, Scope};
use crate::collective::{self, Exchange, Neighbors, Parts, divided, divided_mut, region};
use crate::{Error, RecvBuffer, SendBuffer};

impl<'scope, 'env> Scope<'scope, 'env> {
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
        let (send, receive) = (Some(region(send)?), divided_mut(receive, None)?);
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
        let call = Exchange { name: "allgather_in_place", send: None, receive: divided_mut(buffer, None)? };
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::allgather(self.communicator.member(), call)) }
    }

    /// Starts what [`Communicator::allgatherv`](crate::Communicator::allgatherv) does (`MPI_Iallgatherv`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn allgatherv(
        &'scope self,
        send: &'scope (impl SendBuffer + ?Sized),
        receive: &'scope mut (impl RecvBuffer + ?Sized),
        parts: Parts<'_>,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let (send, receive) = (Some(region(send)?), divided_mut(receive, Some(parts))?);
        let call = Exchange { name: "allgatherv", send, receive };
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::allgather(self.communicator.member(), call)) }
    }

    /// Starts what [`Communicator::allgatherv_in_place`](crate::Communicator::allgatherv_in_place) does (`MPI_Iallgatherv`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn allgatherv_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        parts: Parts<'_>,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let call = Exchange { name: "allgatherv_in_place", send: None, receive: divided_mut(buffer, Some(parts))? };
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
        let (send, receive) = (Some(divided(send, None)?), divided_mut(receive, None)?);
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
        let call = Exchange { name: "alltoall_in_place", send: None, receive: divided_mut(buffer, None)? };
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::alltoall(self.communicator.member(), call)) }
    }

    /// Starts what [`Communicator::alltoallv`](crate::Communicator::alltoallv) does (`MPI_Ialltoallv`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn alltoallv(
        &'scope self,
        (send, send_parts): (&'scope (impl SendBuffer + ?Sized), Parts<'_>),
        (receive, receive_parts): (&'scope mut (impl RecvBuffer + ?Sized), Parts<'_>),
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let (send, receive) = (Some(divided(send, Some(send_parts))?), divided_mut(receive, Some(receive_parts))?);
        let call = Exchange { name: "alltoallv", send, receive };
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::alltoall(self.communicator.member(), call)) }
    }

    /// Starts what [`Communicator::alltoallv_in_place`](crate::Communicator::alltoallv_in_place) does (`MPI_Ialltoallv`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn alltoallv_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        parts: Parts<'_>,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let call = Exchange { name: "alltoallv_in_place", send: None, receive: divided_mut(buffer, Some(parts))? };
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::alltoall(self.communicator.member(), call)) }
    }

    /// Starts what [`Communicator::neighbor_alltoall`](crate::Communicator::neighbor_alltoall) does
    /// (`MPI_Ineighbor_alltoallw`).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let next = (everyone.rank() + 1) % everyone.size();
    /// let previous = (everyone.rank() + everyone.size() - 1) % everyone.size();
    /// let (mine, mut theirs) = ([everyone.rank()], [0]);
    /// everyone.scope(|scope| {
    ///     let mut ring = cableway::Neighbors::new();
    ///     ring.send(&mine, next, 0)?.receive(&mut theirs, previous, 0)?;
    ///     scope.neighbor_alltoall(ring)?.wait()
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn neighbor_alltoall(
        &'scope self,
        neighbors: Neighbors<'scope>,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(collective::neighbors(self.communicator.member(), neighbors)) }
    }
}
