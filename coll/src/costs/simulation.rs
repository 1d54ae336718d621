//! Predicts how long plans take: all ranks execute theirs in simulated time.
//!
//! ```text
//! sender    |step|.......|   bytes   |
//! receiver      |step|...|   bytes   |  latency  |
//! ```
//!
//! A step begins when the steps before it have ended and the rank's processor has started the steps before. A message
//! moves once both ends have begun. Its bytes occupy the sender's way out and the receiver's way in. Messages between
//! nodes occupy those of the nodes, which their ranks share. The receiver sees a message after its latency. Reductions and
//! copies occupy their rank.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::{Picoseconds, Prices};
use crate::plan::{Nodes, Plan, StepId, Work};

/// Returns the time after which all ranks have ended their plans. Blocks are contiguous bytes, and elements of
/// reductions are bytes.
pub(crate) fn predict(plans: &[Plan], nodes: &Nodes, prices: &Prices) -> Picoseconds {
    let mut simulation = Simulation {
        plans,
        nodes,
        prices,
        waiting: plans.iter().map(|plan| plan.steps.iter().map(|step| step.predecessors).collect()).collect(),
        events: BinaryHeap::new(),
        processor: vec![0; plans.len()],
        ways: vec![Ways::default(); plans.len()],
        shared_ways: vec![Ways::default(); nodes.count() as usize],
        posted: HashMap::new(),
        exchanges: Vec::new(),
        last: 0,
    };
    simulation.run();
    simulation.last
}

struct Simulation<'p> {
    plans: &'p [Plan],
    nodes: &'p Nodes,
    prices: &'p Prices,
    /// The number of steps that each step waits for.
    waiting: Vec<Vec<u32>>,
    /// What happens next: the time, and the rank and number of a step that may begin, or whose message has begun.
    events: BinaryHeap<Reverse<(Picoseconds, Event, u32, StepId)>>,
    /// When each rank's processor is free.
    processor: Vec<Picoseconds>,
    /// The ways of messages within nodes, of each rank.
    ways: Vec<Ways>,
    /// The ways of messages between nodes, of each node.
    shared_ways: Vec<Ways>,
    /// The steps that began a message first, by sender, receiver and number.
    posted: HashMap<(u32, u32, u32), StepId>,
    /// The ranks and steps of an exchange that have begun.
    exchanges: Vec<(u32, StepId)>,
    last: Picoseconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ready,
    Posted,
}

/// When the way out and the way in are free.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    out: Picoseconds,
    into: Picoseconds,
}

