//! Operations: copies that are gathered, begun together, and over together.
//!
//! One box serves first as the batch, then as its completion. It then returns to its context's queue with its event, so
//! that later operations allocate nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release};

use parking_lot::Mutex;

use super::by_copier::ByCopier;
use super::by_cpu::ByCpu;
use super::by_engines::ByEngines;
use super::by_kernels::ByKernels;
use super::by_values::ByValues;
use super::gathered::Gathered;
use super::mechanism::{Entry, Mechanism, Progress};
use super::workspace::Workspace;
use crate::copy::{Direction, Order};
use crate::driver::{Failure, FailureKind};
use crate::error::DeviceError;
use crate::location::Location;
use crate::order::Moment;

/// Makes copies in one context.
pub(crate) struct CopyQueue {
    pub(crate) workspace: Workspace,
    /// Completed operations, for reuse.
    #[expect(clippy::vec_box, reason = "the boxes themselves are what is kept")]
    idle: Mutex<Vec<Box<Operation>>>,
}

/// Describes the beginning of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// The location of the device side, at least of the first copy.
    pub(crate) at: Location,
    pub(crate) direction: Direction,
    pub(crate) order: Order,
}

impl Start {
    /// Starts an operation without copies. Memory and direction are not used.
    const NO_COPY: Start =
        Start { at: Location::HOST, direction: Direction::DeviceToDevice, order: Order::AfterDefaultStream };
}

impl CopyQueue {
    pub(crate) fn new(workspace: Workspace) -> CopyQueue {
        CopyQueue { workspace, idle: Mutex::default() }
    }

    /// Begins to gather copies.
    pub(super) fn operation(self: &Arc<Self>, start: Start) -> Box<Operation> {
        let idle = self.idle.lock().pop();
        let mut operation = idle.unwrap_or_else(|| Box::new(Operation::new(start)));
        let Start { at, direction, order } = start;
        (operation.copies.at, operation.copies.direction, operation.copies.order) = (at, direction, order);
        operation.queue = Some(self.clone());
        operation
    }

    /// Begins an operation that copies nothing and ends with the present work of the default stream. Returns `None` if
    /// that is done.
    pub(super) fn default_stream_operation(self: &Arc<Self>) -> Result<Option<Box<Operation>>, DeviceError> {
        let workspace = &self.workspace;
        self.ask(|| {
            // The stream is mostly idle, and then the query is cheaper than an event, which takes at least 1.5 us.
            if workspace.ask_default_stream()? != Some(false) {
                return Ok(None);
            }
            let mut operation = self.operation(Start::NO_COPY);
            match operation.engines.follow_default_stream(workspace) {
                Ok(true) => Ok(Some(operation)),
                answer => {
                    operation.rest();
                    answer.map(|_| None)
                }
            }
        })
    }

    /// Checks whether the default stream is idle.
    pub(crate) fn default_stream_is_idle(&self) -> Result<bool, DeviceError> {
        self.ask(|| Ok(self.workspace.ask_default_stream()? == Some(true)))
    }

    /// Checks whether the work is done that the default stream had at a moment.
    pub(crate) fn default_stream_has_passed(&self, moment: Moment) -> Result<bool, DeviceError> {
        let workspace = &self.workspace;
        self.ask(|| Ok(workspace.ask_default_stream()? == Some(true) || workspace.default_stream.has_passed(moment)?))
    }

    /// Fails if the calling thread captures a stream.
    pub(crate) fn refuse_capture(&self) -> Result<(), DeviceError> {
        self.ask(|| Ok(()))
    }

    /// Enters the context for queries of the default stream, on a thread that must not be capturing.
    fn ask<T>(&self, questions: impl FnOnce() -> Result<T, Failure>) -> Result<T, DeviceError> {
        let mut entry = Entry::new(&self.workspace, Order::AfterDefaultStream);
        let answer = entry.enter().and_then(|()| questions());
        answer.map_err(|failure| self.workspace.error(failure, Direction::DeviceToDevice, 0))
    }
}

impl Drop for CopyQueue {
    fn drop(&mut self) {
        let Ok(_scope) = self.workspace.context.enter() else { return };
        for operation in self.idle.get_mut() {
            operation.destroy(&self.workspace);
        }
    }
}

impl Workspace {
    fn error(&self, failure: Failure, direction: Direction, bytes: usize) -> DeviceError {
        let between = match direction {
            Direction::DeviceToHost => "from device to host",
            Direction::HostToDevice => "from host to device",
            Direction::DeviceToDevice => "between devices",
            Direction::WithinDevice => "within a device",
        };
        let object = format!("a copy of {bytes} bytes {between} in context {}", self.context.id);
        let mut error = self.context.error(failure, object);
        match failure.kind {
            FailureKind::Capturing => error.reason.push_str(
                ": the calling thread captures a stream into a graph, and messages cannot be part of one; end the \
                 capture first",
            ),
            FailureKind::ContextDestroyed => error.reason.push_str(": the context that the buffer was in is gone"),
            _ => {}
        }
        error
    }
}

/// A batch of copies, first in the making, then under way.
pub(super) struct Operation {
    /// `None` while the operation lies in its queue.
    queue: Option<Arc<CopyQueue>>,
    pub(super) copies: Gathered,
    cpu: ByCpu,
    copier: ByCopier,
    kernels: ByKernels,
    values: ByValues,
    engines: ByEngines,
    /// Whether the workspace counts it as under way.
    under_way: bool,
}

