//! Operands of reductions, brought to where a rank works.

use crate::plan::operands::Operands;
use crate::plan::{Place, Plan, StepId};

type Steps = Vec<StepId>;

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
