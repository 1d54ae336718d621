//! Reductions and allgathers around a ring: each rank receives from the one before it and sends to the one behind it.
//!
//! An allreduce goes around twice: first every share collects all ranks' operands, then every result visits all ranks.
//! A rank has two partners only, so it suits many ranks that share a network. One rank completes each share, so all
//! ranks get the same bits.

use std::ops::Range;

use super::operands::Operands;
use super::shares::segments;
use super::{Block, Me, Plan, StepId};

/// Adds an allreduce in segments of at most `segment` elements. Returns the steps after which the output is complete.
/// There are at least two ranks.
pub(crate) fn allreduce(
    plan: &mut Plan,
    me: Me,
    (operands, count): (&Operands, u64),
    segment: u64,
    ready: &[StepId],
) -> Vec<StepId> {
    let share = |rank: u32| -> Range<u64> {
        let bound = |rank: u32| (u128::from(count) * u128::from(rank) / u128::from(me.size)) as u64;
        bound(rank)..bound(rank + 1)
    };
    let ring = Ring::new(me);
    let longest = (0..me.size).map(|rank| share(rank).end - share(rank).start).max().unwrap_or(0);
    // Each lane is a segment of every share, and lanes are independent.
    let lanes = longest.div_ceil(segment.max(1));
    let mut ends = Vec::new();
    for lane in 0..lanes {
        let part = |rank: u32| segments(share(rank), segment).nth(lane as usize);
        let first = lane as u32 * 2 * (me.size - 1);
        let mut after = ready.to_vec();
        // The second tour overwrites what the first one sends.
        let mut overwritten = Vec::new();
        let slot = plan.scratch(operands.bytes(segment.min(longest)));
        let mut slot_free = Vec::new();
        for round in 0..me.size - 1 {
            let (out, into) = (ring.at_distance(round), ring.at_distance(round + 1));
            let mut sent = None;
            if let Some(range) = part(out) {
                let from = if round == 0 { operands.input(range.start) } else { operands.output(range.start) };
                let block = operands.block(from, range.end - range.start);
                sent = Some(plan.send(ring.behind, first + round, block, &after));
            }
            after = ready.to_vec();
            if let Some(range) = part(into) {
                let elements = range.end - range.start;
                let arrived = plan.receive(ring.before, first + round, operands.block(slot, elements), &slot_free);
                after.push(arrived);
                let (input, output) = (operands.input(range.start), operands.output(range.start));
                let reduced = plan.reduce(output, [slot, input], elements, &after);
                after = vec![reduced];
                slot_free = vec![reduced];
            }
            overwritten.extend(sent);
        }
        after.extend(&overwritten);
        ends.extend(overwritten);
        for round in 0..me.size - 1 {
            let message = first + me.size - 1 + round;
            let (out, into) = (ring.at_distance(me.size - 1 + round), ring.at_distance(round));
            if let Some(range) = part(out) {
                let block = operands.block(operands.output(range.start), range.end - range.start);
                ends.push(plan.send(ring.behind, message, block, &after));
            }
            if let Some(range) = part(into) {
                let block = operands.block(operands.output(range.start), range.end - range.start);
                let arrived = plan.receive(ring.before, message, block, &after);
                after.push(arrived);
            }
        }
        ends.extend(after);
    }
    ends
}

/// Adds an allgather. `blocks[r]` is rank `r`'s, and this rank's is filled after `own`. Returns the last steps.
pub(crate) fn allgather(plan: &mut Plan, me: Me, blocks: &[Block], own: &[StepId]) -> Vec<StepId> {
    let ring = Ring::new(me);
    let mut ends = Vec::new();
    let mut after = own.to_vec();
    for round in 0..me.size - 1 {
        let (out, into) = (ring.at_distance(round), ring.at_distance(round + 1));
        ends.push(plan.send(ring.behind, round, blocks[out as usize], &after));
        let arrived = plan.receive(ring.before, round, blocks[into as usize], &[]);
        after = vec![arrived];
    }
    ends.extend(after);
    ends
}

/// A rank's neighbours.
struct Ring {
    me: Me,
    before: u32,
    behind: u32,
}

impl Ring {
    fn new(me: Me) -> Ring {
        let Me { rank, size } = me;
        Ring { me, before: (rank + size - 1) % size, behind: (rank + 1) % size }
    }

    /// Returns the rank that is so many places before this one.
    fn at_distance(&self, places: u32) -> u32 {
        (self.me.rank + 2 * self.me.size - places % self.me.size) % self.me.size
    }
}
