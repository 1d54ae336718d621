//! Bounds the number of steps of one kind that are under way.

use std::collections::VecDeque;

use super::StepId;

/// The last steps of a sequence. A step of it begins after the one that came `limit` steps before has ended.
pub(crate) struct Window {
    limit: usize,
    last: VecDeque<StepId>,
}

impl Window {
    pub(crate) fn new(limit: usize) -> Window {
        Window { limit, last: VecDeque::new() }
    }

    /// Returns the step that the next one of the sequence waits for.
    pub(crate) fn next(&mut self) -> Option<StepId> {
        if self.last.len() < self.limit { None } else { self.last.pop_front() }
    }

    /// Adds a step.
    pub(crate) fn push(&mut self, step: StepId) {
        self.last.push_back(step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_waits_for_the_one_that_leaves_the_window() {
        let mut window = Window::new(2);
        let waits: Vec<_> = (0..5)
            .map(|step| {
                let before = window.next();
                window.push(step);
                before
            })
            .collect();
        assert_eq!(waits, [None, None, Some(0), Some(1), Some(2)]);
    }
}
