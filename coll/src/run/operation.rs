//! An operation under way: which steps of its plan wait, run, and have ended.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cableway_pml::{Communicator, Engine};

use super::memory::Block;
use super::scene::Scene;
use super::shared::Collectives;
use super::site::Site;
use super::steps::Active;
use crate::error::Error;
use crate::plan::{Plan, StepId};
use crate::slots::Turn;

/// Polls without an event after which a rank that nothing wakes sleeps between polls, and how long.
const PATIENCE: u64 = 20_000;
const NAP: Duration = Duration::from_micros(20);

/// A collective operation under way in this process. Dropping it waits until it has finished.
#[must_use = "dropping it waits for the operation"]
pub struct Operation {
    shared: Arc<Collectives>,
    on: Arc<Communicator>,
    /// Where it works, but for the address of its scratch memory.
    site: Site,
    /// For an exchange through slots.
    turn: Option<Turn>,
    /// Dropped with the operation, unless messages still use it.
    resources: ManuallyDrop<Resources>,
    /// The number of predecessors that each step waits for.
    waiting: Vec<u32>,
    ready: VecDeque<StepId>,
    ended: Vec<bool>,
    /// The steps that have not ended.
    left: usize,
    /// The program has given it up.
    given_up: bool,
    /// Set once a receive is given up.
    interrupted: Option<Arc<AtomicBool>>,
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
    /// A step has failed. Messages under way, and those without data that take the place of others, must end.
    Failing(Error),
    Ended(Result<(), Error>),
}

impl Operation {
    pub(super) fn new(
        shared: Arc<Collectives>,
        on: Arc<Communicator>,
        site: Site,
        (plan, turn): (Plan, Option<Turn>),
        scratch: Result<Block, Error>,
    ) -> Operation {
        let (scratch, failure) = match scratch {
            Ok(scratch) => (scratch, None),
            Err(error) => (Block::None, Some(error)),
        };
        let waiting: Vec<u32> = plan.steps.iter().map(|step| step.predecessors).collect();
        let ready = (0..).zip(&waiting).filter(|step| *step.1 == 0).map(|step| step.0).collect();
        let left = waiting.len();
        let ended = vec![false; left];
        let resources = ManuallyDrop::new(Resources { plan, scratch, active: Vec::new() });
        let state = if left == 0 { State::Ended(Ok(())) } else { State::New };
        let mut operation = Operation {
            shared,
            on,
            site,
            turn,
            resources,
            waiting,
            ready,
            ended,
            left,
            given_up: false,
            interrupted: None,
            state,
        };
        if let Some(error) = failure {
            operation.fail(error);
        }
        operation
    }

    /// Makes progress. Returns whether the operation has finished in this process: its memory belongs to the program
    /// again. Never blocks, and must be called beside the engine's progress.
    ///
    /// # Errors
    /// A message failed, for example because a process died, or a device refused. The content of the output is
    /// undefined. Processes that need data of this one get an error, too. Nobody uses the memory any more.
    pub fn poll(&mut self) -> Result<bool, Error> {
        if matches!(self.state, State::New)
            && let Err(error) = self.begin()
        {
            self.fail(error);
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
            // Only in a forked child does it stop to wait.
            _ => Err(cableway_pml::Error::Forked.into()),
        }
    }

    /// Makes the operation fail in all processes. It ends when [`poll`](Self::poll) says so, without a wait for messages
    /// that other processes have not begun to send, unless such a process may access device memory of the call.
    pub fn give_up(&mut self) {
        if matches!(self.state, State::New | State::Running(_)) {
            self.fail(Error::GivenUp);
        }
        self.given_up = true;
        self.cancel();
    }

    /// Has a flag set if the operation gives up a receive.
    pub(super) fn note_interruption(&mut self, flag: Arc<AtomicBool>) {
        self.interrupted = Some(flag);
    }

    /// Cancels receives that no message has matched.
    fn cancel(&self) {
        if let Some(interrupted) = self.interrupted.as_ref().filter(|_| !self.resources.active.is_empty()) {
            interrupted.store(true, Ordering::Release);
        }
        self.resources.active.iter().for_each(|active| active.cancel(&self.shared.engine));
    }

