//! Predicts the time of an algorithm from the plans that it makes.

use super::algorithm::{self, Algorithm, Gathered, Operation, Setting};
use crate::costs::{Picoseconds, Prices, predict};
use crate::plan::one_shot::{Folded, OneShot, Sent};
use crate::plan::operands::Operands;
use crate::plan::shares::Shares;
use crate::plan::{Block, Kind, Me, Nodes, Place, Plan};

/// The most ranks whose plans are all simulated. For more, the time is extrapolated from those of fewer ranks.
const MOST_RANKS: u32 = 64;
/// The same for algorithms with a logarithmic number of messages.
const MOST_LOGARITHMIC: u32 = 1024;
/// The ranks of one node in simulations of many.
const MOST_LOCAL: u32 = 32;

/// What is predicted: an operation on so many bytes, among these ranks. Of an allgather, the bytes of all blocks.
#[derive(Clone, Copy)]
pub(super) struct Question<'q> {
    pub(super) operation: Operation,
    pub(super) bytes: u64,
    pub(super) nodes: &'q Nodes,
    pub(super) segment: u64,
    pub(super) prices: &'q Prices,
}

impl Question<'_> {
    /// Returns the predicted time of an algorithm.
    pub(super) fn time(&self, algorithm: Algorithm) -> Picoseconds {
        let logarithmic = algorithm.is_logarithmic();
        if self.nodes.ranks() <= if logarithmic { MOST_LOGARITHMIC } else { MOST_RANKS } {
            return self.simulate(algorithm);
        }
        let samples = samples(self.nodes, if logarithmic { MOST_LOGARITHMIC } else { MOST_RANKS });
        let [fewer, more] = samples.map(|nodes| {
            // The time grows evenly while shares keep their length, or with the logarithm while the data does.
            let share = u128::from(self.bytes) * u128::from(nodes.ranks()) / u128::from(self.nodes.ranks());
            let bytes = if logarithmic { self.bytes } else { (share as u64).max(1) };
            let time = Question { nodes: &nodes, bytes, ..*self }.simulate(algorithm);
            (scale(&nodes, self.nodes, logarithmic), time)
        });
        let at = scale(self.nodes, self.nodes, logarithmic);
        let growth =
            u128::from(more.1.saturating_sub(fewer.1)) * u128::from(at - more.0) / u128::from(more.0 - fewer.0);
        more.1.saturating_add(growth.try_into().unwrap_or(u64::MAX))
    }

    pub(super) fn simulate(&self, algorithm: Algorithm) -> Picoseconds {
        let size = self.nodes.ranks();
        let plans: Vec<Plan> = (0..size).map(|rank| self.plan(algorithm, Me { rank, size })).collect();
        predict(&plans, self.nodes, self.prices)
    }

    /// Builds the plan of a rank. Addresses and the root do not matter.
    fn plan(&self, algorithm: Algorithm, me: Me) -> Plan {
        let mut plan = Plan::default();
        let setting = Setting { me, nodes: self.nodes, segment: self.segment };
        let (input, bytes) = (Place::User(0), self.bytes);
        if algorithm == Algorithm::OneShot {
            let len = if self.operation == Operation::Allreduce { bytes } else { bytes.div_ceil(me.size.into()) };
            let receives = vec![(None, len); me.size as usize];
            let folded = Folded { own: input, output: input, elements: len };
            let reduction = self.operation.reduces().then_some(folded);
            let sent = Sent::ToAll(Block::bytes(input, bytes));
            plan.one_shot(OneShot { sent, receives, reduction, refused: None }, &[]);
            return plan;
        }
        match self.operation {
            Operation::Allreduce => {
                let operands = Operands::of(Kind::Bytes, 1, input, Place::User(bytes as usize));
                algorithm::allreduce(&mut plan, algorithm, setting, (&operands, bytes), &[]);
            }
            Operation::Reduce => {
                let operands = Operands::of(Kind::Bytes, 1, input, Place::User(bytes as usize));
                algorithm::reduce(&mut plan, algorithm, setting, (&operands, bytes, 0), &[]);
            }
            Operation::ReduceScatter => {
                let operands = Operands::of(Kind::Bytes, 1, input, Place::User(bytes as usize));
                let shares = Shares::even(bytes, me.size);
                algorithm::reduce_scatter(&mut plan, algorithm, setting, (&operands, shares), &[]);
            }
            Operation::Broadcast => {
                algorithm::broadcast(&mut plan, algorithm, setting, (input, bytes, 0), &[]);
            }
            Operation::Allgather => {
                let blocks = vec![Block::bytes(input, bytes.div_ceil(u64::from(me.size))); me.size as usize];
                let gathered = Gathered { own: blocks[0], in_place: true, blocks: &blocks };
                algorithm::allgather(&mut plan, algorithm, setting, gathered, &[]);
            }
        }
        plan
    }
}

/// Returns two smaller numbers of ranks, with the same number of ranks on each node if there are several nodes.
fn samples(nodes: &Nodes, most: u32) -> [Nodes; 2] {
    if nodes.count() == 1 {
        return [most / 2, most].map(|ranks| Nodes::even(ranks, 1));
    }
    let local = nodes.ranks().div_ceil(nodes.count());
    if local > MOST_LOCAL {
        return [2, 3].map(|count| Nodes::even(count * MOST_LOCAL, count));
    }
    let more = (most / local).clamp(3, nodes.count().max(3));
    [more.div_ceil(2), more]
        .map(|count| if nodes.count() < 3 { Nodes::even(count * local, count) } else { nodes.first(count) })
}

/// Returns the figure with which the time grows.
fn scale(nodes: &Nodes, of: &Nodes, logarithmic: bool) -> u32 {
    match (logarithmic, of.count()) {
        (true, _) => nodes.ranks().next_power_of_two().ilog2(),
        (false, 1) => nodes.ranks(),
        (false, _) => nodes.count(),
    }
}
