//! Rabenseifner's allreduce: a reduce-scatter by recursive halving, then an allgather by recursive doubling.
//!
//! Each rank sends every byte about twice, as a ring does, in a logarithmic number of rounds. One rank completes each
//! element, so all ranks get the same bits. Ranks beyond the largest power of two take part as in
//! [`doubling`](super::doubling).

use std::ops::Range;

use super::doubling::{Entered, Folded, ROUNDS, enter, leave};
use super::operands::Operands;
use super::{Me, Plan, StepId};

/// Adds an allreduce. Returns the steps after which the output is complete. There are at least two ranks.
pub(crate) fn halving(plan: &mut Plan, me: Me, (operands, count): (&Operands, u64), ready: &[StepId]) -> Vec<StepId> {
    let folded = Folded::new(me.size);
    let (number, operand, mut after) = match enter(plan, me, folded, (operands, count), ready) {
        Entered::In { number, operand, after } => (number, operand, after),
        Entered::Out { ends } => return ends,
    };
    let rounds = folded.size.ilog2();
    let bound = |part: u32| (u128::from(count) * u128::from(part) / u128::from(folded.size)) as u64;
    let elements = |parts: &Range<u32>| bound(parts.start)..bound(parts.end);
    let other = plan.scratch(operands.bytes(count.div_ceil(2) + 1));
    let mut mine = 0..folded.size;
    let mut halves = Vec::new();
    let mut sends = Vec::new();
    let mut first = true;
    for round in 0..rounds {
        let middle = mine.start + (mine.end - mine.start) / 2;
        let partner = folded.rank(number ^ (folded.size >> (round + 1)));
        let (kept, given) = if number < middle {
            (mine.start..middle, middle..mine.end)
        } else {
            (middle..mine.end, mine.start..middle)
        };
        let message = ROUNDS + round;
        let from = |element: u64| if first { operand.plus(operands.bytes(element)) } else { operands.output(element) };
        let (out, into) = (elements(&given), elements(&kept));
        let sent = plan.send(partner, message, operands.block(from(out.start), out.end - out.start), &after);
        let arrived = plan.receive(partner, message, operands.block(other, into.end - into.start), &after);
        let sources = if partner < me.rank { [other, from(into.start)] } else { [from(into.start), other] };
        let reduced = plan.reduce(operands.output(into.start), sources, into.end - into.start, &[arrived]);
        sends.push(sent);
        after = vec![reduced];
        halves.push((partner, kept.clone(), given));
        mine = kept;
        first = false;
    }
    // The results overwrite what was sent.
    after.extend(sends);
    for (round, (partner, kept, given)) in halves.into_iter().enumerate().rev() {
        let message = ROUNDS + rounds + round as u32;
        let (out, into) = (elements(&kept), elements(&given));
        let sent = plan.send(partner, message, operands.block(operands.output(out.start), out.end - out.start), &after);
        let arrived =
            plan.receive(partner, message, operands.block(operands.output(into.start), into.end - into.start), &after);
        after = vec![sent, arrived];
    }
    leave(plan, me, folded, (operands, count), after)
}
