//! Plans: a collective operation as steps that depend on each other.
//!
//! A plan holds what one rank does. It is pure data: an algorithm builds it from the call's arguments, and
//! [`run`](crate::run) executes it. All ranks build their plans from values that MPI makes equal on all of them (the
//! operation, the number of bytes, the root), so their messages match.
//!
//! A message is named by its number. Two messages of one plan from one rank to another have different numbers, so they
//! may pass each other.

pub(crate) mod alltoall;
mod block;
pub(crate) mod broadcast;
pub(crate) mod direct;
pub(crate) mod doubling;
pub(crate) mod exchange;
pub(crate) mod gather;
pub(crate) mod halving;
pub(crate) mod hierarchy;
mod known;
mod lanes;
pub(crate) mod neighbors;
mod nodes;
pub(crate) mod one_shot;
pub(crate) mod operands;
pub(crate) mod pieces;
pub(crate) mod reduction;
pub(crate) mod ring;
pub(crate) mod scan;
pub(crate) mod shares;
#[cfg(test)]
mod simulated;
pub(crate) mod tree;
mod window;

use cableway_common_cuda::{Element, ReduceOperation};
use cableway_datatype::Layout;
use smallvec::SmallVec;

use crate::call::Memory;
use crate::function::Function;

pub(crate) use block::{Block, Kind, Place};
pub(crate) use known::Known;
pub(crate) use nodes::Nodes;
pub(crate) use window::Window;

/// The process that builds a plan: its rank, and the number of ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Me {
    pub(crate) rank: u32,
    pub(crate) size: u32,
}

impl Me {
    /// Returns the other ranks, beginning with the next one. Ranks that start together do not all send to rank 0 first.
    pub(crate) fn others(self) -> impl DoubleEndedIterator<Item = u32> {
        (1..self.size).map(move |distance| (self.rank + distance) % self.size)
    }
}

/// The number of a step within its plan.
pub(crate) type StepId = u32;

/// What a step does.
#[derive(Debug)]
pub(crate) enum Work {
    Send {
        to: u32,
        message: u32,
        block: Block,
    },
    Receive {
        from: u32,
        message: u32,
        block: Block,
    },
    /// Copies a block to another one of the same packed size.
    Copy {
        from: Block,
        to: Block,
    },
    /// Reduces elements at the sources in their order, by the plan's operation.
    Reduce {
        destination: Place,
        sources: SmallVec<[Place; 4]>,
        elements: u64,
    },
    /// Combines each slot with the next one, by the plan's function. The result is in the last one, and the others but the
    /// first are overwritten, too.
    Fold {
        slots: SmallVec<[Place; 4]>,
        elements: u64,
    },
    /// Reduces together with this step of all other ranks.
    Exchange(Box<exchange::Exchange>),
    /// The same through slots of host memory.
    OneShot(Box<one_shot::OneShot>),
}

/// A step, and the steps that wait for it.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) work: Work,
    /// The number of steps that must end first.
    pub(crate) predecessors: u32,
    pub(crate) successors: SmallVec<[StepId; 2]>,
}

/// The operation and the element type of a plan's reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Combine {
    pub(crate) operation: ReduceOperation,
    pub(crate) element: Element,
}

/// What one rank does in a collective operation. Steps come after those that they wait for.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) types: Vec<Layout>,
    /// The bytes of scratch memory.
    pub(crate) scratch: u64,
    /// Memory of the call.
    pub(crate) known: Known,
    /// For plans with reductions.
    pub(crate) combine: Option<Combine>,
    /// For plans with folds.
    pub(crate) function: Option<Function>,
}

/// The number of sources of one reduction, which is that of the devices' kernels.
const MOST_SOURCES: usize = 16;

/// Scratch blocks begin at multiples of this, so that kernels read them in wide units.
const SCRATCH_ALIGNMENT: u64 = 256;

impl Plan {
    pub(crate) fn send(&mut self, to: u32, message: u32, block: Block, after: &[StepId]) -> StepId {
        self.push(Work::Send { to, message, block }, after)
    }

