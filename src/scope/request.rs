//! An operation under way.

use cableway_base::Rank;
use cableway_pml::{Buffer, Status as RawStatus};

use super::{Pending, Scope};
use crate::Error;
use crate::error::Operation;
use crate::selector::Status;

/// An operation under way. Dropping it, or leaking it, leaves the waiting to the end of the scope.
#[must_use = "whether the operation worked is told by waiting for it"]
pub struct Request<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    /// In the scope's table; [`COMPLETE`] for a send that was over at once.
    key: usize,
    /// The status of that.
    status: Status,
}

/// The key of no entry.
const COMPLETE: usize = usize::MAX;

impl<'scope, 'env> Request<'scope, 'env> {
    #[inline]
    pub(super) fn complete(scope: &'scope Scope<'scope, 'env>, to: Rank, tag: i32, buffer: &Buffer<'_>) -> Self {
        let bytes = buffer.packed_len().unwrap_or(u64::MAX);
        Request { scope, key: COMPLETE, status: Status { source: to, tag, bytes } }
    }

    pub(super) fn pending(scope: &'scope Scope<'scope, 'env>, key: usize) -> Self {
        Request { scope, key, status: Status { source: 0, tag: 0, bytes: 0 } }
    }

    /// Waits for the end of the operation. The status is that of the message that was received; for a send it names
    /// what was sent.
    ///
    /// # Errors
    /// Those of the operation.
    #[inline]
    pub fn wait(self) -> Result<Status, Error> {
        if self.key == COMPLETE {
            return Ok(self.status);
        }
        let (operation, result) = self.finish();
        result.map(|status| described(&operation, status)).map_err(|error| operation.failed(error))
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
        if self.key == COMPLETE {
            return Ok(Some(self.status));
        }
        self.scope.pending.borrow()[self.key].request.cancel();
        let (operation, result) = self.finish();
        match result {
            Ok(status) if status.cancelled => Ok(None),
            Ok(status) => Ok(Some(described(&operation, status))),
            Err(error) => Err(operation.failed(error)),
        }
    }

    fn finish(self) -> (Operation, Result<RawStatus, cableway_pml::Error>) {
        // Taken out of the table, it still waits when dropped.
        let Pending { request, operation } = self.scope.pending.borrow_mut().remove(self.key);
        request.wait();
        (operation, request.result())
    }

    pub(super) fn is_over(&self) -> bool {
        self.key == COMPLETE || !self.scope.pending.borrow()[self.key].request.is_active()
    }
}

/// The engine says nothing about a send that worked.
pub(super) fn described(operation: &Operation, status: RawStatus) -> Status {
    match (operation.verb, operation.peer, operation.tag) {
        ("send", Some(peer), Some(tag)) => Status { source: peer, tag, bytes: operation.bytes },
        _ => Status::new(status),
    }
}
