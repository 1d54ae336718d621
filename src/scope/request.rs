//! Requests: nonblocking operations under way.

use cableway_base::Rank;
use cableway_pml::{Buffer, Status as RawStatus};

use super::Scope;
use crate::Error;
use crate::error::Operation;
use crate::in_flight::Entry;
use crate::selector::Status;

/// A nonblocking operation under way. If the request is dropped or leaked, the end of the scope waits for the operation.
#[must_use = "wait for the request to learn whether the operation succeeded"]
pub struct Request<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    /// The entry in the scope's list; none for an operation that completed at once.
    entry: Option<Entry>,
    /// The status of an operation that completed at once.
    status: Status,
}

impl<'scope, 'env> Request<'scope, 'env> {
    #[inline]
    pub(super) fn complete(scope: &'scope Scope<'scope, 'env>, to: Rank, tag: i32, buffer: &Buffer<'_>) -> Self {
        let bytes = buffer.packed_len().unwrap_or(u64::MAX);
        Request { scope, entry: None, status: Status { source: to, tag, bytes } }
    }

    /// Makes the request of a one-sided operation that completed at once.
    #[inline]
    pub(super) fn complete_of(scope: &'scope Scope<'scope, 'env>, operation: &Operation) -> Self {
        let source = operation.peer.unwrap_or(0);
        Request { scope, entry: None, status: Status { source, tag: 0, bytes: operation.bytes } }
    }

    #[inline]
    pub(super) fn pending(scope: &'scope Scope<'scope, 'env>, entry: Entry) -> Self {
        Request { scope, entry: Some(entry), status: Status { source: 0, tag: 0, bytes: 0 } }
    }

    /// Waits until the operation completes (`MPI_Wait`). Returns the status of the received message. For a send, `source`
    /// is the destination rank, and `tag` and `bytes` are those of the message.
    ///
    /// # Errors
    /// The operation failed.
    #[inline]
    pub fn wait(self) -> Result<Status, Error> {
        let Some(entry) = self.entry else { return Ok(self.status) };
        // SAFETY: the entry is in the scope's list.
        let (request, operation) = unsafe { self.scope.pending.take(entry) };
        request.wait();
        match request.error() {
            None => Ok(described(&operation, request.status())),
            Some(error) => Err(operation.failed(error.clone())),
        }
    }

    /// Returns whether the operation is complete, so that [`wait`](Self::wait) would return at once. Progresses messages
    /// if it is not.
    pub fn is_complete(&self) -> bool {
        self.is_inactive() || {
            self.scope.communicator.engine().progress();
            self.is_inactive()
        }
    }

    /// Cancels a receive that no message has matched and returns `Ok(None)`. Otherwise waits as [`wait`](Self::wait) does.
    /// Sends cannot be cancelled.
    ///
    /// # Errors
    /// The operation failed.
    pub fn cancel(self) -> Result<Option<Status>, Error> {
        let Some(entry) = self.entry else { return Ok(Some(self.status)) };
        // SAFETY: the entry is in the scope's list.
        let (request, _) = unsafe { self.scope.pending.get(&entry) };
        // SAFETY: the request is valid, and was only ever started on this engine.
        unsafe { self.scope.communicator.engine().cancel(request) };
        let (operation, result) = finish(self.scope, entry);
        match result {
            Ok(status) if status.cancelled => Ok(None),
            Ok(status) => Ok(Some(described(&operation, status))),
            Err(error) => Err(operation.failed(error)),
        }
    }

    pub(super) fn is_inactive(&self) -> bool {
        // SAFETY: the entry is in the scope's list.
        self.entry.as_ref().is_none_or(|entry| !unsafe { self.scope.pending.get(entry) }.0.is_active())
    }
}

#[inline]
fn finish(scope: &Scope<'_, '_>, entry: Entry) -> (Operation, Result<RawStatus, cableway_pml::Error>) {
    // SAFETY: the entry is the scope's.
    let (request, operation) = unsafe { scope.pending.take(entry) };
    request.wait();
    (operation, request.result())
}

/// Returns the status of an operation. The engine reports none for a send, so it is taken from the description.
pub(crate) fn described(operation: &Operation, status: RawStatus) -> Status {
    match (operation.verb, operation.peer, operation.tag) {
        ("send" | "active message", Some(peer), tag) => {
            Status { source: peer, tag: tag.unwrap_or(0), bytes: operation.bytes }
        }
        _ => Status::new(status),
    }
}
