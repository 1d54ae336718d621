//! A message that a stream starts.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::queue::Awaited;
use crate::buffer::OwnedBuffer;
use crate::error::Error;
use crate::status::{Outcome, Status};
use crate::tag::{Communicator, Engine, Request, SendMode};

/// Which way the message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Send,
    Receive,
}

/// The arguments of a message that starts later.
pub(super) struct Described {
    pub(super) communicator: Arc<Communicator>,
    pub(super) way: Way,
    pub(super) peer: i32,
    pub(super) tag: i32,
    pub(super) buffer: OwnedBuffer,
}

/// What follows a message.
pub(super) type Then = Box<dyn FnOnce(&Result<Status, Error>) + Send>;

/// A message that starts when its stream gets to it. Its memory does not move.
pub(super) struct Message {
    request: Request,
    described: Described,
    result: OnceLock<Result<Status, Error>>,
    /// Called when the message is over. Locked while the result is set.
    thens: Mutex<Vec<Then>>,
    /// A call of the host has returned the error.
    told: AtomicBool,
}

impl Message {
    pub(super) fn new(described: Described) -> Arc<Message> {
        let (request, result) = (Request::new(), OnceLock::new());
        Arc::new(Message { request, described, result, thens: Mutex::default(), told: AtomicBool::new(false) })
    }

    /// Starts the message on the calling thread.
    ///
    /// # Safety
    /// It is called once. The value lives, and the buffer is valid, until [`look`](Self::look) returns true.
    pub(super) unsafe fn start(&self, engine: &Engine) {
        let Described { communicator, way, peer, tag, buffer } = &self.described;
        // The stream has passed the program's work on the buffer, and may hold up the default stream.
        let (buffer, request) = (buffer.borrow().settled(), &raw const self.request);
        let started = match way {
            // SAFETY: the caller's promise.
            Way::Send => unsafe { engine.isend(communicator, *peer, *tag, buffer, &SendMode::Standard, request) },
            // SAFETY: the caller's promise.
            Way::Receive => unsafe {
                engine.irecv(communicator, *peer, *tag, buffer, request).map(|()| Outcome::Started)
            },
        };
        match started {
            Ok(Outcome::Started) => {}
            Ok(Outcome::Complete) => self.end(Ok(Status::EMPTY)),
            Err(error) => self.end(Err(error)),
        }
    }

    /// Looks whether a started message has ended.
    pub(super) fn look(&self) -> bool {
        if self.result.get().is_none() && self.request.is_complete() {
            self.end(self.request.result());
        }
        self.is_over()
    }

    /// Ends the message, unless it has ended. The stream that waits for it is released later, so that it sees what the
    /// functions of [`then`](Self::then) write.
    pub(super) fn end(&self, result: Result<Status, Error>) {
        let mut waiting = self.thens.lock();
        if self.result.set(result).is_ok() {
            let thens = std::mem::take(&mut *waiting);
            drop(waiting);
            thens.into_iter().for_each(|then| self.call(then));
        }
    }

    /// Calls a function once the message is over: now, or on the thread that ends it.
    pub(super) fn then(&self, then: Then) {
        let mut waiting = self.thens.lock();
        if self.is_over() {
            drop(waiting);
            self.call(then);
        } else {
            waiting.push(then);
        }
    }

    fn call(&self, then: Then) {
        if let Some(result) = self.result() {
            then(result);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.result.get().is_some()
    }

    /// Returns the result of an ended message.
    pub(super) fn result(&self) -> Option<&Result<Status, Error>> {
        self.result.get()
    }

    /// Notes that a call of the host returns the error. Returns whether it is the first one.
    pub(super) fn tell(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }

    /// Cancels a started receive that no message has matched.
    pub(super) fn cancel(&self, engine: &Engine) {
        if self.described.way == Way::Receive && self.request.is_active() {
            let request = NonNull::from(&self.request).as_ptr();
            // SAFETY: the request was started on this engine only, and is valid.
            unsafe { engine.cancel(request) };
        }
    }
}

impl Awaited for Arc<Message> {
    fn is_over(&self) -> bool {
        Message::is_over(self)
    }
}
