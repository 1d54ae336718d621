//! Scopes in which a stream uses buffers.

use std::cell::{OnceCell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use cableway_base::Rank;
use cableway_pml::{Prepared, Stream, StreamBatch, StreamMessage};

use super::kept::{Kept, KeptList};
use super::lent::{Lent, Use, Uses};
use super::{StreamRef, add};
use crate::buffer::{RecvBuffer, SendBuffer};
use crate::communicator::Communicator;
use crate::error::{Error, Operation};
use crate::in_flight::PANIC_TIMEOUT;
use crate::inner::Inner;
use crate::scope::described;
use crate::selector::{Sender, Status, Tag};

/// A scope in which a stream sends and receives. Made by [`StreamRef::scope`]. It is used by one thread.
///
/// Every call adds to the stream and returns. The messages on one stream start in the order of the calls, and match as
/// messages of one thread do.
pub struct StreamScope<'scope, 'env: 'scope> {
    pending: Pending<'env>,
    // Invariant, as in `Scope`.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// What the end of a scope waits for, also if its closure panics.
struct Pending<'env> {
    stream: &'env StreamRef,
    messages: KeptList,
    /// Ended at the end, with their communicators. A value that the program has leaked must not keep them going.
    prepared: RefCell<Vec<(Rc<Prepared>, Communicator)>>,
    /// The mark that a panic waits for.
    panic_mark: OnceCell<Option<u64>>,
}

/// A nonblocking message on a stream. The end of the scope waits for it, also if it is dropped or leaked.
#[must_use = "wait for the request before the buffer is used again"]
pub struct StreamRequest<'scope> {
    message: Arc<StreamMessage>,
    operation: Operation,
    /// `None` once the stream has waited.
    uses: Option<Uses>,
    scope: PhantomData<&'scope ()>,
}

impl StreamRef {
    /// Calls `work`, then waits on the calling thread until the stream has passed everything that was added to it, and
    /// every message has ended. Until then the buffers stay lent, so that the program can neither free nor access them.
    /// [`check`](Self::check) returns the errors of messages that no one was told.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// # let (world, handle) = (cableway::World::init()?, std::ptr::null_mut::<()>());
    /// let everyone = world.communicator();
    /// // SAFETY: the program destroys the stream after this value.
    /// let stream = unsafe { world.stream(cableway::Vendor::Nvidia, handle) }?;
    /// # let device = cableway::DeviceIndex(0);
    /// let mut buffer = cableway::DeviceBuffer::new(world.devices(), device, cableway::BufferKind::Device, 1 << 20)?;
    /// stream.scope(|scope| {
    ///     let data = scope.lend(&mut buffer)?;
    ///     for _step in 0..1000 {
    ///         scope.recv(everyone, &data, 0, 7)?;
    ///         // Launch a kernel on the stream that changes the data, at `data.as_ptr()`.
    ///         scope.send(everyone, &data, 0, 7)?;
    ///     }
    ///     Ok::<(), cableway::Error>(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The program cannot access a buffer that the stream may still use:
    /// ```compile_fail,E0506
    /// # fn main() -> Result<(), cableway::Error> {
    /// # let (world, handle) = (cableway::World::init()?, std::ptr::null_mut::<()>());
    /// # // SAFETY: the handle is that of a stream, which outlives the scope.
    /// # let stream = unsafe { world.stream(cableway::Vendor::Nvidia, handle) }?;
    /// let mut data = [0_u64; 8];
    /// stream.scope(|scope| {
    ///     let lent = scope.lend(&mut data)?;
    ///     scope.recv(world.communicator(), &lent, 0, 7)?;
    ///     data[0] = 1;
    ///     scope.send(world.communicator(), &lent, 0, 7)
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope<'env, R>(&'env self, work: impl for<'scope> FnOnce(&'scope StreamScope<'scope, 'env>) -> R) -> R {
        // Its drop waits even if `work` panics, before buffers from outside can be freed.
        let pending = Pending {
            stream: self,
            messages: KeptList::default(),
            prepared: RefCell::default(),
            panic_mark: OnceCell::new(),
        };
        let scope = StreamScope { pending, scope: PhantomData, env: PhantomData };
        work(&scope)
    }
}

