//! Broadcasts and allgathers over nodes.

use super::super::lanes::Lanes;
use super::super::shares::Shares;
use super::super::{Block, Me, Nodes, Place as Address, Plan, StepId, Window, broadcast as flat, tree};
use super::{Between, Place};

/// Adds a broadcast of `bytes` contiguous bytes, in parts with shares of at most `segment`: the root divides a part among
/// ranks of its node, each of these sends its share to the other nodes, and within each node all shares go to all ranks.
/// Returns the last steps.
pub(crate) fn broadcast(
    plan: &mut Plan,
    (me, nodes, root): (Me, &Nodes, u32),
    (data, bytes): (Address, u64),
    (between, segment): (Between, u64),
    ready: &[StepId],
) -> Vec<StepId> {
    const TO_OWNER: u32 = 0;
    const TO_ALL: u32 = 1;
    let place = Place::new(me, nodes);
    let there = nodes.of_rank(root);
    let mut lanes = Lanes::default();
    let mut ends = ready.to_vec();
    for (number, part) in place.parts(bytes, segment).enumerate() {
        let shares: Shares = place.shares(part.end - part.start);
        let message = |which: u32| (number as u32).wrapping_mul(2) + which;
        let block = |local: u32| {
            let share = shares.of_rank(local);
            Block::bytes(data.plus(part.start + share.start), share.end - share.start)
        };
        ends.extend(lanes.part(plan, |plan| {
            let own = shares.of_rank(place.local);
            let mut here = ready.to_vec();
            let owners = || (0..).zip(place.neighbors()).filter(|&(local, _)| !shares.of_rank(local).is_empty());
            if me.rank == root {
                for (local, &owner) in owners().filter(|&(_, &owner)| owner != root) {
                    plan.send(owner, message(TO_OWNER), block(local), ready);
                }
            } else if place.node == there && !own.is_empty() {
                here = vec![plan.receive(root, message(TO_OWNER), block(place.local), ready)];
            }
            if !own.is_empty() {
                here = plan.among((&place.column, me.rank), place.first_message(number), |plan, me| match between {
                    _ if me.size == 1 => here,
                    Between::Direct => {
                        let data = (data.plus(part.start + own.start), own.end - own.start);
                        flat::scattered(plan, me, there, data, segment, &here)
                    }
                    _ => tree::broadcast(plan, me, there, block(place.local), &here),
                });
                for &other in place.neighbors().iter().filter(|&&other| other != me.rank && other != root) {
                    plan.send(other, message(TO_ALL), block(place.local), &here);
                }
            }
            if me.rank != root {
                for (local, &owner) in owners().filter(|&(_, &owner)| owner != me.rank) {
                    plan.receive(owner, message(TO_ALL), block(local), ready);
                }
            }
        }));
    }
    ends
}

/// The messages that a rank sends at the same time.
const SENDS: usize = 16;

/// Adds an allgather: each block goes to one rank of each other node, which passes it on to the others there. Ranks of a
/// node take turns in that. `blocks[r]` is rank `r`'s, and `own` this rank's, from which it is sent. Returns the last
/// steps.
pub(crate) fn allgather(plan: &mut Plan, (me, nodes): (Me, &Nodes), own: Block, blocks: &[Block]) -> Vec<StepId> {
    const OWN: u32 = 0;
    let place = Place::new(me, nodes);
    let relay = |of: u32, node: u32| {
        let members = nodes.members(node);
        members[nodes.local(of) as usize % members.len()]
    };
    let passed_on = |of: u32| 1 + of;
    let mut ends = Vec::new();
    let mut arrivals = Vec::new();
    for other in me.others().rev() {
        let block = blocks[other as usize];
        let from = relay(other, place.node);
        let arrived = if nodes.of_rank(other) == place.node || from == me.rank {
            plan.receive(other, OWN, block, &[])
        } else {
            plan.receive(from, passed_on(other), block, &[])
        };
        if nodes.of_rank(other) != place.node && from == me.rank {
            arrivals.push((other, arrived));
        }
        ends.push(arrived);
    }
    let mut window = Window::new(SENDS);
    let mut send = |plan: &mut Plan, to: u32, message: u32, block: Block, arrived: Option<StepId>| {
        let after: Vec<StepId> = arrived.into_iter().chain(window.next()).collect();
        let sent = plan.send(to, message, block, &after);
        window.push(sent);
        ends.push(sent);
    };
    // A rank's own block comes first. So every block arrives, whatever is still to be passed on.
    for other in me.others() {
        let there = nodes.of_rank(other);
        if there == place.node || relay(me.rank, there) == other {
            send(plan, other, OWN, own, None);
        }
    }
    for (of, arrived) in arrivals.into_iter().rev() {
        for &other in place.neighbors().iter().filter(|&&other| other != me.rank) {
            send(plan, other, passed_on(of), blocks[of as usize], Some(arrived));
        }
    }
    ends
}
