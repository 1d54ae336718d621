//! An operation under way: which steps of its plan wait, run, and have ended.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cableway_pml::{Communicator, Engine};

use super::Collectives;
use super::memory::Block;
use super::steps::{Active, Site};
use crate::error::Error;
use crate::placing::Working;
use crate::plan::{Plan, StepId};

/// A collective operation under way in this process. Dropping it waits until it has finished.
#[must_use = "dropping it waits for the operation"]
pub struct Operation {
    shared: Arc<Collectives>,
    on: Arc<Communicator>,
    /// The tag of the first message.
    first_tag: i32,
    working: Working,
    /// Dropped by [`finish`](Self::finish), unless messages still use it.
    resources: ManuallyDrop<Resources>,
    /// The number of predecessors that each step waits for.
    waiting: Vec<u32>,
    ready: VecDeque<StepId>,
    /// The steps that have not ended.
    left: usize,
    state: State,
}

/// What messages under way use.
struct Resources {
    plan: Plan,
    scratch: Block,
    active: Vec<Active>,
}

enum State {
    /// Waits for scratch memory.
    New,
    Running(Site),
    /// A step has failed. Those under way must end.
    Failing(Error),
    Ended(Result<(), Error>),
}

impl Operation {
    pub(super) fn new(
        shared: Arc<Collectives>,
        on: Arc<Communicator>,
        first_tag: i32,
        (plan, working): (Plan, Working),
        scratch: Block,
    ) -> Operation {
        let waiting: Vec<u32> = plan.steps.iter().map(|step| step.predecessors).collect();
        let ready = (0..).zip(&waiting).filter(|step| *step.1 == 0).map(|step| step.0).collect();
        let left = waiting.len();
        let resources = ManuallyDrop::new(Resources { plan, scratch, active: Vec::new() });
        let state = if left == 0 { State::Ended(Ok(())) } else { State::New };
        Operation { shared, on, first_tag, working, resources, waiting, ready, left, state }
    }

    /// Makes progress. Returns whether the operation has finished in this process: its memory belongs to the program
    /// again. Never blocks, and must be called beside the engine's progress.
    ///
    /// # Errors
    /// A message failed, for example because a process died, or a device refused. The content of the output is
    /// undefined. Messages that other processes do not receive may still read the input.
    pub fn poll(&mut self) -> Result<bool, Error> {
        if matches!(self.state, State::New)
            && let Err(error) = self.begin()
        {
            self.state = State::Ended(Err(error));
        }
        if let State::Running(_) = self.state
            && let Err(error) = self.advance()
        {
            self.fail(error);
        }
        if let State::Failing(_) = self.state {
            self.wind_up();
        }
        match &self.state {
            State::Ended(result) => result.clone().map(|()| true),
            _ => Ok(false),
        }
    }

    /// Waits until the operation has finished.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn wait(mut self) -> Result<(), Error> {
        self.block();
        match std::mem::replace(&mut self.state, State::Ended(Ok(()))) {
            State::Ended(result) => result,
            _ => Ok(()),
        }
    }

    /// Returns the engine that moves the messages.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    fn block(&mut self) {
        let shared = self.shared.clone();
        shared.engine.wait_until(|| {
            loop {
                let ended = !matches!(self.poll(), Ok(false));
                // A device gives no sign that would wake a sleeping process.
                if ended || !self.resources.active.iter().any(Active::is_reduction) {
                    return ended;
                }
                shared.engine.progress();
            }
        });
    }

    /// Finds out where the scratch memory is.
    fn begin(&mut self) -> Result<(), Error> {
        if let Some(scratch) = self.resources.scratch.address(&self.shared)? {
            self.state = State::Running(Site { scratch, working: self.working, first_tag: self.first_tag });
        }
        Ok(())
    }

    /// Starts steps that are ready, and ends those that are done, until nothing changes.
    fn advance(&mut self) -> Result<(), Error> {
        let State::Running(site) = &self.state else { return Ok(()) };
        loop {
            let Resources { plan, active, .. } = &mut *self.resources;
            while let Some(id) = self.ready.pop_front() {
                let last = active.len();
                active.push(Active::new(id));
                site.start(&self.shared, &self.on, plan, &mut active[last])?;
            }
            let before = self.left;
            let mut at = 0;
            while at < active.len() {
                if !active[at].poll()? {
                    at += 1;
                    continue;
                }
                let ended = active.swap_remove(at).step;
                self.left -= 1;
                for &next in &plan.steps[ended as usize].successors {
                    self.waiting[next as usize] -= 1;
                    if self.waiting[next as usize] == 0 {
                        self.ready.push_back(next);
                    }
                }
            }
            if self.left == 0 {
                self.state = State::Ended(Ok(()));
                return Ok(());
            }
            if self.left == before || self.ready.is_empty() {
                return self.check_members();
            }
        }
    }

    /// A process that died may leave others waiting for a message of a process that gave up.
    fn check_members(&self) -> Result<(), Error> {
        Ok(self.shared.engine.check_members(&self.on)?)
    }

    fn fail(&mut self, error: Error) {
        for active in &self.resources.active {
            active.cancel(&self.shared.engine);
        }
        self.state = State::Failing(error);
    }

    /// Ends the operation after a failure, once no peer writes to its memory.
    fn wind_up(&mut self) {
        // Their own failures add nothing to the first one.
        self.resources.active.retain_mut(|active| matches!(active.poll(), Ok(false)));
        if self.resources.active.iter().all(Active::may_be_left)
            && let State::Failing(error) = std::mem::replace(&mut self.state, State::Ended(Ok(())))
        {
            self.state = State::Ended(Err(error));
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !matches!(self.state, State::Ended(_)) {
            self.block();
        }
        // SAFETY: this is the only place that takes it, and the operation is not used afterwards.
        let resources = unsafe { ManuallyDrop::take(&mut self.resources) };
        if resources.active.is_empty() {
            resources.scratch.give_back(&self.shared);
        } else {
            // After a failure, a peer may never receive what was sent to it. Its transfer reads the memory for ever.
            std::mem::forget(resources);
        }
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation").field("steps_left", &self.left).finish_non_exhaustive()
    }
}
