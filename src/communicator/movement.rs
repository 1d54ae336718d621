//! Collective operations that move data from or to one rank.

use cableway_base::Rank;

use super::Communicator;
use crate::collective::{self, Parts, divided, divided_mut, region, region_mut};
use crate::{Error, RecvBuffer, SendBuffer};

impl Communicator {
    /// Sends the root's `buffer` to all members, whose buffers have the same length (`MPI_Bcast`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut settings = [0.0_f64; 3];
    /// if everyone.rank() == 0 {
    ///     settings = [0.5, 1.0, 2.0];
    /// }
    /// everyone.broadcast(&mut settings, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The communicator has no rank `root`, or a member failed.
    pub fn broadcast(&self, buffer: &mut (impl RecvBuffer + ?Sized), root: Rank) -> Result<(), Error> {
        self.perform(collective::broadcast(self.member(), region_mut(buffer)?, root))
    }

    /// Gathers the `send` buffers of all members, which have the same length, in rank order in the root's `receive` buffer
    /// (`MPI_Gather`). Other members pass none, or one that is not used. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut all = vec![0; everyone.size() as usize];
    /// let all_at_root = (everyone.rank() == 0).then_some(&mut all);
    /// everyone.gather(&[everyone.rank()], 0, all_at_root)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The communicator has no rank `root`, the root's buffer has not room for exactly one part for each rank, or a member
    /// failed.
    pub fn gather<R: RecvBuffer + ?Sized>(
        &self,
        send: &(impl SendBuffer + ?Sized),
        root: Rank,
        receive: Option<&mut R>,
    ) -> Result<(), Error> {
        let receive = receive.map(|receive| divided_mut(receive, None)).transpose()?;
        self.perform(collective::gather(self.member(), ("gather", root), Some(region(send)?), receive))
    }

    /// Gathers as [`gather`](Self::gather) does. The root's buffer holds all parts, its own one already. Elsewhere `buffer`
    /// is what that rank sends. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut all = vec![everyone.rank(); if everyone.rank() == 0 { everyone.size() as usize } else { 1 }];
    /// everyone.gather_in_place(&mut all, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`gather`](Self::gather).
    pub fn gather_in_place(&self, buffer: &mut (impl RecvBuffer + ?Sized), root: Rank) -> Result<(), Error> {
        self.perform(collective::gather_in_place(self.member(), ("gather_in_place", root), divided_mut(buffer, None)?))
    }