impl Simulation<'_> {
    fn run(&mut self) {
        for (rank, waiting) in (0..).zip(&self.waiting) {
            let steps = (0..).zip(waiting).filter(|(_, waiting)| **waiting == 0);
            self.events.extend(steps.map(|(step, _)| Reverse((0, Event::Ready, rank, step))));
        }
        while let Some(Reverse((time, event, rank, step))) = self.events.pop() {
            match event {
                Event::Ready => self.begin(time, rank, step),
                Event::Posted => self.post(time, rank, step),
            }
        }
    }

    fn begin(&mut self, time: Picoseconds, rank: u32, step: StepId) {
        let processor = &mut self.processor[rank as usize];
        *processor = time.max(*processor).saturating_add(self.prices.step);
        let begun = *processor;
        match &self.plans[rank as usize].steps[step as usize].work {
            // Messages take their ways in the order of time, not of the ranks.
            Work::Send { .. } | Work::Receive { .. } => {
                self.events.push(Reverse((begun, Event::Posted, rank, step)));
            }
            Work::Copy { from, .. } => self.occupy(rank, step, self.prices.copy.of(from.count)),
            Work::Reduce { sources, elements, .. } => {
                self.occupy(rank, step, self.prices.reduce.of(elements * sources.len() as u64));
            }
            // What a function of the program takes is unknown, and no choice depends on it.
            Work::Fold { .. } => self.occupy(rank, step, 0),
            Work::Exchange(_) | Work::OneShot(_) => self.exchange(begun, rank, step),
        }
    }

    /// Begins one end of a message.
    fn post(&mut self, time: Picoseconds, rank: u32, step: StepId) {
        let (key, bytes, sends) = match &self.plans[rank as usize].steps[step as usize].work {
            &Work::Send { to, message, ref block } => ((rank, to, message), block.count, true),
            &Work::Receive { from, message, ref block } => ((from, rank, message), block.count, false),
            Work::Copy { .. } | Work::Reduce { .. } | Work::Fold { .. } | Work::Exchange(_) | Work::OneShot(_) => {
                return;
            }
        };
        match self.posted.remove(&key) {
            None => drop(self.posted.insert(key, step)),
            Some(other) => self.message(key, if sends { (step, other) } else { (other, step) }, time, bytes),
        }
    }

    /// Moves a message of which both ends have begun.
    fn message(
        &mut self,
        (from, to, _): (u32, u32, u32),
        (send, receive): (StepId, StepId),
        begun: Picoseconds,
        bytes: u64,
    ) {
        let (source, sink) = (self.nodes.of_rank(from), self.nodes.of_rank(to));
        let (ways, out, into) = if source == sink {
            (&mut self.ways, from as usize, to as usize)
        } else {
            (&mut self.shared_ways, source as usize, sink as usize)
        };
        let line = self.prices.message(bytes, source == sink);
        // A receiver that is busy with others does not keep the sender from sending to others.
        let time = line.transfer(bytes);
        let sent = begun.max(ways[out].out).saturating_add(time);
        ways[out].out = sent;
        let arrived = sent.max(ways[into].into.saturating_add(time));
        ways[into].into = arrived;
        self.end(arrived, from, send);
        self.end(arrived.saturating_add(line.fixed), to, receive);
    }

    /// Begins one rank's part of an exchange, of which a plan has one. All parts end together.
    fn exchange(&mut self, begun: Picoseconds, rank: u32, step: StepId) {
        self.exchanges.push((rank, step));
        if self.exchanges.len() < self.plans.len() {
            return;
        }
        let ranks = self.plans.len() as u32;
        let parts = std::mem::take(&mut self.exchanges);
        let time = parts.iter().map(|&(rank, step)| match &self.plans[rank as usize].steps[step as usize].work {
            Work::Exchange(exchange) => self.prices.exchange.of(exchange.incoming(rank, ranks)),
            Work::OneShot(shot) if shot.reduction.is_some() => self.prices.reduced_one_shot.of(shot.incoming(rank)),
            Work::OneShot(shot) => self.prices.moved_one_shot.of(shot.incoming(rank)),
            _ => 0,
        });
        let ended = begun.saturating_add(time.max().unwrap_or(0));
        parts.into_iter().for_each(|(rank, step)| self.end(ended, rank, step));
    }

    fn occupy(&mut self, rank: u32, step: StepId, time: Picoseconds) {
        let processor = &mut self.processor[rank as usize];
        *processor = processor.saturating_add(time);
        let ended = *processor;
        self.end(ended, rank, step);
    }

    fn end(&mut self, time: Picoseconds, rank: u32, step: StepId) {
        self.last = self.last.max(time);
        for &next in &self.plans[rank as usize].steps[step as usize].successors {
            let waiting = &mut self.waiting[rank as usize][next as usize];
            *waiting -= 1;
            if *waiting == 0 {
                self.events.push(Reverse((time, Event::Ready, rank, next)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CLASSES, Line};
    use super::*;
    use crate::plan::{Block, Place};

    const PRICES: Prices = Prices {
        within: [Line::new(1000, 1); CLASSES],
        between: Line::new(50_000, 10),
        reduce: Line::new(10, 2),
        copy: Line::new(20, 3),
        exchange: Line::new(500, 4),
        reduced_one_shot: Line::new(400, 9),
        moved_one_shot: Line::new(400, 8),
        step: 100,
    };

    fn block(bytes: u64) -> Block {
        Block::bytes(Place::User(0), bytes)
    }

    /// Returns the time of messages that rank 0 sends to each other rank.
    fn sends(to: &[u32], nodes: &Nodes, bytes: u64) -> Picoseconds {
        let mut plans: Vec<Plan> = (0..nodes.ranks()).map(|_| Plan::default()).collect();
        for &to in to {
            plans[0].send(to, 0, block(bytes), &[]);
            plans[to as usize].receive(0, 0, block(bytes), &[]);
        }
        predict(&plans, nodes, &PRICES)
    }

    #[test]
    fn a_message_costs_its_step_its_bytes_and_its_latency() {
        assert_eq!(sends(&[1], &Nodes::even(2, 1), 4096), 100 + 4096 + 1000);
        assert_eq!(sends(&[1], &Nodes::even(2, 2), 4096), 100 + 40_960 + 50_000);
    }

    #[test]
    fn messages_of_one_rank_share_its_way_and_those_of_a_node_the_nodes() {
        assert_eq!(sends(&[1, 2], &Nodes::even(3, 1), 4096), 100 + 2 * 4096 + 1000);
        // Both ranks of the first node send to the second one.
        let nodes = Nodes::even(4, 2);
        let mut plans: Vec<Plan> = (0..4).map(|_| Plan::default()).collect();
        for (from, to) in [(0, 2), (1, 3)] {
            plans[from].send(to, 0, block(4096), &[]);
            plans[to as usize].receive(from as u32, 0, block(4096), &[]);
        }
        assert_eq!(predict(&plans, &nodes, &PRICES), 100 + 2 * 40_960 + 50_000);
    }

    #[test]
    fn a_rank_works_on_one_thing_at_a_time_and_steps_wait_for_each_other() {
        let mut plan = Plan::default();
        let first = plan.copy(block(1000), block(1000), &[]);
        plan.reduce(Place::User(0), [Place::User(0), Place::User(8)], 1000, &[first]);
        plan.copy(block(1000), block(1000), &[]);
        let nodes = Nodes::even(1, 1);
        assert_eq!(predict(&[plan], &nodes, &PRICES), 3 * 100 + 2 * (20 + 3000) + 10 + 4000);
    }
}
