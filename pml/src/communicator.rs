//! Communicators: a context, and who the ranks are.

use cableway_base::Rank;

/// A context and a group of processes, as one engine sees them. Made by
/// [`Engine::add_communicator`](crate::Engine::add_communicator).
pub struct Communicator {
    context: u32,
    rank: u32,
    group: Box<[Rank]>,
}

impl Communicator {
    pub(crate) fn new(context: u32, group: Vec<Rank>, rank: u32) -> Self {
        Communicator { context, rank, group: group.into() }
    }

    /// The number that messages of this communicator carry.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// This process in the communicator.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The processes that messages go to and come from, in the job's count, by their rank here.
    pub fn group(&self) -> &[Rank] {
        &self.group
    }
}
