//! Probes, and messages that matched probes took.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::arrive::{cannot_wait, deliver_waiting, note_taken, refuse};
use super::communicator::{Communicator, Matching};
use super::engine::Engine;
use super::matching::Pattern;
use super::reach;
use super::request::{Receive, Request};
use super::wait::AbortUnlessComplete;
use crate::abort::Abort;
use crate::buffer::Buffer;
use crate::core::Done;
use crate::error::Error;
use crate::protocol::{Content, UnexpectedMessage};
use crate::status::{PROC_NULL, Status};

/// A message that a matched probe took out of the queue. Dropping it discards the message, and aborts it at a sender
/// that waits.
pub struct Message {
    status: Status,
    engine: Weak<Engine>,
    taken: Option<Taken>,
}

/// `None` for `MPI_MESSAGE_NO_PROC`.
struct Taken {
    communicator: Arc<Communicator>,
    source: u32,
    unexpected: UnexpectedMessage,
}

impl Message {
    /// Returns the bytes of a message that came whole, or `None` if they must be received.
    pub(crate) fn payload(&self) -> Option<&[u8]> {
        let unexpected = &self.taken.as_ref()?.unexpected;
        matches!(unexpected.content, Content::Eager).then_some(&unexpected.payload)
    }

    /// Returns the status that a probe would return.
    pub fn status(&self) -> Status {
        self.status
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let (Some(taken), Some(engine)) = (self.taken.take(), self.engine.upgrade()) else { return };
        discard(&engine, &taken.communicator, taken.source, &taken.unexpected);
    }
}

/// Gives the sender its credit back, and aborts the message if it waits.
fn discard(engine: &Engine, on: &Communicator, source: u32, unexpected: &UnexpectedMessage) {
    if let Some(slot) = engine.known(on.group()[source as usize]) {
        let mut done = Done::default();
        note_taken(slot, unexpected);
        refuse(engine, slot, unexpected, Abort::Discarded, &mut done);
        done.run();
    }
}

impl Engine {
    /// Looks for a message that a receive with these arguments would match, without removing it. Makes progress once if
    /// there is none.
    ///
    /// # Errors
    /// A bad rank, or the peer failed.
    pub fn iprobe(&self, on: &Communicator, source: i32, tag: i32) -> Result<Option<Status>, Error> {
        self.look(on, source, tag, |matching, pattern| {
            let (source, tag, unexpected) = matching.matcher.peek(pattern)?;
            Some(Status { source: source as i32, tag, len: unexpected.len(), cancelled: false })
        })
        .map(|found| found.unwrap_or(Some(Status::EMPTY)))
    }

    /// Waits for such a message.
    ///
    /// # Errors
    /// As [`iprobe`](Self::iprobe).
    pub fn probe(&self, on: &Communicator, source: i32, tag: i32) -> Result<Status, Error> {
        self.wait_for(on, source, || self.iprobe(on, source, tag))
    }

    /// Probes as [`iprobe`](Self::iprobe) does, and takes the message: from now on only [`imrecv`](Self::imrecv) can
    /// receive it.
    ///
    /// # Errors
    /// As `iprobe`.
    pub fn improbe(&self, on: &Arc<Communicator>, source: i32, tag: i32) -> Result<Option<Message>, Error> {
        let taken = self.look(on, source, tag, |matching, pattern| matching.matcher.take(pattern))?;
        let Some(taken) = taken else {
            return Ok(Some(Message { status: Status::EMPTY, engine: Weak::new(), taken: None }));
        };
        Ok(taken.map(|taken| self.taken(on, taken)))
    }

    /// Makes a message of what was taken out of a queue.
    pub(super) fn taken(
        &self,
        on: &Arc<Communicator>,
        (source, tag, unexpected): (u32, i32, UnexpectedMessage),
    ) -> Message {
        Message {
            status: Status { source: source as i32, tag, len: unexpected.len(), cancelled: false },
            engine: self.me.clone(),
            taken: Some(Taken { communicator: on.clone(), source, unexpected }),
        }
    }

    /// Waits for such a message and takes it.
    ///
    /// # Errors
    /// As [`iprobe`](Self::iprobe).
    pub fn mprobe(&self, on: &Arc<Communicator>, source: i32, tag: i32) -> Result<Message, Error> {
        self.wait_for(on, source, || self.improbe(on, source, tag))
    }

    /// Starts to receive a message that a matched probe of this engine took. Errors are reported in the request, and
    /// the message is then discarded.
    ///
    /// # Safety
    /// As [`irecv`](Self::irecv).
    pub unsafe fn imrecv(&self, mut message: Message, buffer: Buffer<'_>, request: *const Request) {
        let Some(request) = NonNull::new(request.cast_mut()) else { return };
        // SAFETY: the caller's promise.
        let mut receive = unsafe { Receive::new(request) };
        let mut done = Done::default();
        if let Err(error) = buffer.packed_len() {
            receive.fail(error, &mut done);
        } else if message.taken.is_some() && !message.engine.ptr_eq(&self.me) {
            receive.fail(Error::OtherEngine, &mut done);
        } else if let Some(Taken { communicator, source, unexpected }) = message.taken.take() {
            // SAFETY: the caller's promise lasts until the operation is complete.
            unsafe { receive.buffer().renew(buffer, self.devices()) };
            deliver_waiting(self, &communicator, (receive, source), unexpected, &mut done);
        } else {
            receive.complete(Status::EMPTY, None, &mut done);
        }
        done.run();
    }

    /// Receives a message that a matched probe of this engine took.
    ///
    /// # Safety
    /// The buffer is valid for writes.
    ///
    /// # Errors
    /// Those of the operation.
    pub unsafe fn mrecv(&self, message: Message, buffer: Buffer<'_>) -> Result<Status, Error> {
        let request = AbortUnlessComplete::new();
        // SAFETY: the request is new, and this frame, which holds the buffer, does not return before it is complete.
        unsafe { self.imrecv(message, buffer, request.started()) };
        self.wait_until(|| request.is_complete());
        request.result()
    }

    /// Calls `find` under the matching lock, at most twice. Returns `None` for a peer that does not exist.
    fn look<T>(
        &self,
        on: &Communicator,
        source: i32,
        tag: i32,
        find: impl Fn(&mut Matching, Pattern) -> Option<T>,
    ) -> Result<Option<Option<T>>, Error> {
        self.core().check_open()?;
        if source == PROC_NULL {
            return Ok(None);
        }
        let pattern = on.pattern(source, tag)?;
        let found = find(&mut on.matching.lock(), pattern);
        if found.is_some() {
            return Ok(Some(found));
        }
        self.progress();
        let mut matching = on.matching.lock();
        let found = find(&mut matching, pattern);
        match cannot_wait(self, on, &matching, source) {
            Some(error) if found.is_none() => Err(error),
            _ => Ok(Some(found)),
        }
    }

    fn wait_for<T>(
        &self,
        on: &Communicator,
        source: i32,
        mut find: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let mut found = Ok(None);
        let mut rounds = 0;
        self.wait_until(|| {
            found = find();
            rounds += 1;
            if matches!(found, Ok(None)) && reach::is_due(rounds) {
                found = reach::look_for(self, on, source).map(|()| None);
            }
            !matches!(found, Ok(None))
        });
        // `wait_until` returns only once there is an answer.
        found.and_then(|found| found.ok_or(Error::Finalized))
    }
}
