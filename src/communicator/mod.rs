//! Communicators: a group of processes and a context for their messages.

mod collective;
mod exchange;
mod movement;
mod one_sided;
mod point_to_point;
mod reduction;
mod scan;

use std::ops::RangeInclusive;
use std::sync::Arc;

use cableway_base::Rank;
use cableway_coll::{Members, Reach};
use cableway_pml::{ActiveMessages, Engine};

use crate::collective::{Member, Prepared, Running, Token, barrier};
use crate::inner::{Inner, WORLD_CONTEXT};
use crate::selector::raw_rank;
use crate::{CollectiveQuestion, Error, Prediction, Protocol, Side};

pub use point_to_point::Message;

/// A group of processes, ranked from 0, and a context: messages on one communicator never match receives on another.
///
/// Clones are the same communicator. Dropping the last clone frees it, and discards messages that arrived on it and were
/// not received. Every method may be called from any thread. All members must call each collective method, in the same
/// order on one communicator, and from one thread at a time.
#[derive(Clone)]
pub struct Communicator {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Arc<cableway_pml::Communicator>,
    collectives: Arc<Members>,
    world: Arc<Inner>,
}

impl Communicator {
    pub(crate) fn of_world(world: &Arc<Inner>) -> Result<Self, Error> {
        let job = world.modex.job();
        Self::add(world, WORLD_CONTEXT, (0..job.size).collect(), job.rank)
    }

    /// Creates a communicator of `group`, which holds ranks of the job; `rank` is this process's rank in the group.
    fn add(world: &Arc<Inner>, context: u32, group: Vec<Rank>, rank: Rank) -> Result<Self, Error> {
        let engine = world.engine.add_communicator(context, group, rank)?;
        let Inner { collectives, notices, parameters, .. } = &**world;
        let collectives = Members::new(collectives, notices, engine.clone(), Reach::Within, parameters);
        Ok(Communicator { shared: Arc::new(Shared { engine, collectives, world: world.clone() }) })
    }

    /// Returns the rank of this process in the group, from 0 to `size() - 1`.
    pub fn rank(&self) -> Rank {
        self.shared.engine.rank()
    }

    /// Returns the number of processes in the group.
    pub fn size(&self) -> u32 {
        self.group().len() as u32
    }

    /// Returns the ranks in the job of all members. The index is the rank in this communicator.
    pub fn group(&self) -> &[Rank] {
        self.shared.engine.group()
    }

    /// Returns the protocols that carry messages of `sizes` (in bytes) to rank `to`, and the reasons. The engine decides
    /// as it does for a message, and sends none.
    ///
    /// # Errors
    /// The communicator has no rank `to`, or no transport reaches it.
    pub fn explain(
        &self,
        to: Rank,
        from_memory: Side,
        to_memory: Side,
        sizes: RangeInclusive<u64>,
    ) -> Result<Vec<Protocol>, Error> {
        Ok(self.engine().explain(self.process(to)?, from_memory, to_memory, sizes)?)
    }

    /// Predicts how long the algorithms of a collective operation take, and says which one would be chosen, if all nodes
    /// were like this one. The operation, the ranks and the nodes need not be those of this job. Returns `None` if there is
    /// no choice: see [`explain`](cableway_coll::explain).
    ///
    /// # Errors
    /// The launcher cannot be reached.
    pub fn explain_collective(&self, question: CollectiveQuestion<'_>) -> Result<Option<Vec<Prediction>>, Error> {
        let world = self.world();
        let card = self.engine().node_card(world.modex.job().rank)?.unwrap_or_default();
        Ok(cableway_coll::explain(&world.parameters, card, question))
    }

    /// Returns the names of the transports that carry messages to rank `to`. The first one carries small messages.
    ///
    /// # Errors
    /// The communicator has no rank `to`, or no transport reaches it.
    pub fn transports(&self, to: Rank) -> Result<Vec<&'static str>, Error> {
        Ok(self.engine().transports(self.process(to)?)?)
    }

    /// Returns remarks about the links to rank `to`, one line each, for people to read.
    ///
    /// # Errors
    /// The communicator has no rank `to`, or no transport reaches it.
    pub fn notes(&self, to: Rank) -> Result<Vec<String>, Error> {
        Ok(self.engine().notes(self.process(to)?)?)
    }

    /// Converts a rank of this communicator to the rank in the job.
    pub(crate) fn process(&self, rank: Rank) -> Result<Rank, cableway_pml::Error> {
        let no_such_rank = || cableway_pml::Error::NoSuchRank { rank: raw_rank(rank), size: self.group().len() };
        self.group().get(rank as usize).copied().ok_or_else(no_such_rank)
    }

    pub(crate) fn world(&self) -> &Arc<Inner> {
        &self.shared.world
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.world.engine
    }

    pub(crate) fn active(&self) -> &ActiveMessages {
        &self.shared.world.active
    }

    /// Returns this process and the number of members, for collective operations.
    pub(crate) fn member(&self) -> Member {
        Member { rank: self.rank(), size: self.size() }
    }

    /// Begins a collective operation that the engine polls.
    ///
    /// # Safety
    /// The buffers of the call stay borrowed until the operation has ended.
    pub(crate) unsafe fn start(&self, call: &Prepared<'_>) -> Result<Arc<Running>, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start_with(call, None) }
    }

    /// Begins a barrier that the engine polls.
    pub(crate) fn start_barrier(&self) -> Result<Arc<Running>, Error> {
        let token = Token::default();
        let call = barrier(&token);
        // SAFETY: what polls the operation keeps the token.
        unsafe { self.start_with(&call, Some(token)) }
    }

    /// # Safety
    /// As [`start`](Self::start); what polls the operation keeps the token.
    unsafe fn start_with(&self, call: &Prepared<'_>, token: Option<Token>) -> Result<Arc<Running>, Error> {
        // SAFETY: the caller's promise.
        let started =
            unsafe { self.shared.collectives.start(&call.call) }.map_err(|error| call.operation.failed(error))?;
        Ok(Running::start(self.engine(), call.operation, started, token))
    }

    /// Performs a collective operation.
    ///
    /// # Safety
    /// The buffers of the call stay borrowed until this returns.
    pub(crate) unsafe fn complete(&self, call: &Prepared<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise, and this waits.
        let started = unsafe { self.shared.collectives.start_blocking(&call.call) };
        started.and_then(cableway_coll::Operation::wait).map_err(|error| call.operation.failed(error))
    }

    /// Performs a collective operation whose buffers are borrowed for longer than this call.
    fn perform(&self, call: Result<Prepared<'_>, Error>) -> Result<(), Error> {
        // SAFETY: the callers in this module borrow the buffers.
        unsafe { self.complete(&call?) }
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
