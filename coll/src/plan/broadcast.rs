//! Broadcasts of large data: the root sends each rank a share, and each rank sends its share to all others.
//!
//! Every link carries about as many bytes as the data has, however many ranks there are. The shares are bytes of the
//! packed data, because the ranks' types may differ.

use super::shares::segments;
use super::{Block, Me, Place, Plan, StepId, Window};

/// The segments that a rank sends to one other rank at the same time.
const SENDS: usize = 8;

/// Adds a broadcast of `bytes` contiguous bytes, in segments of at most `segment`. Returns the last steps.
pub(crate) fn scattered(
    plan: &mut Plan,
    me: Me,
    root: u32,
    (data, bytes): (Place, u64),
    segment: u64,
    ready: &[StepId],
) -> Vec<StepId> {
    let mut ends = ready.to_vec();
    let receivers: Vec<u32> = (0..me.size).filter(|&rank| rank != root).collect();
    let share = |index: usize| {
        let bound = |index: usize| (u128::from(bytes) * index as u128 / receivers.len() as u128) as u64;
        bound(index)..bound(index + 1)
    };
    let part = |range: &std::ops::Range<u64>| Block::bytes(data.plus(range.start), range.end - range.start);
    for (index, &owner) in receivers.iter().enumerate() {
        let mut window = Window::new(SENDS);
        for (number, range) in segments(share(index), segment).enumerate() {
            let (scatter, forward) = (2 * number as u32, 2 * number as u32 + 1);
            if me.rank == root {
                let mut after = ready.to_vec();
                after.extend(window.next());
                let sent = plan.send(owner, scatter, part(&range), &after);
                window.push(sent);
                ends.push(sent);
            } else if me.rank == owner {
                let arrived = plan.receive(root, scatter, part(&range), ready);
                ends.push(arrived);
                for other in me.others().filter(|&other| other != root) {
                    ends.push(plan.send(other, forward, part(&range), &[arrived]));
                }
            } else {
                ends.push(plan.receive(owner, forward, part(&range), ready));
            }
        }
    }
    ends
}