impl Operation {
    fn new(start: Start) -> Operation {
        let Start { at, direction, order } = start;
        Operation {
            queue: None,
            copies: Gathered {
                at,
                direction,
                order,
                pieces: Vec::new(),
                blocks: Vec::new(),
                stretches: Vec::new(),
                bytes: 0,
                page_locked: false,
                reachable: None,
                lost: false,
            },
            cpu: ByCpu,
            copier: ByCopier::default(),
            kernels: ByKernels::default(),
            values: ByValues::default(),
            engines: ByEngines::default(),
            under_way: false,
        }
    }

    /// Begins the copies. Returns `None` if there were none, or they are done already.
    pub(super) fn finish(mut self: Box<Self>) -> Result<Option<Box<Operation>>, DeviceError> {
        let Some(queue) = self.queue.clone().filter(|_| !self.copies.is_empty()) else {
            self.rest();
            return Ok(None);
        };
        let workspace = &queue.workspace;
        match self.begin(workspace) {
            Ok(Progress::Done) => {
                self.rest();
                Ok(None)
            }
            Ok(_) => {
                self.under_way = true;
                workspace.under_way.fetch_add(1, AcqRel);
                Ok(Some(self))
            }
            Err(failure) => {
                let error = self.abandon(workspace, failure);
                self.rest();
                Err(error)
            }
        }
    }

    /// Offers the copies to one mechanism after the other.
    fn begin(&mut self, workspace: &Workspace) -> Result<Progress, Failure> {
        let copies = &mut self.copies;
        let mut entry = Entry::new(workspace, copies.order);
        if self.cpu.suits(workspace, copies) {
            self.cpu.begin(workspace, copies, &mut entry)?;
            if copies.is_empty() {
                return Ok(Progress::Done);
            }
        } else {
            workspace.mapping.look_after();
        }
        let _all_begun = offer(&mut self.copier, workspace, copies, &mut entry)?
            || offer(&mut self.kernels, workspace, copies, &mut entry)?
            || offer(&mut self.values, workspace, copies, &mut entry)?
            || offer(&mut self.engines, workspace, copies, &mut entry)?;
        Ok(Progress::Pending)
    }

    /// Checks whether the operation is complete. Do not call it again after a result other than `Ok(false)`.
    pub(super) fn poll(&mut self) -> Result<bool, DeviceError> {
        let Some(queue) = self.queue.clone() else { return Ok(true) };
        let workspace = &queue.workspace;
        let answer = match self.look(workspace) {
            // The error is reported only now, because the memory was in use until now.
            Ok(true) if self.copies.lost => Err(Failure::NO_KERNEL),
            answer => answer,
        };
        answer.map_err(|failure| self.abandon(workspace, failure))
    }

    /// Ends all copies under way after a failure. Their memory must be free for the caller when it gets the error.
    fn abandon(&mut self, workspace: &Workspace, failure: Failure) -> DeviceError {
        let direction = self.copies.direction;
        for mechanism in self.mechanisms() {
            mechanism.abandon(workspace, direction);
        }
        workspace.error(failure, self.copies.direction, self.copies.bytes)
    }

    /// Lists the mechanisms that can have copies under way, in the order in which copies are offered to them.
    fn mechanisms(&mut self) -> [&mut dyn Mechanism; 4] {
        [&mut self.copier, &mut self.kernels, &mut self.values, &mut self.engines]
    }

    fn look(&mut self, workspace: &Workspace) -> Result<bool, Failure> {
        let copies = &mut self.copies;
        let mut progress = self.copier.poll(workspace, copies)?;
        if progress == Progress::Done {
            progress = self.kernels.poll(workspace, copies)?;
        }
        if progress == Progress::Done {
            progress = self.values.poll(workspace, copies)?;
        }
        if progress == Progress::Done {
            progress = self.engines.poll(workspace, copies)?;
        }
        if progress == Progress::PutBack && !copies.pieces.is_empty() {
            self.engines.begin(workspace, copies, &mut Entry::new(workspace, Order::None))?;
        }
        Ok(progress == Progress::Done)
    }

    /// Returns the completed operation to its queue, with its event.
    pub(super) fn rest(mut self: Box<Self>) {
        self.copies.clear();
        for mechanism in self.mechanisms() {
            mechanism.clear();
        }
        if let Some(queue) = self.queue.take() {
            if std::mem::take(&mut self.under_way) {
                queue.workspace.under_way.fetch_sub(1, Release);
            }
            queue.idle.lock().push(self);
        }
    }
}

impl Operation {
    /// Destroys the objects in the context, which is current.
    fn destroy(&mut self, workspace: &Workspace) {
        self.kernels.destroy(workspace);
        self.engines.destroy(workspace);
    }
}

impl Drop for Operation {
    /// Destroys the objects of a batch that is dropped unfinished. None of its copies has begun.
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take()
            && let Ok(_scope) = queue.workspace.context.enter()
        {
            self.destroy(&queue.workspace);
        }
    }
}

/// Offers copies to a mechanism. Returns whether none are left. Generic instead of `dyn`, because each message calls
/// it.
#[inline]
fn offer(
    mechanism: &mut impl Mechanism,
    workspace: &Workspace,
    copies: &mut Gathered,
    entry: &mut Entry<'_>,
) -> Result<bool, Failure> {
    if !mechanism.suits(workspace, copies) {
        return Ok(false);
    }
    mechanism.begin(workspace, copies, entry)?;
    Ok(copies.is_empty())
}