impl<'scope, 'env> StreamScope<'scope, 'env> {
    /// Lends a buffer to the stream, to receive into and to send from. Memory of another crate that has a stream of its
    /// own is waited for here, and never later.
    ///
    /// # Errors
    /// That wait failed.
    pub fn lend(&'scope self, buffer: &'scope mut (impl RecvBuffer + ?Sized)) -> Result<Lent<'scope>, Error> {
        Ok(Lent::new(buffer.writable()?, true))
    }

    /// Lends a buffer to the stream, to send from.
    ///
    /// # Errors
    /// As [`lend`](Self::lend).
    pub fn lend_shared(&'scope self, buffer: &'scope (impl SendBuffer + ?Sized)) -> Result<Lent<'scope>, Error> {
        Ok(Lent::new(buffer.readable()?, false))
    }

    /// Sends to rank `to` when the stream gets there. The stream's later work begins when the buffer can be reused.
    ///
    /// # Errors
    /// The communicator has no rank `to`, the tag is negative, a nonblocking receive into the buffer is not waited for, an
    /// earlier message on the stream failed and no one was told, or the driver refused. Nothing was added then. Later
    /// failures are told by the next call on the stream.
    pub fn send(&'scope self, on: &Communicator, buffer: &Lent<'scope>, to: Rank, tag: i32) -> Result<(), Error> {
        let operation = Operation::send(&buffer.buffer(), to, tag);
        self.start(on, buffer, operation, |batch| self.add_send(batch, on, buffer, to, tag, true)).map(drop)
    }

    /// Receives when the stream gets there. The stream's later work begins when the message is in the buffer.
    ///
    /// # Errors
    /// As [`send`](Self::send), for any nonblocking message of the buffer.
    pub fn recv(
        &'scope self,
        on: &Communicator,
        buffer: &Lent<'scope>,
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
    ) -> Result<(), Error> {
        let (from, tag) = (from.into(), tag.into());
        let operation = Operation::receive(&buffer.buffer(), from, tag);
        self.start(on, buffer, operation, |batch| self.add_receive(batch, on, buffer, (from, tag), true)).map(drop)
    }

    /// Sends to rank `to` when the stream gets there. The stream goes on at once.
    ///
    /// # Errors
    /// As [`send`](Self::send). [`StreamRequest::finish`] returns later failures, too.
    pub fn isend(
        &'scope self,
        on: &Communicator,
        buffer: &Lent<'scope>,
        to: Rank,
        tag: i32,
    ) -> Result<StreamRequest<'scope>, Error> {
        let operation = Operation::send(&buffer.buffer(), to, tag);
        let message = self.start(on, buffer, operation, |batch| self.add_send(batch, on, buffer, to, tag, false))?;
        Ok(StreamRequest { message, operation, uses: Some(buffer.begin(Use::Read)), scope: PhantomData })
    }

    /// Receives when the stream gets there. The stream goes on at once.
    ///
    /// # Errors
    /// As [`recv`](Self::recv). [`StreamRequest::finish`] returns later failures, too.
    pub fn irecv(
        &'scope self,
        on: &Communicator,
        buffer: &Lent<'scope>,
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
    ) -> Result<StreamRequest<'scope>, Error> {
        let (from, tag) = (from.into(), tag.into());
        let operation = Operation::receive(&buffer.buffer(), from, tag);
        let message =
            self.start(on, buffer, operation, |batch| self.add_receive(batch, on, buffer, (from, tag), false))?;
        Ok(StreamRequest { message, operation, uses: Some(buffer.begin(Use::Write)), scope: PhantomData })
    }

    /// Makes the stream wait until the messages are over. Its later work may use their buffers.
    ///
    /// # Errors
    /// An earlier message on the stream failed and no one was told, or the driver refused.
    pub fn wait(&'scope self, requests: &mut [StreamRequest<'scope>]) -> Result<(), Error> {
        let messages: Vec<&StreamMessage> = requests.iter().map(|request| &*request.message).collect();
        self.pending.stream.stream.wait(&messages)?;
        requests.iter_mut().for_each(StreamRequest::end_use);
        Ok(())
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.pending.stream.stream
    }

    pub(super) fn world(&self) -> &Inner {
        &self.pending.stream.world
    }

    pub(super) fn keep_prepared(&self, prepared: Rc<Prepared>, on: &Communicator) {
        self.pending.prepared.borrow_mut().push((prepared, on.clone()));
    }

    /// Adds one message to the stream, and keeps it.
    fn start(
        &'scope self,
        on: &Communicator,
        buffer: &Lent<'scope>,
        operation: Operation,
        add: impl FnOnce(&mut StreamBatch<'_>) -> Result<StreamMessage, cableway_pml::Error>,
    ) -> Result<Arc<StreamMessage>, Error> {
        buffer.check(if operation.verb == "send" { Use::Read } else { Use::Write })?;
        let message = Arc::new(self.pending.stream.add(operation, add)?);
        self.keep_message(Kept { message: message.clone(), operation, _communicator: Some(on.clone()) });
        Ok(message)
    }

    pub(super) fn keep_message(&self, kept: Kept) {
        self.pending.messages.keep(kept);
    }

    pub(super) fn add_send(
        &self,
        batch: &mut StreamBatch<'_>,
        on: &Communicator,
        buffer: &Lent<'scope>,
        to: Rank,
        tag: i32,
        blocks: bool,
    ) -> Result<StreamMessage, cableway_pml::Error> {
        // SAFETY: the buffer is borrowed for as long as the scope, which ends after the message. `Lent` refuses conflicts.
        unsafe { add::send(batch, on, buffer.buffer(), (to, tag), blocks) }
    }

    pub(super) fn add_receive(
        &self,
        batch: &mut StreamBatch<'_>,
        on: &Communicator,
        buffer: &Lent<'scope>,
        from_tag: (Sender, Tag),
        blocks: bool,
    ) -> Result<StreamMessage, cableway_pml::Error> {
        // SAFETY: as in `add_send`.
        unsafe { add::receive(batch, on, buffer.buffer(), from_tag, blocks) }
    }
}

