//! The host's side of a message on a stream.

use std::sync::Arc;

use super::operation::Message;
use super::shared::Shared;
use crate::error::Error;
use crate::status::Status;

/// A message that starts when its stream gets to it.
pub struct StreamMessage {
    shared: Arc<Shared>,
    message: Arc<Message>,
}

impl StreamMessage {
    pub(super) fn new(shared: Arc<Shared>, message: Arc<Message>) -> StreamMessage {
        StreamMessage { shared, message }
    }

    pub(super) fn inner(&self) -> &Arc<Message> {
        &self.message
    }

    /// Waits on the calling thread until the message is over, and returns its status; see
    /// [`Request::status`](crate::Request::status).
    ///
    /// # Errors
    /// The message failed.
    pub fn wait(&self) -> Result<Status, Error> {
        self.wait_over()?;
        self.result().unwrap_or(Err(Error::StreamsEnded))
    }

    /// Waits on the calling thread until the message is over, so that the engine no longer uses its buffer. Does not tell
    /// its error.
    ///
    /// # Errors
    /// This process is a forked child.
    pub fn wait_over(&self) -> Result<(), Error> {
        let waited = self.shared.wait_until(|| self.message.is_over());
        if !matches!(waited, Err(Error::StreamsEnded)) {
            return waited;
        }
        // Nobody looks at messages any more. The thread has ended those that had not started.
        let engine = &self.shared.engine;
        self.message.cancel(engine);
        engine.wait_until(|| self.message.look());
        Ok(())
    }

    /// Returns whether the message is over.
    pub fn is_over(&self) -> bool {
        self.message.is_over()
    }

    /// Returns the result of a message that is over.
    pub fn result(&self) -> Option<Result<Status, Error>> {
        let result = self.message.result()?.clone();
        if result.is_err() {
            self.message.tell();
        }
        Some(result)
    }

    /// Returns the error of a message that is over, if this is the first call that returns it.
    pub fn untold(&self) -> Option<Error> {
        match self.message.result() {
            Some(Err(error)) if self.message.tell() => Some(error.clone()),
            _ => None,
        }
    }

    /// Calls a function with the result once the message is over: now, or on the thread that ends it. It must call
    /// neither the engine nor a stream. A stream that waits for the message ([`Stream::wait`](super::Stream::wait)) goes on after
    /// the functions that were added before the wait. They tell no error: a later call on the stream does, or [`result`](Self::result).
    pub fn then(&self, then: impl FnOnce(&Result<Status, Error>) + Send + 'static) {
        self.message.then(Box::new(then));
    }

    /// Calls a function as [`then`](Self::then) does, but before the stream goes on that waits for this receive
    /// ([`Stream::recv`](super::Stream::recv)). The data may not be in the buffer yet.
    pub fn on_arrival(&self, function: impl FnOnce(&Result<Status, Error>) + Send + 'static) {
        self.message.received().then(Box::new(function));
    }

    /// Cancels a receive that no message has matched: now, or when its stream gets there.
    pub fn cancel(&self) {
        self.message.cancel(&self.shared.engine);
    }
}
