//! Nonblocking operations, bound to the lifetime of their buffers.
//!
//! As with [`std::thread::scope`], operations started within a scope are complete when the scope ends. The buffer of an
//! operation stays borrowed until then. The program can neither free nor access it while a peer, a device or another
//! thread reads or writes it. Leaking a request does not end the borrow.

mod active;
mod collective;
mod one_sided;
mod persistent;
mod request;

use std::marker::PhantomData;

use cableway_base::Rank;
use cableway_common_cuda::Location;
use cableway_pml::{Buffer, FastPath, Outcome, SendMode};

use crate::buffer::{RecvBuffer, SendBuffer};
use crate::collective::RunningList;
use crate::communicator::{Communicator, Message};
use crate::error::Operation;
use crate::in_flight::{InFlight, RequestList};
use crate::registration::RegistrationList;
use crate::selector::{Sender, Tag, raw_rank};
use crate::{AttachedBuffer, Error};

pub use collective::CollectiveRequest;
pub use persistent::Persistent;
pub use request::Request;

pub(crate) use request::described;

/// A scope in which nonblocking operations of one communicator are started. Made by [`Communicator::scope`].
///
/// `'env` is the lifetime of buffers outside the scope's closure; `'scope` is how long they stay borrowed. A scope and its
/// requests are used by one thread.
pub struct Scope<'scope, 'env: 'scope> {
    communicator: &'env Communicator,
    /// Operations that were not complete at once.
    pending: RequestList<'env>,
    /// Collective operations that nobody waited for.
    collectives: RunningList<'env>,
    registrations: RegistrationList,
    // Invariant: a shortened lifetime would allow buffers that do not live long enough.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl Communicator {
    /// Calls `work`, then waits for every operation that `work` started and did not wait for. Errors of these operations
    /// are logged. If `work` panics, receives that no message has matched are cancelled.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let (mut left, right) = ([0_u64; 8], [1_u64; 8]);
    /// let peer = 1 - world.rank();
    /// world.communicator().scope(|scope| {
    ///     let coming = scope.irecv(&mut left, peer, 7)?;
    ///     scope.isend(&right, peer, 7)?.wait()?;
    ///     coming.wait()
    /// })?;
    /// assert_eq!(left, right);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The program cannot access a buffer of an operation under way:
    /// ```compile_fail,E0506
    /// # fn main() -> Result<(), cableway::Error> {
    /// # let world = cableway::World::init()?;
    /// let mut data = [0_u64; 8];
    /// world.communicator().scope(|scope| {
    ///     let coming = scope.irecv(&mut data, 0, 7)?;
    ///     data[0] = 1;
    ///     coming.wait()
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    /// It cannot free the buffer, even if it leaks the request:
    /// ```compile_fail,E0597
    /// # fn main() -> Result<(), cableway::Error> {
    /// # let world = cableway::World::init()?;
    /// world.communicator().scope(|scope| {
    ///     let mut data = vec![0_u64; 8];
    ///     std::mem::forget(scope.irecv(&mut data, 0, 7)?);
    ///     Ok::<(), cableway::Error>(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope<'env, R>(&'env self, work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
        // Its drop waits even if `work` panics, before buffers from outside can be freed.
        let pending = RequestList::new(self.engine());
        let collectives = RunningList::new(self.engine());
        let registrations = RegistrationList::default();
        let scope =
            Scope { communicator: self, pending, collectives, registrations, scope: PhantomData, env: PhantomData };
        work(&scope)
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts to send `buffer` to rank `to` (`MPI_Isend`). The request completes when the buffer can be reused.
    ///
    /// # Errors
    /// The communicator has no rank `to`, the tag is negative, or the peer failed. [`Request::wait`] returns later
    /// failures.
    pub fn isend(
        &'scope self,
        buffer: &'scope (impl SendBuffer + ?Sized),
        to: Rank,
        tag: i32,
    ) -> Result<Request<'scope, 'env>, Error> {
        // SAFETY: the buffer is borrowed for as long as the scope.
        unsafe { self.start_send(buffer.readable()?, to, tag, &SendMode::Standard) }
    }

    /// Starts a send as [`isend`](Self::isend) does; it completes after a receive has matched it (`MPI_Issend`).
    ///
    /// # Errors
    /// The same as those of [`isend`](Self::isend).
    pub fn issend(
        &'scope self,
        buffer: &'scope (impl SendBuffer + ?Sized),
        to: Rank,
        tag: i32,
    ) -> Result<Request<'scope, 'env>, Error> {
        // SAFETY: the buffer is borrowed for as long as the scope.
        unsafe { self.start_send(buffer.readable()?, to, tag, &SendMode::Synchronous) }
    }

    /// Starts a send as [`isend`](Self::isend) does. The program guarantees that the receive is already posted
    /// (`MPI_Irsend`).
    ///
    /// # Errors
    /// The same as those of [`isend`](Self::isend).
    pub fn irsend(
        &'scope self,
        buffer: &'scope (impl SendBuffer + ?Sized),
        to: Rank,
        tag: i32,
    ) -> Result<Request<'scope, 'env>, Error> {
        // SAFETY: the buffer is borrowed for as long as the scope.
        unsafe { self.start_send(buffer.readable()?, to, tag, &SendMode::Ready) }
    }

    /// Starts a send as [`isend`](Self::isend) does. A message that cannot be sent at once is copied to `room`
    /// (`MPI_Ibsend`).
    ///
    /// # Errors
    /// The same as those of [`isend`](Self::isend), and `room` has too little space left.
    pub fn ibsend(
        &'scope self,
        buffer: &'scope (impl SendBuffer + ?Sized),
        to: Rank,
        tag: i32,
        room: &AttachedBuffer,
    ) -> Result<Request<'scope, 'env>, Error> {
        // SAFETY: the buffer is borrowed for as long as the scope.
        unsafe { self.start_send(buffer.readable()?, to, tag, &room.mode()) }
    }

    /// Starts to receive into `buffer` (`MPI_Irecv`); see [`Communicator::recv`].
    ///
    /// # Errors
    /// The communicator has no such rank, the tag is negative, or the peer failed. [`Request::wait`] returns later
    /// failures.
    #[inline]
    pub fn irecv(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
    ) -> Result<Request<'scope, 'env>, Error> {
        let (from, tag, buffer) = (from.into(), tag.into(), buffer.writable()?);
        let (operation, engine) = (Operation::receive(&buffer, from, tag), self.communicator.engine());
        self.communicator.check_selector(tag).map_err(|error| operation.failed(error))?;
        let request = InFlight::new(engine);
        // SAFETY: the request is new and ends before the scope does; the buffer is borrowed until then.
        unsafe { engine.irecv(self.communicator.raw(), from.raw(), tag.raw(), buffer, &raw const *request) }
            .map_err(|error| operation.failed(error))?;
        Ok(self.pending(request, operation))
    }

    /// Starts to receive a message that [`Communicator::mprobe`] took (`MPI_Imrecv`).
    ///
    /// # Errors
    /// Work on the buffer's device could not be waited for. The message is dropped then.
    pub fn imrecv(
        &'scope self,
        message: Message<'_>,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
    ) -> Result<Request<'scope, 'env>, Error> {
        let (status, buffer, engine) = (message.status(), buffer.writable()?, self.communicator.engine());
        let request = InFlight::new(engine);
        // SAFETY: as in `irecv`.
        unsafe { engine.imrecv(message.into_inner(), buffer, &raw const *request) };
        Ok(self.pending(request, Operation::receive(&buffer, status.source.into(), status.tag.into())))
    }

    /// Waits until one of `requests` is complete and returns its index (`MPI_Waitany`). Returns `None` if the slice is
    /// empty.
    pub fn wait_any(&self, requests: &[Request<'scope, 'env>]) -> Option<usize> {
        if requests.is_empty() {
            return None;
        }
        let mut found = None;
        self.communicator.engine().wait_until(|| {
            found = requests.iter().position(Request::is_inactive);
            found.is_some()
        });
        // In a forked child no request completes. Waiting for the first one returns the error.
        found.or(Some(0))
    }

    /// # Safety
    /// The buffer stays readable and unchanged for as long as the scope.
    #[inline]
    unsafe fn start_send(
        &'scope self,
        buffer: Buffer<'_>,
        to: Rank,
        tag: i32,
        mode: &SendMode,
    ) -> Result<Request<'scope, 'env>, Error> {
        let (communicator, engine) = (self.communicator.raw(), self.communicator.engine());
        if tag >= 0 && matches!(mode, SendMode::Standard | SendMode::Ready) {
            // SAFETY: the caller's promise.
            match unsafe { engine.send_now(communicator, raw_rank(to), tag, buffer) } {
                // The request of a small message is built in place: copying it would cost instructions.
                Ok(FastPath::Sent) => return Ok(Request::complete(self, to, tag, &buffer)),
                // SAFETY: the caller's promise.
                Ok(FastPath::NotTaken(location)) => unsafe {
                    return self.start_large_send((buffer, location), to, tag, mode);
                },
                Err(error) => return Err(Operation::send(&buffer, to, tag).failed(error)),
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.start_large_send((buffer, None), to, tag, mode) }
    }

    /// Starts a send that `send_now` did not complete. `location` is the buffer's, if `send_now` looked it up.
    ///
    /// # Safety
    /// The same as [`start_send`](Self::start_send).
    #[inline(never)]
    unsafe fn start_large_send(
        &'scope self,
        (buffer, location): (Buffer<'_>, Option<Location>),
        to: Rank,
        tag: i32,
        mode: &SendMode,
    ) -> Result<Request<'scope, 'env>, Error> {
        let operation = Operation::send(&buffer, to, tag);
        let (communicator, engine) = (self.communicator.raw(), self.communicator.engine());
        self.communicator.check_tag(tag).map_err(|error| operation.failed(error))?;
        let request = InFlight::new(engine);
        // SAFETY: the caller's promise; the request is new and ends before the scope does.
        let started = unsafe {
            engine.isend_after(communicator, raw_rank(to), tag, (buffer, location), mode, &raw const *request)
        };
        match started.map_err(|error| operation.failed(error))? {
            Outcome::Complete => Ok(Request::complete(self, to, tag, &buffer)),
            Outcome::Started => Ok(self.pending(request, operation)),
        }
    }

    #[inline]
    fn pending(&'scope self, request: InFlight<'env>, operation: Operation) -> Request<'scope, 'env> {
        Request::pending(self, self.pending.push(request, operation))
    }
}
