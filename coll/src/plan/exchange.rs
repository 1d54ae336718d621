//! Operations by peer access: each rank takes what it needs from the memory of the other ranks.
//!
//! A reduction:
//!
//! ```text
//! rank 0   [ a0 | a1 ]   reads a0 b0, stores their reduction in the outputs of both ranks
//! rank 1   [ b0 | b1 ]   reads a1 b1, stores their reduction in the outputs of both ranks
//! ```
//!
//! One kernel of each rank does that. It reads all sources of an element before it stores the result, and no other kernel
//! touches that element, so the outputs may be the inputs. Every element is reduced by one rank, in the order of the ranks.
//!
//! Two ranks that both want the results elsewhere than their inputs each reduce everything instead. Then nobody stores in
//! another rank's memory. As many bytes come to each rank as by shares, but no kernel waits until its stores have reached
//! another device.
//!
//! In an exchange of blocks each rank copies its blocks from the memory of the others.
//!
//! A rank whose memory cannot be accessed sends its data, and receives its results, by messages. Each rank decides that for
//! itself, so the plan is one step. [`run`](crate::run) knows the messages.

use std::ops::Range;

use super::block::Block;
use super::operands::Operands;
use super::shares::{Results, Shares};

/// The most ranks: kernels have so many sources and destinations.
pub(crate) const MOST_RANKS: u32 = 16;

/// An operation by peer access.
#[derive(Debug)]
pub(crate) enum Exchange {
    Reduce(Reduction),
    Move(Moves),
}

/// A reduction by peer access.
#[derive(Debug)]
pub(crate) struct Reduction {
    pub(crate) operands: Operands,
    pub(crate) shares: Shares,
    pub(crate) results: Results,
}

/// An exchange of blocks by peer access.
#[derive(Debug)]
pub(crate) struct Moves {
    /// `sends[r]` goes to rank `r`.
    pub(crate) sends: Vec<Block>,
    /// `receives[r]` comes from rank `r`.
    pub(crate) receives: Vec<Block>,
    /// What this rank copies from its own memory, and where to: device memory without gaps.
    pub(crate) own: Option<(Block, Block)>,
}

impl Reduction {
    /// Checks whether a rank gets the results of other ranks' shares.
    pub(crate) fn gets_all(&self, rank: u32) -> bool {
        match self.results {
            Results::Scattered => false,
            Results::Everywhere => true,
            Results::AtRoot(root) => root == rank,
        }
    }

    /// Returns whether each of two ranks may reduce everything for itself, as far as this rank is concerned: its output is
    /// not the input that the other rank reads.
    pub(crate) fn may_be_whole(&self) -> bool {
        self.results == Results::Everywhere && self.shares.ranks() == 2 && !self.operands.in_place()
    }

    /// Returns the elements that a rank reduces, if each reduces the `whole` or its share.
    pub(crate) fn part(&self, rank: u32, whole: bool) -> Range<u64> {
        if whole { 0..self.shares.len() } else { self.shares.of_rank(rank) }
    }

    /// Returns the first element of a rank's output that holds a result of its own share. A rank that gets no results of
    /// others has room for these alone.
    pub(crate) fn own_output(&self, rank: u32, share: &Range<u64>) -> u64 {
        if self.gets_all(rank) { share.start } else { 0 }
    }

    /// Returns the bytes of all shares.
    pub(crate) fn bytes(&self) -> u64 {
        self.operands.bytes(self.shares.len())
    }
}

impl Exchange {
    /// Returns the bytes that a rank reads and that others write to it, if blocks are contiguous bytes.
    pub(crate) fn incoming(&self, rank: u32, ranks: u32) -> u64 {
        match self {
            Exchange::Reduce(reduction) => {
                let share = reduction.shares.of_rank(rank);
                let own = share.end - share.start;
                let written = if reduction.gets_all(rank) { reduction.shares.len() - own } else { 0 };
                reduction.operands.bytes(own * u64::from(ranks - 1) + written)
            }
            Exchange::Move(moves) => {
                let others = moves.receives.iter().zip(0..).filter(|(_, from)| *from != rank);
                others.map(|(block, _)| block.count).sum()
            }
        }
    }
}
