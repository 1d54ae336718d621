//! Recursive doubling: in each round a rank exchanges all it has with a rank at twice the distance.
//!
//! It takes the fewest rounds, and every message has the full length. So it suits small reductions. Both partners
//! reduce the same two operands in the order of their ranks, so all ranks get the same bits.
//!
//! Ranks beyond the largest power of two first hand their input to a neighbour, and get the result from it at the end.

use super::operands::Operands;
use super::{Me, Place, Plan, StepId};

/// The number of the message that hands over the input of a rank that takes no part, and of the one with the result.
const FOLD: u32 = 0;
const UNFOLD: u32 = 1;
/// The number of the first round's message.
pub(crate) const ROUNDS: u32 = 2;

/// The ranks that take part in the rounds, a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folded {
    /// Their number.
    pub(crate) size: u32,
    /// The first `2 * extra` ranks are pairs, of which the odd one takes part.
    extra: u32,
}

impl Folded {
    pub(crate) fn new(size: u32) -> Folded {
        let largest = 1 << size.ilog2();
        Folded { size: largest, extra: size - largest }
    }

    /// Returns the number among those that take part.
    pub(crate) fn number(self, rank: u32) -> Option<u32> {
        if rank >= 2 * self.extra { Some(rank - self.extra) } else { (rank % 2 == 1).then_some(rank / 2) }
    }

    /// Returns the rank of a number.
    pub(crate) fn rank(self, number: u32) -> u32 {
        if number < self.extra { 2 * number + 1 } else { number + self.extra }
    }

    fn is_paired(self, rank: u32) -> bool {
        rank < 2 * self.extra
    }
}

/// The state of a rank before the rounds.
pub(crate) enum Entered {
    /// It takes part with this number. Its operand is at the place, after these steps.
    In { number: u32, operand: Place, after: Vec<StepId> },
    /// It waits for the result. These steps are its last.
    Out { ends: Vec<StepId> },
}

/// Hands the input of ranks that take no part to those that do.
pub(crate) fn enter(
    plan: &mut Plan,
    me: Me,
    folded: Folded,
    (operands, count): (&Operands, u64),
    ready: &[StepId],
) -> Entered {
    let (input, output) = (operands.input(0), operands.output(0));
    match folded.number(me.rank) {
        None => {
            let sent = plan.send(me.rank + 1, FOLD, operands.block(input, count), ready);
            let after: &[StepId] = if operands.in_place() { &[sent] } else { ready };
            let result = plan.receive(me.rank + 1, UNFOLD, operands.block(output, count), after);
            Entered::Out { ends: vec![sent, result] }
        }
        Some(number) if folded.is_paired(me.rank) => {
            let other = plan.scratch(operands.bytes(count));
            let mut after = ready.to_vec();
            after.push(plan.receive(me.rank - 1, FOLD, operands.block(other, count), &[]));
            let reduced = plan.reduce(output, [other, input], count, &after);
            Entered::In { number, operand: output, after: vec![reduced] }
        }
        Some(number) => Entered::In { number, operand: input, after: ready.to_vec() },
    }
}

/// Sends the result to the rank that takes no part, if this rank has one.
pub(crate) fn leave(
    plan: &mut Plan,
    me: Me,
    folded: Folded,
    (operands, count): (&Operands, u64),
    after: Vec<StepId>,
) -> Vec<StepId> {
    if folded.is_paired(me.rank) {
        let block = operands.block(operands.output(0), count);
        vec![plan.send(me.rank - 1, UNFOLD, block, &after)]
    } else {
        after
    }
}

/// Adds an allreduce. Returns the steps after which the output is complete. There are at least two ranks.
pub(crate) fn doubling(plan: &mut Plan, me: Me, (operands, count): (&Operands, u64), ready: &[StepId]) -> Vec<StepId> {
    let folded = Folded::new(me.size);
    let (number, mut operand, mut after) = match enter(plan, me, folded, (operands, count), ready) {
        Entered::In { number, operand, after } => (number, operand, after),
        Entered::Out { ends } => return ends,
    };
    let output = operands.output(0);
    let other = plan.scratch(operands.bytes(count));
    for round in 0..folded.size.ilog2() {
        let partner = folded.rank(number ^ (1 << round));
        let message = ROUNDS + round;
        let sent = plan.send(partner, message, operands.block(operand, count), &after);
        let arrived = plan.receive(partner, message, operands.block(other, count), &after);
        let sources = if partner < me.rank { [other, operand] } else { [operand, other] };
        after = vec![plan.reduce(output, sources, count, &[sent, arrived])];
        operand = output;
    }
    leave(plan, me, folded, (operands, count), after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranks_belong_together() {
        for size in 1..40 {
            let folded = Folded::new(size);
            let numbers: Vec<u32> = (0..size).filter_map(|rank| folded.number(rank)).collect();
            assert_eq!(numbers, (0..folded.size).collect::<Vec<_>>(), "{size} ranks");
            for rank in 0..size {
                match folded.number(rank) {
                    Some(number) => assert_eq!(folded.rank(number), rank),
                    None => assert!(folded.number(rank + 1).is_some(), "rank {rank} of {size} has a partner"),
                }
            }
        }
    }
}
