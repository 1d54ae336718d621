//! The part of an operation that kernels execute.

use std::time::Duration;

use super::job::Job;
use super::launch::Work;
use super::line::Track;
use super::loaded::Kernels;
use super::silence::Silence;
use crate::context::Context;
use crate::driver::{Event, Failure, Stream};
use crate::order::{DefaultStream, destroy_event};

/// The jobs of one operation.
#[derive(Default)]
pub(crate) struct Jobs {
    running: Vec<Job>,
    /// Where they were launched.
    track: Track,
    /// Present while there are jobs.
    silence: Option<Silence>,
    revoked: bool,
    /// The event in the default stream for which the jobs wait. Copy engines that replace them wait for it, too.
    order: Option<Event>,
    ordered: bool,
}

impl Jobs {
    /// Sets where jobs are launched, before the first one is.
    pub(crate) fn set_track(&mut self, track: Track) {
        self.track = track;
    }

    /// Launches a job. Returns false if that is impossible now. With `after`, all jobs wait for the default stream's
    /// work. The context is current.
    pub(crate) fn launch(
        &mut self,
        context: &Context,
        kernels: &Kernels,
        work: &mut Work,
        after: Option<&DefaultStream>,
    ) -> Result<bool, Failure> {
        let first = after.filter(|_| self.running.is_empty());
        let job = kernels.launch(work, self.track, |stream| match first {
            Some(default_stream) => self.wait(context, default_stream, stream),
            None => Ok(()),
        })?;
        let Some(job) = job else { return Ok(false) };
        if self.running.is_empty() {
            self.silence = Some(Silence::new());
        }
        self.running.push(job);
        Ok(true)
    }

    fn wait(&mut self, context: &Context, default_stream: &DefaultStream, stream: &Stream) -> Result<(), Failure> {
        let event = match &self.order {
            Some(event) => event,
            None => self.order.insert(context.driver.new_event()?),
        };
        self.ordered = default_stream.record(event)?;
        self.order(context, stream)
    }

    /// Makes a stream wait for what the jobs wait for. The context is current.
    pub(crate) fn order(&self, context: &Context, stream: &Stream) -> Result<(), Failure> {
        match self.order.as_ref().filter(|_| self.ordered) {
            Some(event) => context.driver.wait(stream, event),
            None => Ok(()),
        }
    }

    /// Checks whether there are no jobs.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.silence.is_none()
    }

    /// Checks whether none of the jobs accesses memory any more.
    pub(crate) fn look(&mut self, context: &Context, kernels: &Kernels) -> Result<bool, Failure> {
        let revoked = self.revoked;
        for job in self.running.extract_if(.., |job| if revoked { job.quiet() } else { job.ended() }) {
            kernels.give_back(job);
        }
        let Some(silence) = self.silence.as_mut().filter(|_| !self.running.is_empty()) else {
            (self.silence, self.revoked, self.ordered) = (None, false, false);
            return Ok(true);
        };
        if silence.is_long() {
            let _scope = context.enter()?;
            kernels.check()?;
        }
        Ok(false)
    }

    /// Checks whether a job has waited for room for too long.
    pub(crate) fn are_late(&self, kernels: &Kernels, patience: Duration) -> bool {
        let late = self.silence.as_ref().is_some_and(|silence| silence.since_launch() > patience);
        late && !self.revoked && self.running.iter().any(Job::waits) && kernels.stalled(self.track, patience)
    }

    /// Revokes the jobs.
    pub(crate) fn revoke(&mut self) {
        self.revoked = true;
        for job in &self.running {
            job.revoke();
        }
    }

    /// Revokes the jobs and waits until they access no memory, which belongs to the caller after a failure.
    pub(crate) fn withdraw(&mut self, context: &Context, kernels: &Kernels) {
        self.revoke();
        // Jobs that failed, as the driver reports, give no more signs.
        while let Ok(false) = self.look(context, kernels) {
            std::thread::yield_now();
        }
        for job in self.running.drain(..) {
            kernels.give_back(job);
        }
        *self = Jobs { order: self.order.take(), ..Jobs::default() };
    }

    /// Destroys the event. The context is current.
    pub(crate) fn destroy(&mut self, context: &Context) {
        if let Some(event) = self.order.take() {
            destroy_event(context, event);
        }
    }
}
