//! Gather and scatter: one message between the root and each other rank.

use super::{Block, Me, Plan, StepId, Window};

/// The messages that the root sends at the same time.
const SENDS: usize = 16;

/// Adds a gather at the root. `own` is the root's contribution, unless it is in place.
pub(crate) fn gather_at_root(plan: &mut Plan, me: Me, own: Option<Block>, blocks: &[Block]) -> Vec<StepId> {
    let mut ends: Vec<StepId> = me.others().map(|other| plan.receive(other, 0, blocks[other as usize], &[])).collect();
    if let Some(own) = own {
        ends.push(plan.copy(own, blocks[me.rank as usize], &[]));
    }
    ends
}

/// Adds a scatter at the root. `own` is where the root's share goes, unless it is in place.
pub(crate) fn scatter_at_root(plan: &mut Plan, me: Me, own: Option<Block>, blocks: &[Block]) -> Vec<StepId> {
    let mut window = Window::new(SENDS);
    let mut ends = Vec::new();
    for other in me.others() {
        let after = window.next();
        let sent = plan.send(other, 0, blocks[other as usize], after.as_slice());
        window.push(sent);
        ends.push(sent);
    }
    if let Some(own) = own {
        ends.push(plan.copy(blocks[me.rank as usize], own, &[]));
    }
    ends
}
