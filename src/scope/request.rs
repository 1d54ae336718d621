//! An operation under way.

use cableway_pml::Status as RawStatus;

use super::Scope;
use crate::Error;
use crate::error::Operation;
use crate::in_flight::InFlight;
use crate::selector::Status;

/// An operation under way. Dropping it, or leaking it, leaves the waiting to the end of the scope.
#[must_use = "whether the operation worked is told by waiting for it"]
pub struct Request<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    /// In the scope's table; none for what was complete at once.
    key: Option<usize>,
    operation: Operation,
}

impl<'scope, 'env> Request<'scope, 'env> {
    pub(super) fn complete(scope: &'scope Scope<'scope, 'env>, operation: Operation) -> Self {
        Request { scope, key: None, operation }
    }

    pub(super) fn pending(scope: &'scope Scope<'scope, 'env>, request: InFlight<'env>, operation: Operation) -> Self {
        let key = scope.pending.borrow_mut().insert(request);
        Request { scope, key: Some(key), operation }
    }

    /// Waits for the end of the operation. The status is that of the message that was received; for a send it names
    /// what was sent.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait(self) -> Result<Status, Error> {
        let Some(key) = self.key else { return Ok(self.status(RawStatus::EMPTY)) };
        // Taken out of the table, it still waits when dropped.
        let request = self.scope.pending.borrow_mut().remove(key);
        request.wait();
        let result = request.result();
        result.map(|status| self.status(status)).map_err(|error| self.operation.failed(error))
    }

    /// Whether the operation is over, so that [`wait`](Self::wait) returns at once. Moves messages if it is not.
    pub fn is_complete(&self) -> bool {
        self.is_over() || {
            self.scope.communicator.engine().progress();
            self.is_over()
        }
    }

    /// Cancels a receive that nothing has matched yet: `Ok(None)`. Otherwise waits, as [`wait`](Self::wait); a send is
    /// never cancelled.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn cancel(self) -> Result<Option<Status>, Error> {
        let Some(key) = self.key else { return self.wait().map(Some) };
        self.scope.pending.borrow()[key].cancel();
        let request = self.scope.pending.borrow_mut().remove(key);
        request.wait();
        match request.result() {
            Ok(status) if status.cancelled => Ok(None),
            Ok(status) => Ok(Some(self.status(status))),
            Err(error) => Err(self.operation.failed(error)),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.key.is_none_or(|key| !self.scope.pending.borrow()[key].is_active())
    }

    fn status(&self, status: RawStatus) -> Status {
        match (self.operation.verb, self.operation.peer, self.operation.tag) {
            ("send", Some(peer), Some(tag)) => Status { source: peer, tag, bytes: self.operation.bytes },
            _ => Status::new(status),
        }
    }
}
