//! Algorithms over nodes: within each node, between nodes, and within each node again.
//!
//! ```text
//! node 0   rank 0  [ a0 | a1 ]     reduce-scatter: share 0   between nodes: share 0   allgather: [ r0 | r1 ]
//!          rank 1  [ b0 | b1 ]                     share 1                  share 1              [ r0 | r1 ]
//! node 1   rank 2  [ c0 | c1 ]                     share 0                  share 0              [ r0 | r1 ]
//!          rank 3  [ d0 | d1 ]                     share 1                  share 1              [ r0 | r1 ]
//! ```
//!
//! Each byte leaves a node as often as there are other nodes that need it, and not once for each of their ranks. All
//! ranks of a node take part in that, each with its share. The data is cut into parts, which go through the phases one
//! behind the other.
//!
//! If nodes have different numbers of ranks, there are as many shares as the smallest node has ranks. Further ranks
//! contribute to the shares and get the results, and have no share.

mod moves;
mod reductions;

use std::ops::Range;

pub(crate) use moves::{allgather, broadcast};
pub(crate) use reductions::{allreduce, reduce};

use super::shares::{Shares, segments};
use super::{Me, Nodes};

/// The algorithm between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    Doubling,
    Halving,
    Ring,
    Direct,
    Tree,
}

/// A rank's place among the nodes.
struct Place<'n> {
    me: Me,
    nodes: &'n Nodes,
    node: u32,
    /// The place among the ranks of the node, which is the number of its share if it has one.
    local: u32,
    /// The number of shares.
    shares: u32,
    /// The ranks of all nodes with the same share.
    column: Vec<u32>,
}

impl<'n> Place<'n> {
    fn new(me: Me, nodes: &'n Nodes) -> Place<'n> {
        let (node, local, shares) = (nodes.of_rank(me.rank), nodes.local(me.rank), nodes.smallest());
        let column = if local < shares { nodes.column(local) } else { Vec::new() };
        Place { me, nodes, node, local, shares, column }
    }

    /// Returns the ranks of this rank's node.
    fn neighbors(&self) -> &'n [u32] {
        self.nodes.members(self.node)
    }

    /// Cuts data into parts whose shares are at most `segment` long.
    fn parts(&self, len: u64, segment: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        segments(0..len, segment.max(1).saturating_mul(u64::from(self.shares)))
    }

    /// Returns the shares of a part of this length, one for each rank of this rank's node.
    fn shares(&self, len: u64) -> Shares {
        let even = Shares::even(len, self.shares);
        let lengths = (0..self.neighbors().len() as u32).map(|local| match local < self.shares {
            true => even.of_rank(local).end - even.of_rank(local).start,
            false => 0,
        });
        Shares::of(lengths)
    }

    /// Returns the number of the first message of a part between nodes. An algorithm uses fewer numbers than this leaves.
    fn first_message(&self, part: usize) -> u32 {
        (part as u32).wrapping_mul(2 * self.nodes.count() + 80)
    }
}