    /// Returns the engine that moves the messages.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    fn block(&mut self) {
        let shared = self.shared.clone();
        let mut idle = 0_u64;
        shared.engine.wait_until(|| {
            loop {
                let ended = !matches!(self.poll(), Ok(false));
                // A device gives no sign that would wake a sleeping process.
                let on_device =
                    matches!(self.state, State::New) || self.resources.active.iter().any(Active::is_on_device);
                if ended || !on_device || shared.engine.is_forked() {
                    return ended;
                }
                idle = if shared.engine.progress() == 0 { idle + 1 } else { 0 };
                shared.engine.waited(idle);
                // Another rank may need this processor.
                if idle > PATIENCE {
                    std::thread::sleep(NAP);
                } else if idle > shared.engine.spins() {
                    std::thread::yield_now();
                }
            }
        });
    }

    /// Finds out where the scratch memory is.
    fn begin(&mut self) -> Result<(), Error> {
        if let Some(scratch) = self.resources.scratch.address(&self.shared.pools)? {
            self.state = State::Running(Site { scratch, ..self.site });
        }
        Ok(())
    }

    /// Starts steps that are ready, and ends those that are done, until nothing changes.
    fn advance(&mut self) -> Result<(), Error> {
        let &State::Running(site) = &self.state else { return Ok(()) };
        loop {
            let Resources { plan, active, .. } = &mut *self.resources;
            let scene = Scene { shared: &self.shared, on: &self.on, site, plan, turn: self.turn.as_ref() };
            while let Some(id) = self.ready.pop_front() {
                let last = active.len();
                active.push(Active::new(id));
                if let Err(error) = site.start(&scene, &mut active[last]) {
                    if !active[last].has_messages() {
                        active.pop();
                    }
                    return Err(error);
                }
            }
            let before = self.left;
            let mut at = 0;
            while at < active.len() {
                if !active[at].poll(&scene)? {
                    at += 1;
                    continue;
                }
                let ended = active.swap_remove(at).step;
                self.left -= 1;
                self.ended[ended as usize] = true;
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

    /// Begins to end the operation. Other processes still send what they owe to this one, and wait for its messages. Each
    /// gets one without data for each that it has not got, so that it fails as well and no message is left over.
    fn fail(&mut self, error: Error) {
        let Resources { plan, active, .. } = &mut *self.resources;
        let scene = Scene { shared: &self.shared, on: &self.on, site: self.site, plan, turn: self.turn.as_ref() };
        active.iter_mut().for_each(|active| active.fail(&scene, &error));
        let started = |id: StepId| active.iter().any(|active| active.step == id);
        let open: Vec<StepId> =
            (0..).zip(&self.ended).filter(|&(id, ended)| !ended && !started(id)).map(|step| step.0).collect();
        for id in open {
            active.extend(Active::exchange_nothing(&scene, id, &error));
        }
        self.state = State::Failing(error);
    }

    /// Ends the operation after a failure, once nobody uses its memory. If a process has died, others may never begin the
    /// operation, so this one does not wait for their messages. Its own messages to them are refused.
    fn wind_up(&mut self) {
        let Resources { plan, active, .. } = &mut *self.resources;
        let scene = Scene { shared: &self.shared, on: &self.on, site: self.site, plan, turn: self.turn.as_ref() };
        let mut told = None;
        active.retain_mut(|active| {
            // Their own failures add nothing to the first one.
            let is_over = active.is_over(&scene);
            told = told.or_else(|| active.told_of());
            !is_over
        });
        if let Some(failed) = told {
            self.shared.engine.note_told_of_failure(&self.on, failed);
        }
        if self.given_up || self.check_members().is_err() {
            self.cancel();
        }
        if self.resources.active.is_empty()
            && let State::Failing(error) = std::mem::replace(&mut self.state, State::Ended(Ok(())))
        {
            // One that was told of a failure names the process that died, if it knows by now.
            let error = match error {
                Error::OtherLength { .. }
                | Error::OtherFailed { .. }
                | Error::Message(cableway_pml::Error::PeerAborted { .. }) => {
                    self.check_members().err().unwrap_or(error)
                }
                error => error,
            };
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
        if !resources.active.is_empty() {
            // In a forked child they never end.
            std::mem::forget(resources);
        }
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation").field("steps_left", &self.left).finish_non_exhaustive()
    }
}
