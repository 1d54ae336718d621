//! Reductions by direct exchange: every rank sends each other rank its share of the data, and each rank reduces its own
//! share in the order of the ranks.
//!
//! ```text
//! rank 0   [ a0 | a1 | a2 ]  sends a1 to rank 1, a2 to rank 2;  reduces a0 b0 c0
//! rank 1   [ b0 | b1 | b2 ]  sends b0 to rank 0, b2 to rank 2;  reduces a1 b1 c1
//! rank 2   [ c0 | c1 | c2 ]  sends c0 to rank 0, c1 to rank 1;  reduces a2 b2 c2
//! ```
//!
//! An allreduce then sends each result to every rank, a reduce to the root, and a reduce-scatter to nobody. Every
//! element is reduced by one rank, in the order of the ranks, so all ranks get the same bits. A rank sends and receives
//! each byte once for each phase, which is the least there is, in two steps. So it suits ranks that reach each other
//! directly. Shares are cut into segments, so that the phases and the reductions overlap.

use std::ops::Range;

use super::operands::Operands;
use super::shares::{Results, Shares, segments};
use super::{Block, Me, Place, Plan, StepId, Window};

/// The segments of one sender that a rank receives and reduces at the same time.
const DEPTH: usize = 4;
/// The segments that a rank sends to one other rank at the same time.
const SENDS: usize = 8;

/// Adds the exchange to a plan. `segment` is the largest segment in elements. `ready` is the step after which the input
/// can be read. Returns the steps after which the output is complete.
pub(crate) fn direct(
    plan: &mut Plan,
    me: Me,
    operands: &Operands,
    shares: &Shares,
    (results, segment): (Results, u64),
    ready: &[StepId],
) -> Vec<StepId> {
    let mut exchange = Exchange { me, operands, shares, results, segment, ready, ends: Vec::new() };
    exchange.reduce_own(plan);
    for other in me.others() {
        exchange.contribute(plan, other);
    }
    exchange.ends
}

struct Exchange<'a> {
    me: Me,
    operands: &'a Operands,
    shares: &'a Shares,
    results: Results,
    segment: u64,
    ready: &'a [StepId],
    ends: Vec<StepId>,
}

impl Exchange<'_> {
    /// Receives and reduces this rank's share, and sends the results.
    fn reduce_own(&mut self, plan: &mut Plan) {
        let Me { rank, size } = self.me;
        let share = self.shares.of_rank(rank);
        let longest = self.segment.min(share.end - share.start);
        let depth = DEPTH.min(segments(share.clone(), self.segment).count());
        let slots: Vec<Place> =
            (0..depth * (size as usize - 1)).map(|_| plan.scratch(self.operands.bytes(longest))).collect();
        let mut reductions = Window::new(depth.max(1));
        for (number, range) in segments(share.clone(), self.segment).enumerate() {
            let slots = &slots[number % depth * (size as usize - 1)..][..size as usize - 1];
            let free: Vec<StepId> = reductions.next().into_iter().collect();
            let message = 2 * number as u32;
            let mut arrived = self.ready.to_vec();
            let mut sources = vec![self.operands.input(range.start); size as usize];
            for (other, &slot) in self.me.others().zip(slots) {
                let block = self.operands.block(slot, range.end - range.start);
                arrived.push(plan.receive(other, message, block, &free));
                sources[other as usize] = slot;
            }
            let output = self.own_output(&share, &range);
            let reduced = plan.reduce(output, sources, range.end - range.start, &arrived);
            reductions.push(reduced);
            self.ends.push(reduced);
            self.spread(plan, output, &range, (message + 1, reduced));
        }
    }

    /// Returns where the result of a part of this rank's share goes.
    fn own_output(&self, share: &Range<u64>, range: &Range<u64>) -> Place {
        match self.results {
            Results::Scattered => self.operands.output(range.start - share.start),
            Results::Everywhere | Results::AtRoot(_) => self.operands.output(range.start),
        }
    }

    fn spread(&mut self, plan: &mut Plan, output: Place, range: &Range<u64>, (message, reduced): (u32, StepId)) {
        let block = self.operands.block(output, range.end - range.start);
        match self.results {
            Results::Scattered => {}
            Results::Everywhere => {
                for other in self.me.others() {
                    self.ends.push(plan.send(other, message, block, &[reduced]));
                }
            }
            Results::AtRoot(root) if root == self.me.rank => {}
            Results::AtRoot(root) => self.ends.push(plan.send(root, message, block, &[reduced])),
        }
    }

    /// Sends another rank its share of the input, and receives the results of that share.
    fn contribute(&mut self, plan: &mut Plan, other: u32) {
        let receives = match self.results {
            Results::Scattered => false,
            Results::Everywhere => true,
            Results::AtRoot(root) => root == self.me.rank,
        };
        let mut sends = Window::new(SENDS);
        for (number, range) in segments(self.shares.of_rank(other), self.segment).enumerate() {
            let message = 2 * number as u32;
            let block = |place: Place| -> Block { self.operands.block(place, range.end - range.start) };
            let mut after = self.ready.to_vec();
            after.extend(sends.next());
            let sent = plan.send(other, message, block(self.operands.input(range.start)), &after);
            sends.push(sent);
            self.ends.push(sent);
            if receives {
                // In place, the result overwrites what is sent.
                let after: &[StepId] = if self.operands.in_place() { &[sent] } else { self.ready };
                let block = block(self.operands.output(range.start));
                self.ends.push(plan.receive(other, message + 1, block, after));
            }
        }
    }
}