    /// Gathers buffers of different lengths at the places that the root's [`Parts`] name (`MPI_Gatherv`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// // Rank r sends r + 1 values.
    /// let counts: Vec<usize> = (1..=everyone.size() as usize).collect();
    /// let mine = vec![everyone.rank(); counts[everyone.rank() as usize]];
    /// let mut all = vec![0; counts.iter().sum()];
    /// let at_root = (everyone.rank() == 0).then_some((&mut all, cableway::Parts::new(&counts)));
    /// everyone.gatherv(&mine, 0, at_root)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The communicator has no rank `root`, a part lies outside the root's buffer or overlaps another one, or a member
    /// failed.
    pub fn gatherv<R: RecvBuffer + ?Sized>(
        &self,
        send: &(impl SendBuffer + ?Sized),
        root: Rank,
        receive: Option<(&mut R, Parts<'_>)>,
    ) -> Result<(), Error> {
        let receive = receive.map(|(receive, parts)| divided_mut(receive, Some(parts))).transpose()?;
        self.perform(collective::gather(self.member(), ("gatherv", root), Some(region(send)?), receive))
    }

    /// Gathers as [`gatherv`](Self::gatherv) does. The root's buffer holds all parts, its own one already. Elsewhere
    /// `buffer` is what that rank sends, and `parts` is ignored. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let counts = vec![2; everyone.size() as usize];
    /// let mut all = vec![everyone.rank(); if everyone.rank() == 0 { 2 * counts.len() } else { 2 }];
    /// everyone.gatherv_in_place(&mut all, cableway::Parts::new(&counts), 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`gatherv`](Self::gatherv).
    pub fn gatherv_in_place(
        &self,
        buffer: &mut (impl RecvBuffer + ?Sized),
        parts: Parts<'_>,
        root: Rank,
    ) -> Result<(), Error> {
        self.perform(collective::gather_in_place(
            self.member(),
            ("gatherv_in_place", root),
            divided_mut(buffer, Some(parts))?,
        ))
    }

    /// Sends each member its part of the root's `send` buffer, in rank order and of the same length (`MPI_Scatter`). Other
    /// members pass none, or one that is not used. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let all: Vec<u32> = (0..everyone.size()).collect();
    /// let mut mine = [0];
    /// everyone.scatter((everyone.rank() == 0).then_some(&all), 0, &mut mine)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The communicator has no rank `root`, the root's buffer is not exactly one part for each rank, or a member failed.
    pub fn scatter<S: SendBuffer + ?Sized>(
        &self,
        send: Option<&S>,
        root: Rank,
        receive: &mut (impl RecvBuffer + ?Sized),
    ) -> Result<(), Error> {
        let send = send.map(|send| divided(send, None)).transpose()?;
        self.perform(collective::scatter(self.member(), ("scatter", root), send, Some(region_mut(receive)?)))
    }

    /// Scatters as [`scatter`](Self::scatter) does. The root's buffer holds all parts, and its own one stays there.
    /// Elsewhere `buffer` receives that rank's part. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let mut values = vec![0_u32; if everyone.rank() == 0 { everyone.size() as usize } else { 1 }];
    /// everyone.scatter_in_place(&mut values, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`scatter`](Self::scatter).
    pub fn scatter_in_place(&self, buffer: &mut (impl RecvBuffer + ?Sized), root: Rank) -> Result<(), Error> {
        self.perform(collective::scatter_in_place(
            self.member(),
            ("scatter_in_place", root),
            divided_mut(buffer, None)?,
        ))
    }

    /// Scatters parts of different lengths, which the root's [`Parts`] name (`MPI_Scatterv`). Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let counts: Vec<usize> = (1..=everyone.size() as usize).collect();
    /// let all = vec![1.5_f32; counts.iter().sum()];
    /// let mut mine = vec![0.0_f32; counts[everyone.rank() as usize]];
    /// let at_root = (everyone.rank() == 0).then_some((&all, cableway::Parts::new(&counts)));
    /// everyone.scatterv(at_root, 0, &mut mine)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The communicator has no rank `root`, a part lies outside the root's buffer, or a member failed.
    pub fn scatterv<S: SendBuffer + ?Sized>(
        &self,
        send: Option<(&S, Parts<'_>)>,
        root: Rank,
        receive: &mut (impl RecvBuffer + ?Sized),
    ) -> Result<(), Error> {
        let send = send.map(|(send, parts)| divided(send, Some(parts))).transpose()?;
        self.perform(collective::scatter(self.member(), ("scatterv", root), send, Some(region_mut(receive)?)))
    }

    /// Scatters as [`scatterv`](Self::scatterv) does. The root's buffer holds all parts, and its own one stays there.
    /// Elsewhere `buffer` receives that rank's part, and `parts` is ignored. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let counts = vec![2; everyone.size() as usize];
    /// let mut values = vec![0_u32; if everyone.rank() == 0 { 2 * counts.len() } else { 2 }];
    /// everyone.scatterv_in_place(&mut values, cableway::Parts::new(&counts), 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`scatterv`](Self::scatterv).
    pub fn scatterv_in_place(
        &self,
        buffer: &mut (impl RecvBuffer + ?Sized),
        parts: Parts<'_>,
        root: Rank,
    ) -> Result<(), Error> {
        self.perform(collective::scatter_in_place(
            self.member(),
            ("scatterv_in_place", root),
            divided_mut(buffer, Some(parts))?,
        ))
    }
}
