//! Chooses the algorithm of a call.
//!
//! All ranks must choose the same one. So a choice depends only on values that MPI makes equal on all ranks: the
//! operation, the number of bytes, the number of ranks, the root. Parameters must be equal on all ranks, too, as Open
//! MPI's are.

use cableway_base::Parameters;
use cableway_base::parameters::Allreduce;

/// The algorithm of an allreduce, and of a large reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// Recursive doubling; of a reduce, a binomial tree.
    Doubling,
    /// Direct exchange.
    Direct,
    /// A ring.
    Ring,
    /// Rabenseifner's: recursive halving, then doubling.
    Halving,
}

/// What choices depend on.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    algorithm: Allreduce,
    small: u64,
    /// The largest segment in bytes.
    pub(crate) segment: u64,
}

/// The most ranks that exchange directly. Beyond that, each rank would have that many messages under way.
const DIRECT_RANKS: u32 = 16;

impl Choice {
    pub(crate) fn new(parameters: &Parameters) -> Choice {
        Choice {
            algorithm: parameters.coll_allreduce,
            small: parameters.coll_small as u64,
            segment: (parameters.coll_segment as u64).max(1),
        }
    }

    /// Chooses the algorithm of an allreduce of so many elements and bytes.
    pub(crate) fn allreduce(&self, size: u32, count: u64, bytes: u64) -> Reduction {
        match self.algorithm {
            Allreduce::RecursiveDoubling => Reduction::Doubling,
            Allreduce::Direct => Reduction::Direct,
            Allreduce::Ring => Reduction::Ring,
            Allreduce::Rabenseifner => Reduction::Halving,
            Allreduce::Auto if bytes <= self.small || count < u64::from(size) => Reduction::Doubling,
            Allreduce::Auto if size <= DIRECT_RANKS => Reduction::Direct,
            Allreduce::Auto => Reduction::Ring,
        }
    }

    /// Returns whether a reduce of so many bytes goes up a tree. Otherwise it is a direct exchange.
    pub(crate) fn reduces_in_a_tree(&self, size: u32, count: u64, bytes: u64) -> bool {
        bytes <= self.small || count < u64::from(size) || size > DIRECT_RANKS
    }

    /// Returns whether a broadcast of so many bytes goes down a tree. Otherwise the root scatters it.
    pub(crate) fn broadcasts_in_a_tree(&self, size: u32, bytes: u64) -> bool {
        size == 2 || bytes <= self.small || bytes < u64::from(size)
    }

    /// Returns whether an allgather of so many bytes in all goes around a ring. Otherwise it is a direct exchange.
    pub(crate) fn gathers_in_a_ring(&self, size: u32, bytes: u64) -> bool {
        size > DIRECT_RANKS && bytes > self.small
    }
}
