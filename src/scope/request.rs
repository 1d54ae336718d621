//! An operation under way.

use cableway_base::Rank;
use cableway_pml::{Buffer, Status as RawStatus};

use super::Scope;
use crate::Error;
use crate::error::Operation;
use crate::in_flight::Member;
use crate::selector::Status;

/// An operation under way. Dropping it, or leaking it, leaves the waiting to the end of the scope.
#[must_use = "whether the operation worked is told by waiting for it"]
pub struct Request<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    /// Of the scope's operations; none for a send that was over at once.
    member: Option<Member>,
    /// The status of that.
    status: Status,
}

impl<'scope, 'env> Request<'scope, 'env> {
    #[inline]
    pub(super) fn complete(scope: &'scope Scope<'scope, 'env>, to: Rank, tag: i32, buffer: &Buffer<'_>) -> Self {
        let bytes = buffer.packed_len().unwrap_or(u64::MAX);
        Request { scope, member: None, status: Status { source: to, tag, bytes } }
    }

    #[inline]
    pub(super) fn pending(scope: &'scope Scope<'scope, 'env>, member: Member) -> Self {
        Request { scope, member: Some(member), status: Status { source: 0, tag: 0, bytes: 0 } }
    }

    /// Waits for the end of the operation. The status is that of the message that was received; for a send it names
    /// what was sent.
    ///
    /// # Errors
    /// Those of the operation.
    #[inline]
    pub fn wait(self) -> Result<Status, Error> {
        let Some(member) = self.member else { return Ok(self.status) };
        // SAFETY: the member is the scope's.
        let (request, operation) = unsafe { self.scope.pending.take(member) };
        request.wait();
        match request.error() {
            None => Ok(described(&operation, request.status())),
            Some(error) => Err(operation.failed(error.clone())),
        }
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
        let Some(member) = self.member else { return Ok(Some(self.status)) };
        // SAFETY: the member is the scope's.
        let (request, _) = unsafe { self.scope.pending.get(&member) };
        // SAFETY: the request is valid, and was only ever started on this engine.
        unsafe { self.scope.communicator.engine().cancel(request) };
        let (operation, result) = finish(self.scope, member);
        match result {
            Ok(status) if status.cancelled => Ok(None),
            Ok(status) => Ok(Some(described(&operation, status))),
            Err(error) => Err(operation.failed(error)),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        // SAFETY: the member is the scope's.
        self.member.as_ref().is_none_or(|member| !unsafe { self.scope.pending.get(member) }.0.is_active())
    }
}

#[inline]
fn finish(scope: &Scope<'_, '_>, member: Member) -> (Operation, Result<RawStatus, cableway_pml::Error>) {
    // SAFETY: the member is the scope's.
    let (request, operation) = unsafe { scope.pending.take(member) };
    request.wait();
    (operation, request.result())
}

/// The engine says nothing about a send that worked.
pub(super) fn described(operation: &Operation, status: RawStatus) -> Status {
    match (operation.verb, operation.peer, operation.tag) {
        ("send", Some(peer), Some(tag)) => Status { source: peer, tag, bytes: operation.bytes },
        _ => Status::new(status),
    }
}
