//! Reductions by peer access: each rank reduces its share of the data where the other ranks hold it, and stores the results
//! where they belong.
//!
//! ```text
//! rank 0   [ a0 | a1 ]   reads a0 b0, stores their reduction in the outputs of both ranks
//! rank 1   [ b0 | b1 ]   reads a1 b1, stores their reduction in the outputs of both ranks
//! ```
//!
//! One kernel of each rank does that. It reads all sources of an element before it stores the result, and no other kernel
//! touches that element, so the outputs may be the inputs. Every element is reduced by one rank, in the order of the ranks.
//!
//! A rank whose memory cannot be accessed sends its data, and receives its results, by messages. Each rank decides that for
//! itself, so the plan is one step. [`run`](crate::run) knows the messages.

use std::ops::Range;

use super::direct::{Results, Shares};
use super::reduction::Operands;
use super::{Plan, StepId, Work};

/// The most ranks: kernels have so many sources and destinations.
pub(crate) const MOST_RANKS: u32 = 16;

/// A reduction by peer access.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) operands: Operands,
    pub(crate) shares: Shares,
    pub(crate) results: Results,
    /// The number of elements of the input, and of the output of this rank, 0 if it gets none.
    pub(crate) input: u64,
    pub(crate) output: u64,
}

impl Exchange {
    /// Checks whether a rank gets the results of other ranks' shares.
    pub(crate) fn gets_all(&self, rank: u32) -> bool {
        match self.results {
            Results::Scattered => false,
            Results::Everywhere => true,
            Results::AtRoot(root) => root == rank,
        }
    }

    /// Returns the first element of a rank's output that holds a result of its own share.
    pub(crate) fn own_output(&self, share: &Range<u64>) -> u64 {
        if self.results == Results::Scattered { 0 } else { share.start }
    }

    /// Returns the bytes that a rank reads and that others write to it.
    pub(crate) fn incoming(&self, rank: u32, ranks: u32) -> u64 {
        let share = self.shares.of_rank(rank);
        let read = (share.end - share.start) * u64::from(ranks - 1);
        let written = if self.gets_all(rank) { self.shares.len() - (share.end - share.start) } else { 0 };
        self.operands.bytes(read + written)
    }
}

/// Adds the exchange to a plan. Returns the step after which the output is complete and nobody uses the input.
pub(crate) fn exchange(plan: &mut Plan, exchange: Exchange, ready: &[StepId]) -> StepId {
    plan.push(Work::Exchange(Box::new(exchange)), ready)
}