    pub(crate) fn receive(&mut self, from: u32, message: u32, block: Block, after: &[StepId]) -> StepId {
        self.push(Work::Receive { from, message, block }, after)
    }

    pub(crate) fn copy(&mut self, from: Block, to: Block, after: &[StepId]) -> StepId {
        self.push(Work::Copy { from, to }, after)
    }

    /// Adds a reduction of elements at several sources, in their order. If there are more sources than one reduction
    /// takes, results are collected in one of the first sources, which must be scratch memory.
    pub(crate) fn reduce(
        &mut self,
        destination: Place,
        sources: impl IntoIterator<Item = Place>,
        elements: u64,
        after: &[StepId],
    ) -> StepId {
        let mut sources: SmallVec<[Place; 4]> = sources.into_iter().collect();
        let mut after: SmallVec<[StepId; 4]> = after.into();
        while sources.len() > MOST_SOURCES {
            let (first, rest) = sources.split_at(MOST_SOURCES);
            let scratch = first.iter().find(|place| matches!(place, Place::Scratch(_)));
            let collected = scratch.copied().unwrap_or(destination);
            let (first, rest) = (first.into(), rest.to_vec());
            let reduced = self.push(Work::Reduce { destination: collected, sources: first, elements }, &after);
            sources = std::iter::once(collected).chain(rest).collect();
            after = smallvec::smallvec![reduced];
        }
        self.push(Work::Reduce { destination, sources, elements }, &after)
    }

    /// Adds a combination of elements in slots of host memory, in their order.
    pub(crate) fn fold(&mut self, slots: impl IntoIterator<Item = Place>, elements: u64, after: &[StepId]) -> StepId {
        self.push(Work::Fold { slots: slots.into_iter().collect(), elements }, after)
    }

    /// Adds an exchange. Returns the step after which the output is complete and nobody uses the input.
    pub(crate) fn exchange(&mut self, exchange: exchange::Exchange, after: &[StepId]) -> StepId {
        self.push(Work::Exchange(Box::new(exchange)), after)
    }

    /// Adds an exchange through slots. Returns the step after which the output is complete.
    pub(crate) fn one_shot(&mut self, shot: one_shot::OneShot, after: &[StepId]) -> StepId {
        self.push(Work::OneShot(Box::new(shot)), after)
    }

    /// Checks whether the plan exchanges data through slots.
    pub(crate) fn has_one_shot(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.work, Work::OneShot(_)))
    }

    /// Takes scratch memory.
    pub(crate) fn scratch(&mut self, bytes: u64) -> Place {
        let place = Place::Scratch(self.scratch);
        self.scratch += bytes.next_multiple_of(SCRATCH_ALIGNMENT);
        place
    }

    /// Describes memory of the call.
    pub(crate) fn block(&mut self, memory: &Memory<'_>) -> Block {
        let place = Place::User(memory.address as usize);
        match memory.layout {
            None => Block::bytes(place, memory.count),
            Some(layout) => Block { place, count: memory.count, kind: self.kind(layout) },
        }
    }

    /// Returns the kind of a layout's elements.
    pub(crate) fn kind(&mut self, layout: &Layout) -> Kind {
        // Most calls have one type, and blocks of one type follow each other.
        if self.types.last() != Some(layout) {
            self.types.push(layout.clone());
        }
        Kind::Typed(self.types.len() - 1)
    }

    /// Returns the bytes of a block's data.
    pub(crate) fn packed_len(&self, block: &Block) -> u64 {
        match block.kind {
            Kind::Bytes => block.count,
            Kind::Typed(index) => self.types[index].packed_size(block.count).unwrap_or(u64::MAX),
        }
    }

    fn push(&mut self, work: Work, after: &[StepId]) -> StepId {
        let id = self.steps.len() as StepId;
        for &before in after {
            self.steps[before as usize].successors.push(id);
        }
        self.steps.push(Step { work, predecessors: after.len() as u32, successors: SmallVec::new() });
        id
    }
}
