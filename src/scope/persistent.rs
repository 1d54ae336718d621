//! Persistent operations, which are described once and started many times.

use cableway_base::Rank;
use cableway_pml::{Request, SendMode};

use super::Scope;
use super::request::described;
use crate::Error;
use crate::buffer::{RecvBuffer, SendBuffer};
use crate::error::Operation;
use crate::in_flight::{Entry, InFlight};
use crate::selector::{Sender, Status, Tag, raw_rank};

/// A persistent operation and its buffer (`MPI_Send_init`, `MPI_Recv_init`). The program can access the buffer whenever
/// the operation is not under way.
pub struct Persistent<'scope, 'env: 'scope, B: ?Sized> {
    scope: &'scope Scope<'scope, 'env>,
    entry: Entry,
    /// Borrowed for as long as the scope. A pointer, because the engine also writes here while the operation is under
    /// way, which an exclusive reference would rule out.
    buffer: std::ptr::NonNull<B>,
    lent: std::marker::PhantomData<&'scope mut B>,
    operation: Operation,
    /// Waits for work on the buffer's device that the program has queued since the last message.
    finish: fn(&mut B) -> Result<(), Error>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Describes a send of `buffer` to rank `to` without starting it.
    ///
    /// # Errors
    /// The communicator has no rank `to`, or the tag is negative.
    pub fn send_init<B: SendBuffer + ?Sized>(
        &'scope self,
        buffer: &'scope mut B,
        to: Rank,
        tag: i32,
    ) -> Result<Persistent<'scope, 'env, B>, Error> {
        let raw = buffer.readable()?;
        let operation = Operation::send(&raw, to, tag);
        let (communicator, engine) = (self.communicator, self.communicator.engine());
        communicator.check_tag(tag).map_err(|error| operation.failed(error))?;
        let request = InFlight::new(engine);
        // SAFETY: the request is new and ends before the scope does; the buffer is borrowed until then. `Persistent` gives
        // access to it only while no operation is under way.
        unsafe { engine.send_init(communicator.raw(), raw_rank(to), tag, raw, &SendMode::Standard, &request) }
            .map_err(|error| operation.failed(error))?;
        Ok(Persistent::new(self, request, buffer, operation, |buffer| buffer.readable().map(drop)))
    }

    /// Describes a receive into `buffer` without starting it; see [`Communicator::recv`](crate::Communicator::recv).
    ///
    /// # Errors
    /// The communicator has no such rank, or the tag is negative.
    pub fn recv_init<B: RecvBuffer + ?Sized>(
        &'scope self,
        buffer: &'scope mut B,
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
    ) -> Result<Persistent<'scope, 'env, B>, Error> {
        let (from, tag, raw) = (from.into(), tag.into(), buffer.writable()?);
        let operation = Operation::receive(&raw, from, tag);
        let (communicator, engine) = (self.communicator, self.communicator.engine());
        communicator.check_selector(tag).map_err(|error| operation.failed(error))?;
        let request = InFlight::new(engine);
        // SAFETY: as in `send_init`.
        unsafe { engine.recv_init(communicator.raw(), from.raw(), tag.raw(), raw, &request) }
            .map_err(|error| operation.failed(error))?;
        Ok(Persistent::new(self, request, buffer, operation, |buffer| buffer.writable().map(drop)))
    }
}

impl<'scope, 'env, B: ?Sized> Persistent<'scope, 'env, B> {
    fn new(
        scope: &'scope Scope<'scope, 'env>,
        request: InFlight<'env>,
        buffer: &'scope mut B,
        operation: Operation,
        finish: fn(&mut B) -> Result<(), Error>,
    ) -> Self {
        let entry = scope.pending.push(request, operation);
        Persistent { scope, entry, buffer: buffer.into(), lent: std::marker::PhantomData, operation, finish }
    }

    /// Starts the operation.
    ///
    /// # Errors
    /// The operation is already under way, or the peer failed. [`wait`](Self::wait) returns later failures.
    pub fn start(&mut self) -> Result<(), Error> {
        // Only an inactive operation lends the buffer. The engine refuses to start another.
        let finish = self.finish;
        self.buffer_mut().map_or(Ok(()), finish)?;
        // SAFETY: nobody else has access to the buffer while the operation is under way.
        let started = unsafe { self.scope.communicator.engine().start(self.request()) };
        started.map_err(|error| self.operation.failed(error))
    }

    /// Waits until the operation completes, if it is under way. Returns the status of the last message.
    ///
    /// # Errors
    /// The operation failed.
    pub fn wait(&mut self) -> Result<Status, Error> {
        let request = self.request();
        self.scope.communicator.engine().wait(&[request]);
        request.result().map(|status| described(&self.operation, status)).map_err(|error| self.operation.failed(error))
    }

    /// Returns the buffer, or `None` while the operation is under way.
    pub fn buffer(&self) -> Option<&B> {
        if self.request().is_active() {
            return None;
        }
        // SAFETY: `self` borrows the buffer for as long as the scope. The engine does not use it now. Only `start` can make
        // the engine use it, and `start` needs `self` exclusively.
        Some(unsafe { self.buffer.as_ref() })
    }

    /// Returns the buffer to write to, or `None` while the operation is under way.
    pub fn buffer_mut(&mut self) -> Option<&mut B> {
        if self.request().is_active() {
            return None;
        }
        // SAFETY: as in `buffer`; `self` is borrowed exclusively.
        Some(unsafe { self.buffer.as_mut() })
    }

    fn request(&self) -> &Request {
        // SAFETY: the entry is in the scope's list.
        unsafe { self.scope.pending.get(&self.entry) }.0
    }
}
