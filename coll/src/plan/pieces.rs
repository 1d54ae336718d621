//! Reductions by a function of the program, in pieces of host memory.
//!
//! No kernel can call such a function. So the operands of a piece are brought to slots in host memory, from wherever they
//! are, the function combines the slots in the order of the ranks, and the result goes to where it is wanted. Several
//! pieces are under way: one is reduced while the next ones are copied.
//!
//! ```text
//! piece 0   [ bring operands ][ combine ][ send results ]
//! piece 1       [ bring operands ][ combine ][ send results ]
//! piece 2           [ bring operands ] ...
//! ```
//!
//! An allreduce, a reduce and a reduce-scatter exchange directly, as [`direct`](super::direct) does: each rank combines its
//! share. A scan is a chain of the ranks. The function need not be commutative, and one rank combines each element, so all
//! ranks get the same bits.

use std::ops::Range;

use super::lanes::Lanes;
use super::shares::{Results, Shares, segments};
use super::{Block, Kind, Me, Place, Plan, StepId, Window};

/// The pieces of another rank's share that are on their way to it at the same time.
const SENDS: usize = 4;

/// The largest piece in bytes, and the smallest one into which many ranks have data cut.
const LARGEST: u64 = 1 << 20;
const LEAST: u64 = 64 << 10;
/// The bytes of all ranks' operands of a piece, unless pieces would be smaller than the smallest.
const OPERANDS: u64 = 16 << 20;

/// The elements that the function combines, as they lie in memory: the program's, or a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements {
    /// The kind of the blocks that hold them.
    pub(crate) kind: Kind,
    /// The bytes of data of one.
    pub(crate) size: u64,
    /// The distance in bytes from one to the next.
    pub(crate) extent: i64,
    /// Where the data of an element begins and ends, from its address on.
    pub(crate) bounds: (i64, i64),
}

impl Elements {
    /// Returns how many elements make up a piece. All ranks must have elements of one size and extent.
    fn piece(&self, ranks: u32, segment: u64) -> u64 {
        let bytes = (OPERANDS / u64::from(ranks)).clamp(LEAST, LARGEST).min(segment);
        (bytes / self.size.max(self.extent.unsigned_abs()).max(1)).max(1)
    }

    /// Returns the address of a later element.
    fn at(&self, base: Place, element: u64) -> Place {
        base.offset(self.extent.wrapping_mul(element as i64))
    }

    /// Describes elements in memory or a slot.
    pub(crate) fn block(&self, place: Place, elements: u64) -> Block {
        match self.kind {
            Kind::Bytes => Block::bytes(place.offset(self.bounds.0), elements * self.size),
            kind => Block { place, count: elements, kind },
        }
    }

    /// Takes scratch memory for so many elements. Returns the address of the first one.
    fn slot(&self, plan: &mut Plan, elements: u64) -> Place {
        let reach = self.extent.saturating_mul(elements.saturating_sub(1) as i64);
        let low = self.bounds.0.saturating_add(reach.min(0));
        let high = self.bounds.1.saturating_add(reach.max(0));
        plan.scratch(high.abs_diff(low)).offset(low.wrapping_neg())
    }
}

/// The memory of one rank. In place, input and output are the same. Without an output, it gets no result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) input: Place,
    pub(crate) output: Option<Place>,
}

impl Ends {
    fn in_place(&self) -> bool {
        self.output == Some(self.input)
    }
}

/// A reduction of one rank: its place among the ranks, the elements, its memory, and the largest piece in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    pub(crate) me: Me,
    pub(crate) elements: Elements,
    pub(crate) ends: Ends,
    pub(crate) segment: u64,
}

impl Pieces {
    fn input(&self, range: &Range<u64>) -> Block {
        self.elements.block(self.elements.at(self.ends.input, range.start), range.end - range.start)
    }

    /// Returns the memory of a result that begins with this element of the output.
    fn output(&self, first: u64, elements: u64) -> Option<Block> {
        Some(self.elements.block(self.elements.at(self.ends.output?, first), elements))
    }

    fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        segments(range, self.elements.piece(self.me.size, self.segment))
    }

    /// Adds an exchange in which each rank combines its share.
    pub(crate) fn exchange(&self, plan: &mut Plan, shares: &Shares, results: Results) {
        let own = shares.of_rank(self.me.rank);
        // In place, the output of a reduce-scatter is in the way of input that has not been sent.
        let apart = results == Results::Scattered && self.ends.in_place();
        let kept = apart.then(|| self.elements.slot(plan, own.end - own.start));
        let mut read = self.combine_own(plan, &own, (results, kept));
        for other in self.me.others() {
            read.extend(self.contribute(plan, other, (shares.of_rank(other), results)));
        }
        if let Some(kept) = kept {
            for piece in self.pieces(0..own.end - own.start) {
                let elements = piece.end - piece.start;
                let from = self.elements.block(self.elements.at(kept, piece.start), elements);
                if let Some(to) = self.output(piece.start, elements) {
                    plan.copy(from, to, &read);
                }
            }
        }
    }

    /// Combines this rank's share, and sends the results, or keeps them. Returns the last steps.
    fn combine_own(&self, plan: &mut Plan, own: &Range<u64>, (results, kept): (Results, Option<Place>)) -> Vec<StepId> {
        let Me { rank, size } = self.me;
        let mut lanes = Lanes::default();
        let mut ends = Vec::new();
        for (number, range) in self.pieces(own.clone()).enumerate() {
            let (elements, message) = (range.end - range.start, 2 * number as u32);
            ends.extend(lanes.part(plan, |plan| {
                let mut slots: Vec<Place> = (0..size).map(|_| self.elements.slot(plan, elements)).collect();
                if let Some((kept, last)) = kept.zip(slots.last_mut()) {
                    *last = self.elements.at(kept, range.start - own.start);
                }
                let mut arrived = vec![plan.copy(self.input(&range), self.slot(&slots, rank, elements), &[])];
                for other in self.me.others() {
                    arrived.push(plan.receive(other, message, self.slot(&slots, other, elements), &[]));
                }
                let result = self.slot(&slots, size - 1, elements);
                let combined = plan.fold(slots, elements, &arrived);
                self.deliver(plan, (&range, own.start), result, (results, message + 1), combined);
            }));
        }
        ends
    }

    fn slot(&self, slots: &[Place], rank: u32, elements: u64) -> Block {
        self.elements.block(slots[rank as usize], elements)
    }

    /// Brings a result to the ranks that get it.
    fn deliver(
        &self,
        plan: &mut Plan,
        (range, share): (&Range<u64>, u64),
        result: Block,
        (results, message): (Results, u32),
        combined: StepId,
    ) {
        let (mine, others) = match results {
            Results::Scattered if self.ends.in_place() => (None, None),
            Results::Scattered => (Some(range.start - share), None),
            Results::Everywhere => (Some(range.start), Some(0..self.me.size)),
            Results::AtRoot(root) => ((root == self.me.rank).then_some(range.start), Some(root..root + 1)),
        };
        for other in others.into_iter().flatten().filter(|&other| other != self.me.rank) {
            plan.send(other, message, result, &[combined]);
        }
        if let Some(to) = mine.and_then(|first| self.output(first, range.end - range.start)) {
            plan.copy(result, to, &[combined]);
        }
    }

    /// Sends another rank its share of the input, and receives the results of that share. Returns the steps that send.
    fn contribute(&self, plan: &mut Plan, other: u32, (share, results): (Range<u64>, Results)) -> Vec<StepId> {
        let mut window = Window::new(SENDS);
        let mut sends = Vec::new();
        for (number, range) in self.pieces(share).enumerate() {
            let message = 2 * number as u32;
            let before: Vec<StepId> = window.next().into_iter().collect();
            let sent = plan.send(other, message, self.input(&range), &before);
            window.push(sent);
            sends.push(sent);
            let output = self.output(range.start, range.end - range.start);
            let receives = match results {
                Results::Scattered => false,
                Results::Everywhere => true,
                Results::AtRoot(root) => root == self.me.rank,
            };
            if let Some(to) = output.filter(|_| receives) {
                // The result does not come before. In place, it overwrites what is sent.
                plan.receive(other, message + 1, to, &[sent]);
            }
        }
        sends
    }

    /// Adds an inclusive or exclusive scan of so many elements: each rank receives what the ranks before it have combined,
    /// and sends that combined with its own. The first rank of an exclusive scan has no output.
    pub(crate) fn scan(&self, plan: &mut Plan, count: u64, exclusive: bool) {
        let Me { rank, size } = self.me;
        let (first, last) = (rank == 0, rank + 1 == size);
        let mut lanes = Lanes::default();
        for (number, range) in self.pieces(0..count).enumerate() {
            let (elements, message) = (range.end - range.start, number as u32);
            let (input, output) = (self.input(&range), self.output(range.start, range.end - range.start));
            let output = output.filter(|_| !(exclusive && first));
            lanes.part(plan, |plan| {
                if first {
                    if !last {
                        plan.send(1, message, input, &[]);
                    }
                    if let Some(to) = output.filter(|_| !self.ends.in_place()) {
                        plan.copy(input, to, &[]);
                    }
                    return;
                }
                if let Some(to) = output.filter(|_| exclusive && last) {
                    plan.receive(rank - 1, message, to, &[]);
                    return;
                }
                let slots = [self.elements.slot(plan, elements), self.elements.slot(plan, elements)];
                let (before, with_own) = (self.slot(&slots, 0, elements), self.slot(&slots, 1, elements));
                let arrived = plan.receive(rank - 1, message, before, &[]);
                let brought = plan.copy(input, with_own, &[]);
                let combined = plan.fold(slots, elements, &[arrived, brought]);
                if !last {
                    plan.send(rank + 1, message, with_own, &[combined]);
                }
                if let Some(to) = output {
                    plan.copy(if exclusive { before } else { with_own }, to, &[combined]);
                }
            });
        }
    }

    /// Adds the combination of input and output, in this order, at the output. No other rank takes part.
    pub(crate) fn local(&self, plan: &mut Plan, count: u64) {
        let mut lanes = Lanes::default();
        for range in self.pieces(0..count) {
            let elements = range.end - range.start;
            let Some(output) = self.output(range.start, elements) else { return };
            lanes.part(plan, |plan| {
                let slots = [self.elements.slot(plan, elements), self.elements.slot(plan, elements)];
                let result = self.slot(&slots, 1, elements);
                let brought = [
                    plan.copy(self.input(&range), self.slot(&slots, 0, elements), &[]),
                    plan.copy(output, result, &[]),
                ];
                let combined = plan.fold(slots, elements, &brought);
                plan.copy(result, output, &[combined]);
            });
        }
    }
}
