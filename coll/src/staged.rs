//! Operands of reductions, brought to where a rank works.

use crate::plan::operands::Operands;
use crate::plan::{Place, Plan, StepId};

type Steps = Vec<StepId>;

/// The output of a reduction in this rank, in elements.
#[derive(Clone, Copy)]
pub(crate) enum Output {
    /// So many at the call's output.
    Here(u64),
    /// The same, but the reduction may not write there what it still reads.
    Apart(u64),
    /// None. The rank works in scratch memory for so many.
    Scratch(u64),
}

impl Output {
    /// Returns the number of elements for which the rank needs room.
    pub(crate) fn room(self) -> u64 {
        match self {
            Output::Here(count) | Output::Apart(count) | Output::Scratch(count) => count,
        }
    }
}

/// Operands where the reduction works.
pub(crate) struct Staged {
    pub(crate) operands: Operands,
    /// The steps after which the input is there.
    pub(crate) ready: Steps,
    /// Where the program wants the output, if the reduction works elsewhere.
    pub(crate) result: Option<Place>,
}

impl Staged {
    /// Copies the input of a single rank to the output.
    pub(crate) fn copy_through(&self, plan: &mut Plan, count: u64, ready: &[StepId]) -> Steps {
        if self.operands.in_place() {
            return ready.to_vec();
        }
        let block = |place| self.operands.block(place, count);
        vec![plan.copy(block(self.operands.input(0)), block(self.operands.output(0)), ready)]
    }

    /// Copies the output to where the program wants it.
    pub(crate) fn finish(&self, plan: &mut Plan, count: u64, ends: &[StepId]) {
        if let Some(result) = self.result {
            let from = self.operands.block(self.operands.output(0), count);
            plan.copy(from, self.operands.block(result, count), ends);
        }
    }
}
