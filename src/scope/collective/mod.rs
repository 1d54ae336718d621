//! Collective operations in scopes.

mod exchange;
mod movement;
mod reduction;
mod scan;

use std::sync::Arc;

use super::Scope;
use crate::Error;
use crate::collective::{Prepared, Running};

/// A nonblocking collective operation under way. If the request is dropped or leaked, the end of the scope waits for the
/// operation.
///
/// It progresses in every call of the library that waits, on any thread.
#[must_use = "wait for the request to learn whether the operation succeeded"]
pub struct CollectiveRequest<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    running: Arc<Running>,
}

impl CollectiveRequest<'_, '_> {
    /// Waits until the operation completes (`MPI_Wait`).
    ///
    /// # Errors
    /// The operation failed.
    pub fn wait(self) -> Result<(), Error> {
        self.scope.collectives.wait(&self.running)
    }

    /// Returns whether the operation is complete, so that [`wait`](Self::wait) would return at once. Progresses messages
    /// if it is not.
    pub fn is_complete(&self) -> bool {
        self.running.has_ended() || {
            self.scope.communicator.engine().progress();
            self.running.has_ended()
        }
    }
}

/// Collective operations begin in the same order on all members, blocking ones included, except exchanges with neighbours.
/// They may complete in any order. An operation of a scope does not match a blocking one of
/// [`Communicator`](crate::Communicator): all members begin it in a scope.
impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts a barrier (`MPI_Ibarrier`): the request completes when all members have started it. It does not match a
    /// blocking [`barrier`](crate::Communicator::barrier), so all members start it. Collective.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// world.communicator().scope(|scope| {
    ///     let all_are_here = scope.barrier()?;
    ///     // Compute here.
    ///     all_are_here.wait()
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A member failed. [`CollectiveRequest::wait`] returns later failures.
    pub fn barrier(&'scope self) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        let running = self.communicator.start_barrier()?;
        self.collectives.push(running.clone());
        Ok(CollectiveRequest { scope: self, running })
    }

    /// # Safety
    /// The buffers of the call are borrowed for as long as the scope.
    unsafe fn start(&'scope self, call: Result<Prepared<'_>, Error>) -> Result<CollectiveRequest<'scope, 'env>, Error> {
        // SAFETY: the caller's promise. The scope waits for all operations in its list.
        let running = unsafe { self.communicator.start(&call?) }?;
        self.collectives.push(running.clone());
        Ok(CollectiveRequest { scope: self, running })
    }
}
