//! Prefix reductions by recursive doubling: after each round a rank has reduced twice as many of the ranks before it.

use super::operands::Operands;
use super::{Me, Plan, StepId};

/// Adds an inclusive scan. The output's last steps are returned. A rank reduces in the order of the ranks.
pub(crate) fn inclusive(plan: &mut Plan, me: Me, (operands, count): (&Operands, u64), ready: &[StepId]) -> Vec<StepId> {
    let mut operand = operands.input(0);
    let mut after = ready.to_vec();
    let mut sends = Vec::new();
    let other = plan.scratch(operands.bytes(count));
    let mut free: Option<StepId> = None;
    let mut distance = 1;
    let mut round = 0;
    while distance < me.size {
        let mut sent = None;
        if me.rank + distance < me.size {
            sent = Some(plan.send(me.rank + distance, round, operands.block(operand, count), &after));
        }
        if me.rank >= distance {
            let arrived = plan.receive(me.rank - distance, round, operands.block(other, count), free.as_slice());
            // The reduction overwrites what was sent, unless that was the input.
            let mut before = after.clone();
            before.push(arrived);
            before.extend(sent);
            let reduced = plan.reduce(operands.output(0), [other, operand], count, &before);
            operand = operands.output(0);
            after = vec![reduced];
            free = Some(reduced);
        }
        sends.extend(sent);
        distance *= 2;
        round += 1;
    }
    if operand != operands.output(0) {
        let whole = operands.block(operand, count);
        after = vec![plan.copy(whole, operands.block(operands.output(0), count), &after)];
    }
    after.extend(sends);
    after
}

/// The number of the message that carries an inclusive scan to the next rank.
const SHIFT: u32 = 64;

/// Adds an exclusive scan: rank `r` gets the inclusive scan of rank `r - 1`, and rank 0 gets nothing.
pub(crate) fn exclusive(plan: &mut Plan, me: Me, (operands, count): (&Operands, u64), ready: &[StepId]) -> Vec<StepId> {
    let place = plan.scratch(operands.bytes(count));
    let inner = operands.with_output(place);
    let mut ends = inclusive(plan, me, (&inner, count), ready);
    if me.rank + 1 < me.size {
        ends.push(plan.send(me.rank + 1, SHIFT, inner.block(place, count), &ends.clone()));
    }
    if me.rank > 0 {
        // In place, the output is the input, which the scan reads.
        let output = operands.block(operands.output(0), count);
        ends.push(plan.receive(me.rank - 1, SHIFT, output, &ends.clone()));
    }
    ends
}
