//! Calls on a stream.

use std::sync::Arc;

use cableway_common_cuda::{WaitCondition, WordOperation};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::message::StreamMessage;
use super::operation::{Described, Message, StreamJob, Way};
use super::shared::Shared;
use super::state::StreamState;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::status::PROC_NULL;
use crate::tag::Communicator;

/// A stream of the program on which messages are sent and received. Made by [`Streams::stream`](super::Streams::stream).
///
/// Calls return at once. Every method may be called from any thread; calls of several threads have the order in which
/// they take a lock. A call returns the error of an earlier message that no one has asked for its result, and then does
/// nothing itself.
///
/// A value that is dropped leaves its calls on the stream, which are done as before.
pub struct Stream {
    shared: Arc<Shared>,
    state: Arc<StreamState>,
}

/// Calls that reach the stream together, in their order: the driver is called once for all of them. Made by
/// [`Stream::batch`].
pub struct StreamBatch<'s> {
    stream: &'s Stream,
    /// The number of the last call. Locked, so that no other call comes between.
    last: MutexGuard<'s, u64>,
    /// The number before the first call.
    before: u64,
    /// The mark before the first call.
    mark: u64,
    operations: SmallVec<[WordOperation; 4]>,
}

impl Stream {
    pub(super) fn new(shared: Arc<Shared>, state: Arc<StreamState>) -> Stream {
        Stream { shared, state }
    }

    /// Returns the program's handle of the stream.
    pub fn handle(&self) -> usize {
        self.state.program.handle()
    }

