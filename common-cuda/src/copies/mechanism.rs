//! The trait of all mechanisms of copying.

use super::gathered::Gathered;
use super::workspace::Workspace;
use crate::context::Scope;
use crate::copy::{Direction, Order};
use crate::driver::Failure;

/// A mechanism that makes copies, with the state of one operation.
pub(super) trait Mechanism {
    /// Checks whether it may be able to take some of the copies. Makes no driver call.
    fn suits(&self, workspace: &Workspace, copies: &Gathered) -> bool;

    /// Begins those copies that it can begin now, after the work that `copies.order` names, and takes them out of
    /// `copies`. After a failure none of its copies is under way.
    fn begin(&mut self, workspace: &Workspace, copies: &mut Gathered, entry: &mut Entry<'_>) -> Result<(), Failure>;

    /// Returns the progress of its copies.
    fn poll(&mut self, workspace: &Workspace, copies: &mut Gathered) -> Result<Progress, Failure>;

    /// Gives up copies of an operation in this direction after a failure. On return none of them is under way.
    fn abandon(&mut self, workspace: &Workspace, direction: Direction);

    /// Forgets the copies of an operation that is over.
    fn clear(&mut self);
}

/// Tells the progress of a mechanism's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The mechanism has no copies, or all are done.
    Done,
    Pending,
    /// The mechanism returned copies that it could not make. They have no more work to wait for.
    PutBack,
}

/// Enters the context of a starting operation: once, and only if a mechanism needs it.
pub(super) struct Entry<'w> {
    workspace: &'w Workspace,
    order: Order,
    scope: Option<Scope>,
}

impl<'w> Entry<'w> {
    pub(super) fn new(workspace: &'w Workspace, order: Order) -> Entry<'w> {
        Entry { workspace, order, scope: None }
    }

    /// Makes the context current. Fails if the calling thread captures a stream and must not.
    pub(super) fn enter(&mut self) -> Result<(), Failure> {
        if self.scope.is_none() {
            self.scope = Some(self.workspace.context.enter()?);
            if self.order != Order::None {
                self.workspace.default_stream.refuse_capture()?;
            }
        }
        Ok(())
    }

    /// Checks whether copies that no stream orders may begin now.
    pub(super) fn may_begin(&mut self) -> Result<bool, Failure> {
        if self.order != Order::None {
            self.enter()?;
        }
        Ok(!self.workspace.waits(self.order) || self.workspace.ask_default_stream()? == Some(true))
    }
}
