//! Reductions over nodes.

use super::super::direct::direct;
use super::super::lanes::Lanes;
use super::super::operands::Operands;
use super::super::shares::{Results, Shares};
use super::super::{Me, Nodes, Plan, StepId, doubling, halving, ring, tree};
use super::{Between, Place};

/// Messages of a part within a node: the operands, and the results.
const OPERANDS: u32 = 0;
const RESULTS: u32 = 1;

/// Adds an allreduce in parts with shares of at most `segment` elements. Returns the steps after which the output is
/// complete. There are at least two ranks.
pub(crate) fn allreduce(
    plan: &mut Plan,
    (me, nodes): (Me, &Nodes),
    (operands, count): (&Operands, u64),
    (between, segment): (Between, u64),
    ready: &[StepId],
) -> Vec<StepId> {
    let place = Place::new(me, nodes);
    let mut lanes = Lanes::default();
    let mut ends = Vec::new();
    for (number, part) in place.parts(count, segment).enumerate() {
        let (operands, len) = (operands.from(part.start), part.end - part.start);
        ends.extend(lanes.part(plan, |plan| {
            let part = Part { place: &place, operands, shares: place.shares(len), number, segment };
            let (scattered, mut owned) = part.reduce_within(plan, ready);
            if let Some((own, len)) = part.own() {
                owned = plan.among((&place.column, me.rank), place.first_message(number), |plan, me| {
                    let all = (&own, len);
                    match between {
                        _ if me.size == 1 => owned,
                        Between::Doubling | Between::Tree => doubling::doubling(plan, me, all, &owned),
                        Between::Halving => halving::halving(plan, me, all, &owned),
                        Between::Ring => ring::allreduce(plan, me, all, segment, &owned),
                        Between::Direct => {
                            let results = (Results::Everywhere, segment);
                            direct(plan, me, &own, &Shares::even(len, me.size), results, &owned)
                        }
                    }
                });
            }
            part.share_results(plan, place.neighbors(), &scattered, &owned);
        }));
    }
    ends
}

/// Adds a reduction to the root, as [`allreduce`]. At other ranks the output is scratch memory.
pub(crate) fn reduce(
    plan: &mut Plan,
    (me, nodes, root): (Me, &Nodes, u32),
    (operands, count): (&Operands, u64),
    (between, segment): (Between, u64),
    ready: &[StepId],
) -> Vec<StepId> {
    let place = Place::new(me, nodes);
    let there = nodes.of_rank(root);
    let mut lanes = Lanes::default();
    let mut ends = Vec::new();
    for (number, part) in place.parts(count, segment).enumerate() {
        let (operands, len) = (operands.from(part.start), part.end - part.start);
        ends.extend(lanes.part(plan, |plan| {
            let part = Part { place: &place, operands, shares: place.shares(len), number, segment };
            let (scattered, mut owned) = part.reduce_within(plan, ready);
            if let Some((own, len)) = part.own() {
                owned = plan.among((&place.column, me.rank), place.first_message(number), |plan, me| match between {
                    _ if me.size == 1 => owned,
                    Between::Direct => {
                        let results = (Results::AtRoot(there), segment);
                        direct(plan, me, &own, &Shares::even(len, me.size), results, &owned)
                    }
                    _ => tree::reduce(plan, me, there, (&own, len), &owned),
                });
            }
            if place.node == there {
                part.share_results(plan, &[root], &scattered, &owned);
            }
        }));
    }
    ends
}

/// A part of the data.
struct Part<'p> {
    place: &'p Place<'p>,
    operands: Operands,
    shares: Shares,
    number: usize,
    segment: u64,
}

impl Part<'_> {
    /// Returns the number of a message within the node.
    fn message(&self, which: u32) -> u32 {
        (self.number as u32).wrapping_mul(2) + which
    }

    /// Reduces each share within the node, at the place of its result. Returns the last steps, twice: those after which
    /// the input is not read any more, and those after which this rank's share is there.
    fn reduce_within(&self, plan: &mut Plan, ready: &[StepId]) -> (Vec<StepId>, Vec<StepId>) {
        let place = self.place;
        let own = self.operands.output(self.shares.of_rank(place.local).start);
        let operands = self.operands.with_output(own);
        let neighbors = place.neighbors();
        let ends = if let [_] = neighbors {
            let from = self.operands.block(self.operands.input(0), self.shares.len());
            let to = self.operands.block(own, self.shares.len());
            if self.operands.in_place() { ready.to_vec() } else { vec![plan.copy(from, to, ready)] }
        } else {
            plan.among((neighbors, place.me.rank), self.message(OPERANDS), |plan, me| {
                direct(plan, me, &operands, &self.shares, (Results::Scattered, self.segment), ready)
            })
        };
        (ends.clone(), ends)
    }

    /// Returns this rank's share, reduced in its place, and its length, if it has one.
    fn own(&self) -> Option<(Operands, u64)> {
        let share = self.shares.of_rank(self.place.local);
        let len = share.end - share.start;
        (len != 0).then(|| (self.operands.from(share.start).in_its_output(), len))
    }

    /// Sends this rank's share to ranks of the node, and receives the others' shares if it is one of them.
    fn share_results(&self, plan: &mut Plan, receivers: &[u32], scattered: &[StepId], owned: &[StepId]) {
        let rank = self.place.me.rank;
        let block = |local: u32| {
            let share = self.shares.of_rank(local);
            self.operands.block(self.operands.output(share.start), share.end - share.start)
        };
        if self.own().is_some() {
            for &other in receivers.iter().filter(|&&other| other != rank) {
                plan.send(other, self.message(RESULTS), block(self.place.local), owned);
            }
        }
        if receivers.contains(&rank) {
            for (local, &other) in (0..).zip(self.place.neighbors()) {
                let share = self.shares.of_rank(local);
                if other != rank && !share.is_empty() {
                    // In place, the result overwrites what was sent.
                    plan.receive(other, self.message(RESULTS), block(local), scattered);
                }
            }
        }
    }
}
