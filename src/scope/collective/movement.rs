//! Operations that move data from or to one rank.

use cableway_base::Rank;

use super::{CollectiveRequest, Scope};
use crate::collective::{self, Parts, divided, divided_mut, region, region_mut};
use crate::{Error, RecvBuffer, SendBuffer};

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

    /// Starts what [`Communicator::gather`](crate::Communicator::gather) does (`MPI_Igather`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let (mine, mut all) = ([everyone.rank()], vec![0; everyone.size() as usize]);
    /// let at_root = (everyone.rank() == 0).then_some(&mut all);
    /// everyone.scope(|scope| scope.gather(&mine, 0, at_root)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn gather<R: RecvBuffer + ?Sized>(
        &'scope self,
        send: &'scope (impl SendBuffer + ?Sized),
        root: Rank,
        receive: Option<&'scope mut R>,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let receive = receive.map(|receive| divided_mut(receive, None)).transpose()?;
        let call = collective::gather(self.communicator.member(), ("gather", root), Some(region(send)?), receive);
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(call) }
    }

    /// Starts what [`Communicator::gather_in_place`](crate::Communicator::gather_in_place) does (`MPI_Igather`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn gather_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        root: Rank,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let buffer = divided_mut(buffer, None)?;
        let call = collective::gather_in_place(self.communicator.member(), ("gather_in_place", root), buffer);
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(call) }
    }

    /// Starts what [`Communicator::gatherv`](crate::Communicator::gatherv) does (`MPI_Igatherv`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn gatherv<R: RecvBuffer + ?Sized>(
        &'scope self,
        send: &'scope (impl SendBuffer + ?Sized),
        root: Rank,
        receive: Option<(&'scope mut R, Parts<'_>)>,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let receive = receive.map(|(receive, parts)| divided_mut(receive, Some(parts))).transpose()?;
        let call = collective::gather(self.communicator.member(), ("gatherv", root), Some(region(send)?), receive);
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(call) }
    }

    /// Starts what [`Communicator::gatherv_in_place`](crate::Communicator::gatherv_in_place) does (`MPI_Igatherv`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn gatherv_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        parts: Parts<'_>,
        root: Rank,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let buffer = divided_mut(buffer, Some(parts))?;
        let call = collective::gather_in_place(self.communicator.member(), ("gatherv_in_place", root), buffer);
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(call) }
    }

    /// Starts what [`Communicator::scatter`](crate::Communicator::scatter) does (`MPI_Iscatter`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let (all, mut mine): (Vec<u32>, _) = ((0..everyone.size()).collect(), [0]);
    /// let at_root = (everyone.rank() == 0).then_some(&all);
    /// everyone.scope(|scope| scope.scatter(at_root, 0, &mut mine)?.wait())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn scatter<S: SendBuffer + ?Sized>(
        &'scope self,
        send: Option<&'scope S>,
        root: Rank,
        receive: &'scope mut (impl RecvBuffer + ?Sized),
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let send = send.map(|send| divided(send, None)).transpose()?;
        let call = collective::scatter(self.communicator.member(), ("scatter", root), send, Some(region_mut(receive)?));
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(call) }
    }

    /// Starts what [`Communicator::scatter_in_place`](crate::Communicator::scatter_in_place) does (`MPI_Iscatter`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn scatter_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        root: Rank,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let buffer = divided_mut(buffer, None)?;
        let call = collective::scatter_in_place(self.communicator.member(), ("scatter_in_place", root), buffer);
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(call) }
    }

    /// Starts what [`Communicator::scatterv`](crate::Communicator::scatterv) does (`MPI_Iscatterv`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn scatterv<S: SendBuffer + ?Sized>(
        &'scope self,
        send: Option<(&'scope S, Parts<'_>)>,
        root: Rank,
        receive: &'scope mut (impl RecvBuffer + ?Sized),
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let send = send.map(|(send, parts)| divided(send, Some(parts))).transpose()?;
        let call =
            collective::scatter(self.communicator.member(), ("scatterv", root), send, Some(region_mut(receive)?));
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(call) }
    }

    /// Starts what [`Communicator::scatterv_in_place`](crate::Communicator::scatterv_in_place) does (`MPI_Iscatterv`). Collective.
    ///
    /// # Errors
    /// The arguments are wrong, as those of the blocking operation. [`CollectiveRequest::wait`] returns later failures.
    pub fn scatterv_in_place(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        parts: Parts<'_>,
        root: Rank,
    ) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let buffer = divided_mut(buffer, Some(parts))?;
        let call = collective::scatter_in_place(self.communicator.member(), ("scatterv_in_place", root), buffer);
        // SAFETY: the buffers are borrowed for as long as the scope.
        unsafe { self.start(call) }
    }
}
