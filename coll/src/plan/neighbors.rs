//! Exchanges with the neighbours of a topology.

use super::{Block, Me, Plan, StepId};

/// A message to or from a neighbour. Its number tells several messages between the same two ranks apart.
pub(crate) struct Edge {
    pub(crate) rank: u32,
    pub(crate) message: u32,
    pub(crate) block: Block,
    /// The packed bytes of the block.
    pub(crate) bytes: u64,
}

/// Adds the exchange. Returns the last steps.
pub(crate) fn exchange(plan: &mut Plan, me: Me, sends: &[Edge], receives: &[Edge]) -> Vec<StepId> {
    let (mut ends, mut here) = (Vec::new(), Vec::new());
    for edge in receives {
        let fits = |send: &&Edge| (send.rank, send.message, send.bytes) == (me.rank, edge.message, edge.bytes);
        let own = if edge.rank == me.rank { sends.iter().find(fits) } else { None };
        match own {
            Some(own) => {
                here.push(own.message);
                ends.push(plan.copy(own.block, edge.block, &[]));
            }
            None => ends.push(plan.receive(edge.rank, edge.message, edge.block, &[])),
        }
    }
    for edge in sends {
        if edge.rank != me.rank || !here.contains(&edge.message) {
            ends.push(plan.send(edge.rank, edge.message, edge.block, &[]));
        }
    }
    ends
}
