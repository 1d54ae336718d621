//! Lanes: independent parts of the data that go through an algorithm's phases one behind the other.

use super::{Me, Plan, StepId, Work};

/// The parts of the data that are under way at the same time.
const DEPTH: usize = 4;

/// The lanes of one plan. Each part takes the lane of the part that came [`DEPTH`] before, with its scratch memory, after
/// that has ended.
#[derive(Default)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    next: usize,
}

struct Lane {
    /// Where its scratch memory begins.
    scratch: u64,
    /// The last steps of the part that has it.
    ends: Vec<StepId>,
}

impl Lanes {
    /// Adds the steps of a part. No later part may need more scratch memory than an earlier one. Returns its last steps.
    pub(crate) fn part(&mut self, plan: &mut Plan, add: impl FnOnce(&mut Plan)) -> Vec<StepId> {
        let lane = self.next % DEPTH;
        self.next += 1;
        if lane == self.lanes.len() {
            self.lanes.push(Lane { scratch: plan.scratch, ends: Vec::new() });
        }
        let Lane { scratch, ends } = &mut self.lanes[lane];
        let first = plan.steps.len();
        let top = std::mem::replace(&mut plan.scratch, *scratch);
        add(plan);
        plan.scratch = plan.scratch.max(top);
        plan.begin_after(first, ends);
        *ends = plan.last_steps(first);
        ends.clone()
    }
}

impl Plan {
    /// Adds the steps of an algorithm among some of the ranks, `members`. This rank is one of them. Messages are numbered
    /// from `message` on.
    pub(crate) fn among<R>(
        &mut self,
        (members, rank): (&[u32], u32),
        message: u32,
        add: impl FnOnce(&mut Plan, Me) -> R,
    ) -> R {
        let place = members.iter().position(|&member| member == rank).unwrap_or(0);
        let first = self.steps.len();
        let result = add(self, Me { rank: place as u32, size: members.len() as u32 });
        for step in &mut self.steps[first..] {
            match &mut step.work {
                Work::Send { to: other, message: number, .. } | Work::Receive { from: other, message: number, .. } => {
                    *other = members[*other as usize];
                    *number += message;
                }
                // An exchange is one of all ranks.
                Work::Copy { .. } | Work::Reduce { .. } | Work::Fold { .. } | Work::Exchange(_) | Work::OneShot(_) => {}
            }
        }
        result
    }

    /// Lets the first of the steps from `first` on wait for others: those that wait for none of these steps.
    fn begin_after(&mut self, first: usize, others: &[StepId]) {
        let mut waits = vec![false; self.steps.len() - first];
        for step in &self.steps[first..] {
            step.successors.iter().for_each(|&next| waits[next as usize - first] = true);
        }
        for (id, _) in (first..).zip(waits).filter(|(_, waits)| !waits) {
            self.steps[id].predecessors += others.len() as u32;
            others.iter().for_each(|&other| self.steps[other as usize].successors.push(id as StepId));
        }
    }

    /// Returns the steps from `first` on for which no other waits.
    fn last_steps(&self, first: usize) -> Vec<StepId> {
        let steps = (first as StepId..).zip(&self.steps[first..]);
        steps.filter(|(_, step)| step.successors.is_empty()).map(|step| step.0).collect()
    }
}
