//! Exchanges with the neighbours of a topology.

use super::{Block, Plan, StepId};

/// A message to or from a neighbour. Its number tells several messages between the same two ranks apart.
pub(crate) struct Edge {
    pub(crate) rank: u32,
    pub(crate) message: u32,
    pub(crate) block: Block,
}

/// Adds the exchange. Returns the last steps.
pub(crate) fn exchange(plan: &mut Plan, sends: &[Edge], receives: &[Edge]) -> Vec<StepId> {
    let mut ends: Vec<StepId> =
        receives.iter().map(|edge| plan.receive(edge.rank, edge.message, edge.block, &[])).collect();
    ends.extend(sends.iter().map(|edge| plan.send(edge.rank, edge.message, edge.block, &[])));
    ends
}
