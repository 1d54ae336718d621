//! Several calls that reach a stream together.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_common_cuda::{WaitCondition, WordAccess, WordOperation};

use super::kept::Kept;
use super::lent::{Lent, Use};
use super::prepared::PreparedMessage;
use super::scope::StreamScope;
use super::{StreamWord, word_operation};
use crate::communicator::Communicator;
use crate::error::{Error, Operation};
use crate::selector::{Sender, Tag};

/// A call of [`StreamScope::enqueue`].
#[derive(Clone, Copy, Debug)]
pub struct StreamCall<'c, 'scope>(Call<'c, 'scope>);

#[derive(Clone, Copy)]
enum Call<'c, 'scope> {
    Send { on: &'c Communicator, buffer: &'c Lent<'scope>, to: Rank, tag: i32 },
    Receive { on: &'c Communicator, buffer: &'c Lent<'scope>, from: Sender, tag: Tag },
    Post(&'c PreparedMessage<'scope>),
    Operate(WordOperation),
}

impl<'c, 'scope> StreamCall<'c, 'scope> {
    /// Describes [`StreamScope::send`].
    pub fn send(on: &'c Communicator, buffer: &'c Lent<'scope>, to: Rank, tag: i32) -> Self {
        StreamCall(Call::Send { on, buffer, to, tag })
    }

    /// Describes [`StreamScope::recv`].
    pub fn recv(on: &'c Communicator, buffer: &'c Lent<'scope>, from: impl Into<Sender>, tag: impl Into<Tag>) -> Self {
        StreamCall(Call::Receive { on, buffer, from: from.into(), tag: tag.into() })
    }

    /// Describes a post of a prepared operation, as [`StreamScope::post`].
    pub fn post(message: &'c PreparedMessage<'scope>) -> Self {
        StreamCall(Call::Post(message))
    }

    /// Describes [`StreamRef::write_value`](super::StreamRef::write_value).
    ///
    /// # Safety
    /// As there, wherever the call is added to a stream.
    ///
    /// # Errors
    /// The word is misaligned.
    pub unsafe fn write_value(word: StreamWord, value: u64) -> Result<Self, Error> {
        Ok(StreamCall(Call::Operate(word_operation(word, value, WordAccess::Write)?)))
    }

    /// Describes [`StreamRef::wait_value`](super::StreamRef::wait_value).
    ///
    /// # Safety
    /// As there, wherever the call is added to a stream.
    ///
    /// # Errors
    /// The word is misaligned.
    pub unsafe fn wait_value(word: StreamWord, value: u64, condition: WaitCondition) -> Result<Self, Error> {
        Ok(StreamCall(Call::Operate(word_operation(word, value, WordAccess::Wait(condition))?)))
    }
}

impl<'scope> StreamScope<'scope, '_> {
    /// Adds calls to the stream, in their order. Adjacent writes and waits, also those of messages, reach the driver
    /// together where it allows that: NVIDIA's takes at most 255 at a time.
    ///
    /// # Errors
    /// Those of the calls. Nothing was added then, unless the driver refused a part.
    pub fn enqueue(&'scope self, calls: &[StreamCall<'_, 'scope>]) -> Result<(), Error> {
        for StreamCall(call) in calls {
            match call {
                Call::Send { buffer, .. } => buffer.check(Use::Read)?,
                Call::Receive { buffer, .. } => buffer.check(Use::Write)?,
                Call::Post(message) => message.check()?,
                Call::Operate(_) => {}
            }
        }
        let mut batch = self.stream().batch()?;
        let mut kept = Vec::new();
        for StreamCall(call) in calls {
            let (message, operation, on) = match *call {
                Call::Send { on, buffer, to, tag } => {
                    let operation = Operation::send(&buffer.buffer(), to, tag);
                    (self.add_send(&mut batch, on, buffer, to, tag, true), operation, on)
                }
                Call::Receive { on, buffer, from, tag } => {
                    let operation = Operation::receive(&buffer.buffer(), from, tag);
                    (self.add_receive(&mut batch, on, buffer, (from, tag), true), operation, on)
                }
                Call::Post(message) => {
                    message.append_to(&mut batch)?;
                    continue;
                }
                Call::Operate(operation) => {
                    // SAFETY: who made the call promised it.
                    unsafe { batch.operate(&[operation]) };
                    continue;
                }
            };
            let message = message.map_err(|error| operation.failed(error))?;
            kept.push(Kept { message: Arc::new(message), operation, _communicator: Some(on.clone()) });
        }
        batch.post()?;
        kept.into_iter().for_each(|kept| self.keep_message(kept));
        Ok(())
    }
}

impl std::fmt::Debug for Call<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Call::Send { to, tag, .. } => write!(f, "send to {to}, tag {tag}"),
            Call::Receive { from, tag, .. } => write!(f, "receive from {from:?}, tag {tag:?}"),
            Call::Post(message) => write!(f, "{message:?}"),
            Call::Operate(operation) => write!(f, "{operation:?}"),
        }
    }
}
