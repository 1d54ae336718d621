//! A group of processes and a context of their own for messages.

mod collective;
mod point_to_point;

use std::ops::RangeInclusive;
use std::sync::Arc;

use cableway_base::Rank;
use cableway_pml::Engine;

use crate::selector::raw_rank;
use crate::world::{Inner, WORLD_CONTEXT};
use crate::{Error, Protocol, Side};

pub use point_to_point::Message;

/// A group of processes, ranked from 0, whose messages are kept apart from those of every other communicator.
///
/// Clones are the same communicator. It is freed when the last of them is dropped: what was sent on it and nobody
/// received is then discarded here. Every method may be called from any thread; those that say "collective" are called
/// by all members, in the same order on one communicator, and by one thread at a time.
#[derive(Clone)]
pub struct Communicator {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Arc<cableway_pml::Communicator>,
    world: Arc<Inner>,
}

impl Communicator {
    pub(crate) fn of_everyone(world: &Arc<Inner>) -> Result<Self, Error> {
        let job = world.modex.job();
        Self::add(world, WORLD_CONTEXT, (0..job.size).collect(), job.rank)
    }

    /// `group` in the job's count, `rank` in the group's.
    fn add(world: &Arc<Inner>, context: u32, group: Vec<Rank>, rank: Rank) -> Result<Self, Error> {
        let engine = world.engine.add_communicator(context, group, rank)?;
        Ok(Communicator { shared: Arc::new(Shared { engine, world: world.clone() }) })
    }

    /// This process in the group.
    pub fn rank(&self) -> Rank {
        self.shared.engine.rank()
    }

    /// Processes of the group.
    pub fn size(&self) -> u32 {
        self.group().len() as u32
    }

    /// The processes, in the job's count, by their rank here.
    pub fn group(&self) -> &[Rank] {
        self.shared.engine.group()
    }

    /// Which protocols carry messages to rank `to`, by size in bytes, and why: the engine's own decision.
    ///
    /// # Errors
    /// No such rank, or it cannot be reached.
    pub fn explain(
        &self,
        to: Rank,
        from_memory: Side,
        to_memory: Side,
        sizes: RangeInclusive<u64>,
    ) -> Result<Vec<Protocol>, Error> {
        Ok(self.engine().explain(self.process(to)?, from_memory, to_memory, sizes)?)
    }

    /// The names of the transports that carry messages to rank `to`, the one that small messages take first.
    ///
    /// # Errors
    /// No such rank, or it cannot be reached.
    pub fn transports(&self, to: Rank) -> Result<Vec<&'static str>, Error> {
        Ok(self.engine().transports(self.process(to)?)?)
    }

    /// What there is to say about the links that carry messages to rank `to`, a line each.
    ///
    /// # Errors
    /// No such rank, or it cannot be reached.
    pub fn notes(&self, to: Rank) -> Result<Vec<String>, Error> {
        Ok(self.engine().notes(self.process(to)?)?)
    }

    /// A member in the job's count.
    fn process(&self, rank: Rank) -> Result<Rank, cableway_pml::Error> {
        let no_such_rank = || cableway_pml::Error::NoSuchRank { rank: raw_rank(rank), size: self.group().len() };
        self.group().get(rank as usize).copied().ok_or_else(no_such_rank)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.world.engine
    }

    pub(crate) fn raw(&self) -> &Arc<cableway_pml::Communicator> {
        &self.shared.engine
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator({}, rank {} of {})", self.shared.engine.context(), self.rank(), self.size())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.world.engine.remove_communicator(&self.engine);
    }
}
