//! Binomial trees: broadcasts and reductions of small data in a logarithmic number of rounds.

use super::operands::Operands;
use super::{Block, Me, Plan, StepId};

/// The ranks counted from the root.
#[derive(Clone, Copy)]
struct Rooted {
    size: u32,
    root: u32,
    /// This rank's number.
    number: u32,
}

impl Rooted {
    fn new(me: Me, root: u32) -> Rooted {
        Rooted { size: me.size, root, number: (me.rank + me.size - root) % me.size }
    }

    fn rank(self, number: u32) -> u32 {
        (number + self.root) % self.size
    }

    /// Returns the rank from which this one receives, unless it is the root.
    fn parent(self) -> Option<u32> {
        (self.number != 0).then(|| self.rank(self.number & (self.number - 1)))
    }

    /// Returns the ranks that receive from this one, the largest subtree first.
    fn children(self) -> impl DoubleEndedIterator<Item = u32> {
        let rounds = if self.number == 0 { 32 } else { self.number.trailing_zeros() };
        let distances = (0..rounds.min(31)).rev().map(|round| 1_u32 << round);
        distances
            .map(move |distance| u64::from(self.number) + u64::from(distance))
            .filter(move |&number| number < u64::from(self.size))
            .map(move |number| self.rank(number as u32))
    }
}

/// Adds a broadcast of a block. Returns the last steps.
pub(crate) fn broadcast(plan: &mut Plan, me: Me, root: u32, block: Block, ready: &[StepId]) -> Vec<StepId> {
    let tree = Rooted::new(me, root);
    let mut ends = ready.to_vec();
    if let Some(parent) = tree.parent() {
        ends = vec![plan.receive(parent, 0, block, ready)];
    }
    let here = ends.clone();
    for child in tree.children() {
        ends.push(plan.send(child, 0, block, &here));
    }
    ends
}

/// Adds a reduction to the root. At other ranks the output is scratch memory. Returns the last steps.
pub(crate) fn reduce(
    plan: &mut Plan,
    me: Me,
    root: u32,
    (operands, count): (&Operands, u64),
    ready: &[StepId],
) -> Vec<StepId> {
    let tree = Rooted::new(me, root);
    let mut operand = operands.input(0);
    let mut after = ready.to_vec();
    let children: Vec<u32> = tree.children().collect();
    if !children.is_empty() {
        // The smallest subtree is the first to arrive, and its ranks are the next ones.
        let slots = [plan.scratch(operands.bytes(count)), plan.scratch(operands.bytes(count))];
        let mut free: [Option<StepId>; 2] = [None; 2];
        for (round, &child) in children.iter().rev().enumerate() {
            let slot = round % 2;
            let arrived = plan.receive(child, 0, operands.block(slots[slot], count), free[slot].as_slice());
            after.push(arrived);
            let reduced = plan.reduce(operands.output(0), [operand, slots[slot]], count, &after);
            operand = operands.output(0);
            free[slot] = Some(reduced);
            after = vec![reduced];
        }
    }
    match tree.parent() {
        None => after,
        Some(parent) => vec![plan.send(parent, 0, operands.block(operand, count), &after)],
    }
}
