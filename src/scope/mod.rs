//! Operations that run while the program does something else, bound to their buffers' lifetime.
//!
//! As with [`std::thread::scope`], what is started within a scope is over when the scope ends. A buffer lent to an
//! operation stays lent until then, so that it can be neither freed nor touched while a peer, a device or another
//! thread reads or writes it; leaking a request changes nothing.

mod persistent;
mod request;

use std::marker::PhantomData;

use cableway_base::Rank;
use cableway_common_cuda::Location;
use cableway_pml::{Buffer, Outcome, SendMode, Short};

use crate::buffer::{RecvBuffer, SendBuffer};
use crate::communicator::{Communicator, Message};
use crate::error::Operation;
use crate::in_flight::{Company, InFlight};
use crate::selector::{Sender, Tag, raw_rank};
use crate::{AttachedBuffer, Error};

pub use persistent::Persistent;
pub use request::Request;

/// Where operations of one communicator are started. Made by [`Communicator::scope`].
///
/// `'env` is what may be lent from outside the scope's closure, `'scope` how long it stays lent.
pub struct Scope<'scope, 'env: 'scope> {
    communicator: &'env Communicator,
    /// Operations that were not complete at once.
    pending: Company<'env>,
    // Invariant, so that neither lifetime can be shortened to lend what does not live long enough.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl Communicator {
    /// Calls `work`, then waits for every operation that it started and did not wait for itself. An error of such an
    /// operation is logged.
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
    /// A buffer that is lent cannot be touched:
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
    /// nor freed, even if the request is leaked:
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
        // However `work` ends, its drop waits before anything lent from outside can be freed.
        let pending = Company::new(self.engine());
        let scope = Scope { communicator: self, pending, scope: PhantomData, env: PhantomData };
        work(&scope)
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts to send `buffer` to rank `to`. The request is complete when the buffer can be reused.
    ///
    /// # Errors
    /// No such rank, a tag below 0, or the peer failed; later failures are the request's.
    pub fn isend(
        &'scope self,
        buffer: &'scope (impl SendBuffer + ?Sized),
        to: Rank,
        tag: i32,
    ) -> Result<Request<'scope, 'env>, Error> {
        // SAFETY: lent for as long as the scope.
        unsafe { self.start_send(buffer.readable(), to, tag, &SendMode::Standard) }
    }

    /// As [`isend`](Self::isend); complete when the receiver has begun to receive (`MPI_Issend`).
    ///
    /// # Errors
    /// As there.
    pub fn issend(
        &'scope self,
        buffer: &'scope (impl SendBuffer + ?Sized),
        to: Rank,
        tag: i32,
    ) -> Result<Request<'scope, 'env>, Error> {
        // SAFETY: lent for as long as the scope.
        unsafe { self.start_send(buffer.readable(), to, tag, &SendMode::Synchronous) }
    }

    /// As [`isend`](Self::isend); the program knows that the receive is posted already (`MPI_Irsend`).
    ///
    /// # Errors
    /// As there.
    pub fn irsend(
        &'scope self,
        buffer: &'scope (impl SendBuffer + ?Sized),
        to: Rank,
        tag: i32,
    ) -> Result<Request<'scope, 'env>, Error> {
        // SAFETY: lent for as long as the scope.
        unsafe { self.start_send(buffer.readable(), to, tag, &SendMode::Ready) }
    }

    /// As [`isend`](Self::isend); what cannot leave at once is copied to `room` (`MPI_Ibsend`).
    ///
    /// # Errors
    /// As there, and when `room` has no room.
    pub fn ibsend(
        &'scope self,
        buffer: &'scope (impl SendBuffer + ?Sized),
        to: Rank,
        tag: i32,
        room: &AttachedBuffer,
    ) -> Result<Request<'scope, 'env>, Error> {
        // SAFETY: lent for as long as the scope.
        unsafe { self.start_send(buffer.readable(), to, tag, &room.mode()) }
    }

    /// Starts to receive into `buffer`; see [`Communicator::recv`].
    ///
    /// # Errors
    /// No such rank, or the peer failed; later failures are the request's.
    #[inline]
    pub fn irecv(
        &'scope self,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
    ) -> Result<Request<'scope, 'env>, Error> {
        let (from, tag, buffer) = (from.into(), tag.into(), buffer.writable());
        let (operation, engine) = (Operation::receive(&buffer, from, tag), self.communicator.engine());
        self.communicator.check_selector(tag).map_err(|error| operation.failed(error))?;
        let request = InFlight::new(engine);
        // SAFETY: the request is new and ends before the scope does, as long as which the buffer is lent.
        unsafe { engine.irecv(self.communicator.raw(), from.raw(), tag.raw(), buffer, &raw const *request) }
            .map_err(|error| operation.failed(error))?;
        Ok(self.pending(request, operation))
    }

    /// Starts to receive a message that a matched probe took.
    pub fn imrecv(
        &'scope self,
        message: Message<'_>,
        buffer: &'scope mut (impl RecvBuffer + ?Sized),
    ) -> Request<'scope, 'env> {
        let (status, buffer, engine) = (message.status(), buffer.writable(), self.communicator.engine());
        let request = InFlight::new(engine);
        // SAFETY: as in `irecv`.
        unsafe { engine.imrecv(message.into_inner(), buffer, &raw const *request) };
        self.pending(request, Operation::receive(&buffer, status.source.into(), status.tag.into()))
    }

    /// Waits until one of `requests` is complete; its index. None if there are none.
    pub fn wait_any(&self, requests: &[Request<'scope, 'env>]) -> Option<usize> {
        if requests.is_empty() {
            return None;
        }
        let mut found = None;
        self.communicator.engine().wait_until(|| {
            found = requests.iter().position(Request::is_over);
            found.is_some()
        });
        // In a forked child nothing ends any more, which waiting for the first says.
        found.or(Some(0))
    }

    /// # Safety
    /// The buffer is readable, and does not change, as long as the scope.
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
                // What a small message leaves behind is small, too: it is built in place, not copied from hand to hand.
                Ok(Short::Left) => return Ok(Request::complete(self, to, tag, &buffer)),
                // SAFETY: the caller's promise.
                Ok(Short::Not(location)) => unsafe {
                    return self.start_large_send((buffer, location), to, tag, mode);
                },
                Err(error) => return Err(Operation::send(&buffer, to, tag).failed(error)),
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.start_large_send((buffer, None), to, tag, mode) }
    }

    /// The buffer's location is what the short way has found out.
    ///
    /// # Safety
    /// As [`start_send`](Self::start_send).
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
        Request::pending(self, self.pending.join(request, operation))
    }
}
