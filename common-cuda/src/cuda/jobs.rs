//! The part of an operation that kernels do.

use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUevent_st, CUstream};

use super::context::{Context, Handle};
use super::driver::Driver;
use super::kernels::{Job, Work};
use super::status::Failure;
use super::stream;

/// After so long without a sign of a job, and each time after twice as long, the driver is asked whether it failed.
const SILENCE: Duration = Duration::from_millis(1);

/// The jobs of one operation.
#[derive(Default)]
pub(super) struct Jobs {
    running: Vec<Job>,
    launched: Option<Instant>,
    asked: Duration,
    revoked: bool,
    /// What they wait for, recorded in the default stream: whoever does their work in their stead waits for the same.
    order: Option<Handle<CUevent_st>>,
    ordered: bool,
}

impl Jobs {
    /// Launches one; false if that cannot be now. With `ordered`, all of them wait for the default stream's work. The
    /// context is current.
    pub(super) fn launch(&mut self, context: &Context, work: &mut Work, ordered: bool) -> Result<bool, Failure> {
        let driver = context.driver;
        let first = ordered && self.running.is_empty();
        let job =
            context.kernels.launch(driver, work, |stream| if first { self.wait(context, stream) } else { Ok(()) })?;
        let Some(job) = job else { return Ok(false) };
        if self.running.is_empty() {
            (self.launched, self.asked) = (Some(Instant::now()), SILENCE);
        }
        self.running.push(job);
        Ok(true)
    }

    fn wait(&mut self, context: &Context, stream: CUstream) -> Result<(), Failure> {
        let driver = context.driver;
        let event = match self.order {
            Some(event) => event.0,
            None => self.order.insert(Handle(stream::new_event(driver)?)).0,
        };
        self.ordered = context.streams.record_legacy(driver, event)?;
        self.order(driver, stream)
    }

    /// Has a stream wait for what the jobs wait for. The context is current.
    pub(super) fn order(&self, driver: &Driver, stream: CUstream) -> Result<(), Failure> {
        match self.order.filter(|_| self.ordered) {
            // SAFETY: event and stream are of the current context.
            Some(event) => unsafe { driver.cuStreamWaitEvent(stream, event.0, 0) },
            None => Ok(()),
        }
    }

    /// Whether none of them touches anything any more.
    pub(super) fn look(&mut self, context: &Context) -> Result<bool, Failure> {
        let revoked = self.revoked;
        for job in self.running.extract_if(.., |job| if revoked { job.quiet() } else { job.ended() }) {
            context.kernels.give_back(job);
        }
        let Some(launched) = self.launched.filter(|_| !self.running.is_empty()) else {
            (self.launched, self.revoked, self.ordered) = (None, false, false);
            return Ok(true);
        };
        if launched.elapsed() > self.asked {
            self.asked *= 2;
            let _scope = context.enter()?;
            context.kernels.check(context.driver)?;
        }
        Ok(false)
    }

    /// Whether one has waited for room for too long.
    pub(super) fn are_late(&self, context: &Context) -> bool {
        let patience = context.settings.patience;
        let late = self.launched.is_some_and(|launched| launched.elapsed() > patience);
        late && !self.revoked && self.running.iter().any(Job::waits) && context.kernels.stalled(patience)
    }

    /// From now on nothing more is begun.
    pub(super) fn revoke(&mut self) {
        self.revoked = true;
        for job in &self.running {
            job.revoke();
        }
    }

    /// Revokes them and waits until they touch nothing: what failed must leave the memory to its owner.
    pub(super) fn withdraw(&mut self, context: &Context) {
        self.revoke();
        // Where the driver says that they failed, no more signs of them come.
        while let Ok(false) = self.look(context) {
            std::thread::yield_now();
        }
        for job in self.running.drain(..) {
            context.kernels.give_back(job);
        }
        *self = Jobs { order: self.order, ..Jobs::default() };
    }

    /// Destroys what it holds; the context is current.
    pub(super) fn destroy(&mut self, driver: &Driver) {
        if let Some(event) = self.order.take() {
            stream::destroy_event(driver, event.0);
        }
    }
}
