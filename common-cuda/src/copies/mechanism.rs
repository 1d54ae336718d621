//! What every mechanism of copying does.

use super::gathered::Gathered;
use super::workspace::Workspace;
use crate::context::Scope;
use crate::driver::Failure;
use crate::order::After;

/// A mechanism that makes copies, with the state of one operation.
pub(super) trait Mechanism {
    /// Whether it may be able to take some of the copies. Asks nobody.
    fn suits(&self, workspace: &Workspace, copies: &Gathered) -> bool;

    /// Begins those copies that it can begin now, and takes them out of `copies`. What it begins comes after what
    /// `copies.after` says. After a failure nothing of its own is under way.
    fn begin(&mut self, workspace: &Workspace, copies: &mut Gathered, entry: &mut Entry<'_>) -> Result<(), Failure>;

    /// How its copies stand.
    fn poll(&mut self, workspace: &Workspace, copies: &mut Gathered) -> Result<Progress, Failure>;

    /// Gives up after a failure; on return nothing of its own is under way.
    fn abandon(&mut self, workspace: &Workspace);

    /// Forgets the copies of an operation that is over.
    fn clear(&mut self);
}

/// How the copies of a mechanism stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has none, or all are done.
    Done,
    Pending,
    /// It has put copies back that it could not make; they come after nothing any more.
    PutBack,
}

/// The calls of an operation that begins: its context is entered once, and only if a mechanism needs that.
pub(super) struct Entry<'w> {
    workspace: &'w Workspace,
    after: After,
    scope: Option<Scope>,
}

impl<'w> Entry<'w> {
    pub(super) fn new(workspace: &'w Workspace, after: After) -> Entry<'w> {
        Entry { workspace, after, scope: None }
    }

    /// Makes the context current, and fails if the calling thread captures where it must not.
    pub(super) fn enter(&mut self) -> Result<(), Failure> {
        if self.scope.is_none() {
            self.scope = Some(self.workspace.context.enter()?);
            if self.after != After::Nothing {
                self.workspace.default_stream.refuse_capture()?;
            }
        }
        Ok(())
    }

    /// Whether copies may begin now that no stream orders.
    pub(super) fn may_begin(&mut self) -> Result<bool, Failure> {
        if self.after != After::Nothing {
            self.enter()?;
        }
        Ok(self.after != After::DefaultStream || self.workspace.ask_default_stream()? == Some(true))
    }
}
