//! Calls on a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cableway_common_cuda::WordOperation;

use super::batch::StreamBatch;
use super::message::StreamMessage;
use super::shared::Shared;
use super::state::StreamState;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::tag::Communicator;

/// A stream of the program on which messages are sent and received. Made by [`Streams::stream`](super::Streams::stream).
///
/// Calls return at once. Every method may be called from any thread; calls of several threads have the order in which
/// they take a lock. A call returns the error of an earlier message that no one has asked for its result, and then does
/// nothing itself.
///
/// A value that is dropped leaves its calls on the stream, which are done as before.
pub struct Stream {
    pub(super) shared: Arc<Shared>,
    pub(super) state: Arc<StreamState>,
    /// Whether it no longer describes the stream.
    retired: AtomicBool,
}

impl Stream {
    pub(super) fn new(shared: Arc<Shared>, state: Arc<StreamState>) -> Stream {
        state.described();
        Stream { shared, state, retired: AtomicBool::new(false) }
    }

    /// Ends the description of the stream, which the program may destroy from now on, once every call on it is done. The
    /// value must not be used for calls any more. It still serves messages that the host waits for.
    pub fn retire(&self) {
        if !self.shared.engine.is_forked() && !self.retired.swap(true, Ordering::AcqRel) {
            self.state.described_no_more();
        }
    }

    /// Returns the program's handle of the stream.
    pub fn handle(&self) -> usize {
        self.state.program.handle()
    }

    /// Returns the driver's id of the stream's context.
    pub fn context(&self) -> u64 {
        self.state.program.location().context
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
        Ok(StreamBatch::new(&self.shared, &self.state))
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
        let message = unsafe { batch.send(to, dest, tag, buffer) }?;
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
        let message = unsafe { batch.recv(on, source, tag, buffer) }?;
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
        let mut batch = StreamBatch::new(&self.shared, &self.state);
        let number = batch.mark();
        batch.post().map(|()| number)
    }

    /// Returns whether the stream has passed a mark, or never will, because its context does no more work.
    pub fn has_passed(&self, mark: u64) -> bool {
        self.state.has_passed(mark)
    }

    /// Waits on the calling thread until the stream has passed a mark.
    ///
    /// # Errors
    /// This process is a forked child.
    pub fn wait_for_mark(&self, mark: u64) -> Result<(), Error> {
        match self.shared.wait_until(|| self.state.has_passed(mark)) {
            Err(Error::StreamsEnded) => {
                // The stream waits for nothing any more, and no thread looks whether it goes on.
                while !self.state.has_passed(mark) && self.state.check().is_ok() {
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

impl Drop for Stream {
    fn drop(&mut self) {
        self.retire();
    }
}
