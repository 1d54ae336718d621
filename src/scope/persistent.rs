//! Operations that are described once and started many times.

use cableway_base::Rank;
use cableway_pml::{Request, SendMode};

use super::Scope;
use super::request::described;
use crate::Error;
use crate::buffer::{RecvBuffer, SendBuffer};
use crate::error::Operation;
use crate::in_flight::{InFlight, Member};
use crate::selector::{Sender, Status, Tag, raw_rank};

/// An operation that can be started again and again, and its buffer, which is the program's between two of them.
pub struct Persistent<'scope, 'env: 'scope, B: ?Sized> {
    scope: &'scope Scope<'scope, 'env>,
    member: Member,
    /// Borrowed as long as the scope, and by the engine while the operation is under way: a pointer, because a
    /// reference would claim that nobody else writes there.
    buffer: std::ptr::NonNull<B>,
    lent: std::marker::PhantomData<&'scope mut B>,
    operation: Operation,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Describes a send of `buffer` to rank `to`.
    ///
    /// # Errors
    /// No such rank, or a tag below 0.
    pub fn send_init<B: SendBuffer + ?Sized>(
        &'scope self,
        buffer: &'scope mut B,
        to: Rank,
        tag: i32,
    ) -> Result<Persistent<'scope, 'env, B>, Error> {
        let raw = buffer.readable();
        let operation = Operation::send(&raw, to, tag);
        let (communicator, engine) = (self.communicator, self.communicator.engine());
        communicator.check_tag(tag).map_err(|error| operation.failed(error))?;
        let request = InFlight::new(engine);
        // SAFETY: the request is new and ends before the scope does, as long as which the buffer is lent; `Persistent`
        // gives access to it only between operations.
        unsafe { engine.send_init(communicator.raw(), raw_rank(to), tag, raw, &SendMode::Standard, &request) }
            .map_err(|error| operation.failed(error))?;
        Ok(Persistent::new(self, request, buffer, operation))
    }

    /// Describes a receive into `buffer`; see [`Communicator::recv`](crate::Communicator::recv).
    ///
    /// # Errors
    /// No such rank, or a tag below 0.
    pub fn recv_init<B: RecvBuffer + ?Sized>(
        &'scope self,
        buffer: &'scope mut B,
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
    ) -> Result<Persistent<'scope, 'env, B>, Error> {
        let (from, tag, raw) = (from.into(), tag.into(), buffer.writable());
        let operation = Operation::receive(&raw, from, tag);
        let (communicator, engine) = (self.communicator, self.communicator.engine());
        communicator.check_selector(tag).map_err(|error| operation.failed(error))?;
        let request = InFlight::new(engine);
        // SAFETY: as in `send_init`.
        unsafe { engine.recv_init(communicator.raw(), from.raw(), tag.raw(), raw, &request) }
            .map_err(|error| operation.failed(error))?;
        Ok(Persistent::new(self, request, buffer, operation))
    }
}

impl<'scope, 'env, B: ?Sized> Persistent<'scope, 'env, B> {
    fn new(
        scope: &'scope Scope<'scope, 'env>,
        request: InFlight<'env>,
        buffer: &'scope mut B,
        operation: Operation,
    ) -> Self {
        let member = scope.pending.join(request, operation);
        Persistent { scope, member, buffer: buffer.into(), lent: std::marker::PhantomData, operation }
    }

    /// Begins the operation.
    ///
    /// # Errors
    /// It is under way already, or the peer failed; later failures are told by [`wait`](Self::wait).
    pub fn start(&mut self) -> Result<(), Error> {
        // SAFETY: as promised where it was described: nobody else has access to the buffer while it is under way.
        let started = unsafe { self.scope.communicator.engine().start(self.request()) };
        started.map_err(|error| self.operation.failed(error))
    }

    /// Waits for the end of the operation, if it is under way. The status is that of the last message.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait(&mut self) -> Result<Status, Error> {
        let request = self.request();
        self.scope.communicator.engine().wait(&[request]);
        request.result().map(|status| described(&self.operation, status)).map_err(|error| self.operation.failed(error))
    }

    /// The buffer, unless the operation is under way.
    pub fn buffer(&self) -> Option<&B> {
        if self.request().is_active() {
            return None;
        }
        // SAFETY: lent to `self` for as long as the scope; the engine is not using it, and can be told to only by
        // `start`, which needs `self` exclusively.
        Some(unsafe { self.buffer.as_ref() })
    }

    /// The buffer, unless the operation is under way.
    pub fn buffer_mut(&mut self) -> Option<&mut B> {
        if self.request().is_active() {
            return None;
        }
        // SAFETY: as in `buffer`; `self` is borrowed exclusively.
        Some(unsafe { self.buffer.as_mut() })
    }

    fn request(&self) -> &Request {
        // SAFETY: the member is the scope's.
        unsafe { self.scope.pending.get(&self.member) }.0
    }
}