    /// Begins calls that reach the stream together.
    ///
    /// # Errors
    /// An earlier message failed, and no one was told.
    pub fn batch(&self) -> Result<StreamBatch<'_>, Error> {
        self.shared.check()?;
        if let Some(error) = self.state.untold() {
            return Err(error);
        }
        let last = self.state.last.lock();
        let (before, mark) = (*last, self.state.queue.lock().last_mark());
        Ok(StreamBatch { stream: self, last, before, mark, operations: SmallVec::new() })
    }

    /// Sends when the stream gets there. The stream goes on at once.
    ///
    /// # Safety
    /// The buffer stays valid, and unwritten other than by earlier work of the stream, until the message is over. The
    /// communicator stays in the engine.
    ///
    /// # Errors
    /// A bad rank or tag, an earlier message's error, or the driver refused. Nothing was added then.
    pub unsafe fn isend(
        &self,
        to: &Arc<Communicator>,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        let mut batch = self.batch()?;
        // SAFETY: the caller's promise.
        let message = unsafe { batch.isend(to, dest, tag, buffer) }?;
        batch.post().map(|()| message)
    }

    /// Receives when the stream gets there, as [`Engine::irecv`](crate::Engine::irecv). The stream goes on at once.
    ///
    /// # Safety
    /// The buffer stays valid, and untouched other than by earlier work of the stream, until the message is over. The
    /// communicator stays in the engine.
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn irecv(
        &self,
        on: &Arc<Communicator>,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        let mut batch = self.batch()?;
        // SAFETY: the caller's promise.
        let message = unsafe { batch.irecv(on, source, tag, buffer) }?;
        batch.post().map(|()| message)
    }

    /// Sends when the stream gets there. Later work of the stream begins when the buffer can be reused.
    ///
    /// # Safety
    /// As [`isend`](Self::isend).
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn send(
        &self,
        to: &Arc<Communicator>,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        let mut batch = self.batch()?;
        // SAFETY: the caller's promise.
        let message = unsafe { batch.isend(to, dest, tag, buffer) }?;
        batch.wait(&[&message]);
        batch.post().map(|()| message)
    }

    /// Receives when the stream gets there. Later work of the stream begins when the message is in the buffer.
    ///
    /// # Safety
    /// As [`irecv`](Self::irecv).
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn recv(
        &self,
        on: &Arc<Communicator>,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        let mut batch = self.batch()?;
        // SAFETY: the caller's promise.
        let message = unsafe { batch.irecv(on, source, tag, buffer) }?;
        batch.wait(&[&message]);
        batch.post().map(|()| message)
    }

    /// Makes the stream wait until all of the messages are over, on whichever streams they started.
    ///
    /// # Errors
    /// An earlier message's error, or the driver refused.
    pub fn wait(&self, messages: &[&StreamMessage]) -> Result<(), Error> {
        let mut batch = self.batch()?;
        batch.wait(messages);
        batch.post()
    }

    /// Adds operations on the program's words to the stream, in their order.
    ///
    /// # Safety
    /// Every word is valid until the stream has passed the operations, and its other users access it atomically.
    ///
    /// # Errors
    /// An earlier message's error, or the driver refused.
    pub unsafe fn operate(&self, operations: &[WordOperation]) -> Result<(), Error> {
        let mut batch = self.batch()?;
        // SAFETY: the caller's promise.
        unsafe { batch.operate(operations) };
        batch.post()
    }

    /// Marks the present end of the stream, for [`wait_for_mark`](Self::wait_for_mark).
    ///
    /// # Errors
    /// The driver refused, or the thread has ended. Errors of earlier messages are not told here.
    pub fn mark(&self) -> Result<u64, Error> {
        self.shared.check()?;
        let last = self.state.last.lock();
        let (before, mark) = (*last, self.state.queue.lock().last_mark());
        let mut batch = StreamBatch { stream: self, last, before, mark, operations: SmallVec::new() };
        let number = batch.next();
        batch.reach(number);
        batch.post().map(|()| number)
    }

    /// Waits on the calling thread until the stream has passed a mark.
    ///
    /// # Errors
    /// This process is a forked child.
    pub fn wait_for_mark(&self, mark: u64) -> Result<(), Error> {
        match self.shared.wait_until(|| self.state.has_passed(mark)) {
            Err(Error::StreamsEnded) => {
                // The stream waits for nothing any more.
                while !self.state.has_passed(mark) {
                    std::thread::yield_now();
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Returns the error of an earlier message that no one was told.
    ///
    /// # Errors
    /// That one.
    pub fn check(&self) -> Result<(), Error> {
        self.state.untold().map_or(Ok(()), Err)
    }
}

impl StreamBatch<'_> {
    /// As [`Stream::isend`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// A bad rank or tag. The other calls of the batch are not affected.
    pub unsafe fn isend(
        &mut self,
        to: &Arc<Communicator>,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        if dest != PROC_NULL {
            to.destination(dest, tag)?;
        }
        self.start(to, Way::Send, (dest, tag), buffer)
    }

    /// As [`Stream::irecv`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn irecv(
        &mut self,
        on: &Arc<Communicator>,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        if source != PROC_NULL {
            on.pattern(source, tag)?;
        }
        self.start(on, Way::Receive, (source, tag), buffer)
    }

    /// Starts a job when the stream gets there. What it returns stands for it as for a message.
    ///
    /// # Safety
    /// The memory that the job uses stays valid, and untouched other than by earlier work of the stream, until it is over.
    pub unsafe fn run(&mut self, job: Box<dyn StreamJob>) -> StreamMessage {
        let message = Message::job(job);
        let number = self.next();
        self.stream.state.queue.lock().start_at(number, message.clone());
        self.write(number);
        StreamMessage::new(self.stream.shared.clone(), message)
    }

    /// Makes the stream wait until all of the messages are over.
    pub fn wait(&mut self, messages: &[&StreamMessage]) {
        let open: Vec<Arc<Message>> =
            messages.iter().map(|message| message.inner().clone()).filter(|message| !message.is_over()).collect();
        // What a message has written is visible to the stream's later work, as to any work that is added now.
        if open.is_empty() {
            return;
        }
        let number = self.next();
        let StreamState { queue, .. } = &*self.stream.state;
        queue.lock().wait_at(number, open);
        let address = self.stream.state.released_address();
        self.operations.push(WordOperation::wait(address, number, WaitCondition::GreaterOrEqual));
    }

    /// As [`Stream::operate`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn operate(&mut self, operations: &[WordOperation]) {
        self.operations.extend_from_slice(operations);
    }

    /// Adds the calls to the stream.
    ///
    /// # Errors
    /// The driver refused. Messages of the batch are over, with this error.
    pub fn post(mut self) -> Result<(), Error> {
        let operations = std::mem::take(&mut self.operations);
        if operations.is_empty() {
            return Ok(());
        }
        // The thread may look before the stream writes, which does no harm.
        // SAFETY: the words of the state live as long as the stream uses them; others are the promise of `operate`'s
        // caller.
        let posted = unsafe { self.stream.state.program.operate(&operations) }.map_err(Error::Stream);
        if let Err(error) = &posted {
            self.withdraw(error);
        }
        self.stream.shared.called();
        posted
    }

    fn start(
        &mut self,
        communicator: &Arc<Communicator>,
        way: Way,
        (peer, tag): (i32, i32),
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        buffer.packed_len()?;
        // The driver is asked for a new allocation now, and not while the stream waits.
        buffer.classify(self.stream.shared.engine.devices());
        let (communicator, buffer) = (communicator.clone(), buffer.to_owned());
        let message = Message::new(Described { communicator, way, peer, tag, buffer });
        let number = self.next();
        self.stream.state.queue.lock().start_at(number, message.clone());
        self.write(number);
        Ok(StreamMessage::new(self.stream.shared.clone(), message))
    }

    /// Returns the number of the next call.
    fn next(&mut self) -> u64 {
        *self.last += 1;
        *self.last
    }

    /// Makes the stream write the number of a mark.
    fn reach(&mut self, number: u64) {
        self.stream.state.queue.lock().mark(number);
        self.write(number);
    }

    /// Makes the stream write a number. It stands for those before it.
    fn write(&mut self, number: u64) {
        let address = self.stream.state.reached_address();
        match self.operations.last_mut() {
            Some(last) if last.address == address => last.value = number,
            _ => self.operations.push(WordOperation::write(address, number)),
        }
    }

    /// Ends the batch's messages. If the driver took a part of the calls, the stream passes it.
    fn withdraw(&mut self, error: &Error) {
        let withdrawn = self.stream.state.queue.lock().withdraw(self.before, self.mark);
        withdrawn.iter().for_each(|message| message.end(Err(error.clone())));
    }
}

impl Drop for StreamBatch<'_> {
    /// Ends the messages of a batch that was not posted.
    fn drop(&mut self) {
        if !self.operations.is_empty() {
            self.withdraw(&Error::BadRequest { reason: "its batch was dropped" });
            self.stream.shared.called();
        }
    }
}
