//! A rank's memory, and the content of checked messages.

use cableway::{Communicator, Rank};

use super::memory::{Fault, Memory};
use super::plan::Plan;
use crate::cli::Failure;

/// The messages of this rank, and its memory.
pub(super) struct Side<'a> {
    pub(super) on: &'a Communicator,
    pub(super) plan: &'a Plan,
    pub(super) out: Memory,
    pub(super) inbox: Memory,
    /// The number of messages so far, which identifies checked ones.
    sent: u64,
    pub(super) received: u64,
}

impl<'a> Side<'a> {
    pub(super) fn new(on: &'a Communicator, plan: &'a Plan, out: Memory, inbox: Memory) -> Self {
        Side { on, plan, out, inbox, sent: 0, received: 0 }
    }

    pub(super) fn fill(&mut self, size: u64, window: u32) -> Result<(), Failure> {
        self.out.fill(window, size, number(self.on.rank(), self.sent))?;
        self.sent += u64::from(window);
        Ok(())
    }

    pub(super) fn poison(&mut self, size: u64, window: u32) -> Result<(), Failure> {
        self.inbox.poison(window, size)
    }

    /// Overwrites the first slot if messages have gaps there, which are verified to stay as they are. Only before the peer is
    /// told to put.
    pub(super) fn poison_gaps(&mut self, size: u64) -> Result<(), Failure> {
        if !(self.plan.check && self.inbox.has_gaps()) {
            return Ok(());
        }
        self.poison(size, 1)?;
        self.inbox.settle()
    }

    pub(super) fn verify(&mut self, from: Rank, size: u64, window: u32) -> Result<(), Failure> {
        let first = self.received;
        self.received += u64::from(window);
        match self.inbox.verify(window, size, number(from, first))? {
            Some((slot, fault)) => Err(self.failed(from, size, first + u64::from(slot), fault)),
            None => Ok(()),
        }
    }

    pub(super) fn failed(&self, from: Rank, size: u64, message: u64, fault: Fault) -> Failure {
        let rank = self.on.rank();
        let what = format!("check failed at rank {rank}, size {size}, message {message} from rank {from}");
        Failure::failed(1, format!("{what}: {fault}"))
    }
}

/// Returns a number that is unique to the message within the job.
pub(super) fn number(from: Rank, message: u64) -> u64 {
    u64::from(from) << 48 | message
}