impl Pending<'_> {
    /// Waits for the stream's calls while a panic unwinds: unwinding must not free their buffers. Receives that no
    /// message has matched are cancelled. Aborts if the calls do not end in time.
    fn end_in_panic(&self) {
        let end = Instant::now() + PANIC_TIMEOUT;
        while self.messages.cancel_rest() {
            if Instant::now() > end {
                log::error!("aborting: a thread panicked while a stream uses its memory");
                std::process::abort();
            }
            std::thread::yield_now();
        }
        // Prepared operations that the peer never posts.
        while !self.has_passed_prepared() {
            if Instant::now() > end {
                log::error!("aborting: a thread panicked while a stream uses its memory");
                std::process::abort();
            }
            std::thread::yield_now();
        }
    }

    /// Returns whether the stream needs no buffer of a prepared operation any more.
    fn has_passed_prepared(&self) -> bool {
        if self.prepared.borrow().is_empty() {
            return true;
        }
        let stream = &self.stream.stream;
        let mark = *self.panic_mark.get_or_init(|| stream.mark().ok());
        mark.is_none_or(|mark| stream.has_passed(mark))
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end_in_panic();
        }
        let passed = self.stream.stream.mark().and_then(|mark| self.stream.stream.wait_for_mark(mark));
        if let Err(error) = passed {
            log::debug!("the end of a stream's scope: {error}");
        }
        self.prepared.borrow_mut().drain(..).for_each(|(prepared, _communicator)| prepared.end());
        drop(self.messages.wait());
    }
}

impl StreamRequest<'_> {
    /// Waits on the calling thread until the message is over, and returns its status as
    /// [`Request::wait`](crate::Request::wait) does.
    ///
    /// # Errors
    /// The message failed.
    pub fn finish(mut self) -> Result<Status, Error> {
        let result = self.message.wait();
        self.end_use();
        result.map(|status| described(&self.operation, status)).map_err(|error| self.operation.failed(error))
    }

    /// Returns whether the message is over, so that [`finish`](Self::finish) would return at once.
    pub fn is_complete(&self) -> bool {
        self.message.is_over()
    }

    fn end_use(&mut self) {
        if let Some(uses) = self.uses.take() {
            uses.end();
        }
    }
}
