//! Reductions, exchanges and moves by kernels in one context, for collectives and accumulates. Unlike copies they have no other
//! mechanism: where no kernel can run, the caller finds another way.

use std::sync::Arc;

use super::mechanism::Entry;
use super::operation::CopyQueue;
use crate::copy::Order;
use crate::driver::Failure;
use crate::error::DeviceError;
use crate::kernels::{Argument, Class, Job, Silence};

impl CopyQueue {
    /// Checks whether kernels of a class can be launched in the context. Loads them if nobody has.
    pub(crate) fn has_class(&self, class: Class) -> bool {
        let workspace = &self.workspace;
        workspace.reducers.are_loaded(class)
            || workspace.context.enter().is_ok_and(|_scope| workspace.reducers.load(class))
    }

    /// Checks the same, but loads them only if the default stream is idle.
    pub(crate) fn has_class_now(&self, class: Class) -> bool {
        let workspace = &self.workspace;
        if let Some(loaded) = workspace.reducers.have_loaded(class) {
            return loaded;
        }
        let Ok(_scope) = workspace.context.enter() else { return false };
        matches!(workspace.default_stream.is_idle(), Ok(Some(true))) && workspace.reducers.load(class)
    }

    /// Loads the kernels of all classes, if the default stream is idle.
    pub(crate) fn load_collectives(&self) {
        let workspace = &self.workspace;
        let Ok(_scope) = workspace.context.enter() else { return };
        if matches!(workspace.default_stream.is_idle(), Ok(Some(true))) {
            for class in Class::ALL {
                workspace.reducers.load(class);
            }
        }
    }

    /// Begins what the kernel of a class does. Returns `None` if no kernel can do it now.
    ///
    /// # Safety
    /// As [`Reducers::launch`](crate::kernels::Reducers::launch), until the run is over.
    pub(crate) unsafe fn begin(
        self: &Arc<Self>,
        class: Class,
        order: Order,
        mut argument: impl Argument,
    ) -> Result<Option<KernelRun>, DeviceError> {
        let workspace = &self.workspace;
        let mut entry = Entry::new(workspace, order);
        let job = entry.enter().and_then(|()| {
            let first = |stream: &_| match workspace.waits(order) {
                true => workspace.default_stream.precede(stream),
                false => Ok(()),
            };
            // SAFETY: the caller's promise.
            unsafe { workspace.reducers.launch(class, &mut argument, first) }
        });
        match job {
            Ok(job) => Ok(job.map(|job| KernelRun {
                running: Some(Running { queue: self.clone(), job, silence: Silence::new() }),
                late: false,
            })),
            Err(failure) => Err(self.kernel_error(failure)),
        }
    }

    fn kernel_error(&self, failure: Failure) -> DeviceError {
        let context = &self.workspace.context;
        context.error(failure, format!("a kernel that reduces, exchanges or moves in context {}", context.id))
    }
}

/// A reduction, an exchange or copies by a kernel, under way. Dropping this waits for it; after that the memory belongs to the
/// caller again.
#[must_use = "dropping it waits for the kernel"]
pub struct KernelRun {
    running: Option<Running>,
    late: bool,
}

struct Running {
    queue: Arc<CopyQueue>,
    job: Job,
    silence: Silence,
}

impl KernelRun {
    /// A run that is over.
    pub(crate) const DONE: KernelRun = KernelRun { running: None, late: false };

    /// Checks whether the kernel is done. Never blocks.
    ///
    /// # Errors
    /// The kernel failed, or its context was destroyed. The content of the destination is undefined.
    pub fn poll(&mut self) -> Result<bool, DeviceError> {
        let Some(running) = &mut self.running else { return Ok(true) };
        let result = running.look();
        if !matches!(result, Ok(false))
            && let Some(Running { queue, job, .. }) = self.running.take()
        {
            self.late = job.was_late();
            queue.workspace.reducers.give_back(job);
            return result.map_err(|failure| queue.kernel_error(failure));
        }
        Ok(false)
    }

    /// Checks whether an exchange, which is done, waited in vain for other ranks, so that nothing is reduced.
    pub fn was_late(&self) -> bool {
        self.late
    }

    /// Waits until the kernel is done.
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

impl Drop for KernelRun {
    fn drop(&mut self) {
        // The memory is free after a failure, too.
        let _ = self.block();
    }
}

impl std::fmt::Debug for KernelRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelRun").field("running", &self.running.is_some()).finish()
    }
}
