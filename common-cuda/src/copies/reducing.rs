//! Reductions by kernels in one context. Unlike copies they have no other mechanism: where no kernel can run, the caller
//! reduces on the host.

use std::sync::Arc;

use super::mechanism::Entry;
use super::operation::CopyQueue;
use crate::copy::Order;
use crate::driver::Failure;
use crate::error::DeviceError;
use crate::kernels::{Class, Folding, Job, Silence};

impl CopyQueue {
    /// Checks whether kernels of a class reduce in the context. Loads them if nobody has.
    pub(crate) fn can_reduce(&self, class: Class) -> bool {
        let workspace = &self.workspace;
        workspace.reducers.are_loaded(class)
            || workspace.context.enter().is_ok_and(|_scope| workspace.reducers.load(class))
    }

    /// Checks the same, but loads them only if the default stream is idle.
    pub(crate) fn can_reduce_now(&self, class: Class) -> bool {
        let workspace = &self.workspace;
        if workspace.reducers.are_loaded(class) {
            return true;
        }
        let Ok(_scope) = workspace.context.enter() else { return false };
        matches!(workspace.default_stream.is_idle(), Ok(Some(true))) && workspace.reducers.load(class)
    }

    /// Loads the kernels of all classes, if the default stream is idle.
    pub(crate) fn load_reductions(&self) {
        let workspace = &self.workspace;
        let Ok(_scope) = workspace.context.enter() else { return };
        if matches!(workspace.default_stream.is_idle(), Ok(Some(true))) {
            for class in Class::ALL {
                workspace.reducers.load(class);
            }
        }
    }

    /// Begins a reduction. Returns `None` if no kernel can make it now.
    ///
    /// # Safety
    /// As [`Reducers::launch`](crate::kernels::Reducers::launch), until the run is over.
    pub(crate) unsafe fn reduce(
        self: &Arc<Self>,
        class: Class,
        order: Order,
        mut folding: Folding,
    ) -> Result<Option<ReductionRun>, DeviceError> {
        let workspace = &self.workspace;
        let mut entry = Entry::new(workspace, order);
        let job = entry.enter().and_then(|()| {
            let first = |stream: &_| match workspace.waits(order) {
                true => workspace.default_stream.precede(stream),
                false => Ok(()),
            };
            // SAFETY: the caller's promise.
            unsafe { workspace.reducers.launch(class, &mut folding, first) }
        });
        match job {
            Ok(job) => Ok(job.map(|job| ReductionRun {
                running: Some(Running { queue: self.clone(), job, silence: Silence::new() }),
                late: false,
            })),
            Err(failure) => Err(self.reduction_error(failure)),
        }
    }

    fn reduction_error(&self, failure: Failure) -> DeviceError {
        let context = &self.workspace.context;
        context.error(failure, format!("a reduction in context {}", context.id))
    }
}

/// A reduction under way. Dropping this waits for it; after that the memory belongs to the caller again.
#[must_use = "dropping it waits for the reduction"]
pub struct ReductionRun {
    running: Option<Running>,
    late: bool,
}

struct Running {
    queue: Arc<CopyQueue>,
    job: Job,
    silence: Silence,
}

impl ReductionRun {
    /// A run that is over.
    pub(crate) const DONE: ReductionRun = ReductionRun { running: None, late: false };

    /// Checks whether the reduction is done. Never blocks.
    ///
    /// # Errors
    /// The reduction failed, or its context was destroyed. The content of the destination is undefined.
    pub fn poll(&mut self) -> Result<bool, DeviceError> {
        let Some(running) = &mut self.running else { return Ok(true) };
        let result = running.look();
        if !matches!(result, Ok(false))
            && let Some(Running { queue, job, .. }) = self.running.take()
        {
            self.late = job.was_late();
            queue.workspace.reducers.give_back(job);
            return result.map_err(|failure| queue.reduction_error(failure));
        }
        Ok(false)
    }

    /// Checks whether an exchange, which is done, waited in vain for other ranks, so that nothing is reduced.
    pub fn was_late(&self) -> bool {
        self.late
    }

    /// Waits until the reduction is done.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn wait(mut self) -> Result<(), DeviceError> {
        self.block()
    }

    fn block(&mut self) -> Result<(), DeviceError> {
        while !self.poll()? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Running {
    fn look(&mut self) -> Result<bool, Failure> {
        if self.job.ended() {
            return Ok(true);
        }
        if self.silence.is_long() {
            let workspace = &self.queue.workspace;
            let _scope = workspace.context.enter()?;
            workspace.reducers.check()?;
        }
        Ok(false)
    }
}

impl Drop for ReductionRun {
    fn drop(&mut self) {
        // The memory is free after a failure, too.
        let _ = self.block();
    }
}

impl std::fmt::Debug for ReductionRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReductionRun").field("running", &self.running.is_some()).finish()
    }
}
