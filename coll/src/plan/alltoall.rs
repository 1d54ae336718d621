//! Exchanges of every rank with every other: alltoall, and allgathers of few ranks.

use super::{Block, Me, Plan, StepId, Window};

/// The messages that a rank sends at the same time.
const SENDS: usize = 16;

/// Adds an exchange: this rank sends `sends[r]` to rank `r`, and receives `receives[r]` from it. Sends wait for `ready`.
pub(crate) fn exchange(plan: &mut Plan, me: Me, sends: &[Block], receives: &[Block], ready: &[StepId]) -> Vec<StepId> {
    let mut ends: Vec<StepId> =
        me.others().rev().map(|other| plan.receive(other, 0, receives[other as usize], &[])).collect();
    let mut window = Window::new(SENDS);
    for other in me.others() {
        let mut after = ready.to_vec();
        after.extend(window.next());
        let sent = plan.send(other, 0, sends[other as usize], &after);
        window.push(sent);
        ends.push(sent);
    }
    ends
}

/// Adds an exchange in place: each block is first copied to scratch memory, from which it is sent. `packed[r]` is the
/// size of block `r`.
pub(crate) fn exchange_in_place(plan: &mut Plan, me: Me, blocks: &[Block], packed: &[u64]) -> Vec<StepId> {
    /// Blocks whose copies exist at the same time.
    const COPIES: usize = 8;
    let longest = me.others().map(|other| packed[other as usize]).max().unwrap_or(0);
    let slots: Vec<_> = (0..COPIES.min(me.size as usize - 1)).map(|_| plan.scratch(longest)).collect();
    let mut sends = Window::new(slots.len().max(1));
    let mut ends = Vec::new();
    // Both partners of a pair come to each other in the same round, so neither waits for a third one's copy.
    for (round, other) in (0..me.size).map(|round| (round, partner(me, round))).filter(|pair| pair.1 != me.rank) {
        let block = blocks[other as usize];
        let free = sends.next();
        let slot = Block::bytes(slots[ends.len() / 2 % slots.len()], packed[other as usize]);
        debug_assert!(round < me.size);
        let copied = plan.copy(block, slot, free.as_slice());
        let sent = plan.send(other, 0, slot, &[copied]);
        sends.push(sent);
        ends.push(sent);
        ends.push(plan.receive(other, 0, block, &[copied]));
    }
    ends
}

/// Returns the partner of a rank in a round. It is symmetric: the partner's partner is this rank.
fn partner(me: Me, round: u32) -> u32 {
    (round + me.size - me.rank) % me.size
}
