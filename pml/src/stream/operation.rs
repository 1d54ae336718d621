//! A message that a stream starts.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_common_cuda::Devices;
use parking_lot::Mutex;

use super::queue::Awaited;
use crate::buffer::{Buffer, OwnedBuffer};
use crate::error::Error;
use crate::status::{Outcome, PROC_NULL, Status};
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

impl Described {
    /// Describes a send to rank `dest`.
    ///
    /// # Errors
    /// A bad rank or tag.
    pub(super) fn send(to: &Arc<Communicator>, dest: i32, tag: i32, buffer: Buffer<'_>) -> Result<Described, Error> {
        if dest != PROC_NULL {
            to.destination(dest, tag)?;
        }
        let (communicator, buffer) = (to.clone(), buffer.to_owned());
        Ok(Described { communicator, way: Way::Send, peer: dest, tag, buffer })
    }

    /// Describes a receive from rank `source`.
    ///
    /// # Errors
    /// A bad rank or tag.
    pub(super) fn receive(
        on: &Arc<Communicator>,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<Described, Error> {
        if source != PROC_NULL {
            on.pattern(source, tag)?;
        }
        let (communicator, buffer) = (on.clone(), buffer.to_owned());
        Ok(Described { communicator, way: Way::Receive, peer: source, tag, buffer })
    }

    /// Describes the same message of another buffer, in host memory.
    pub(super) fn in_host(&self, address: *mut u8, len: usize) -> Described {
        let Described { ref communicator, way, peer, tag, .. } = *self;
        let buffer = Buffer::bytes(address, len as u64).in_host().to_owned();
        Described { communicator: communicator.clone(), way, peer, tag, buffer }
    }

    /// Checks the buffer of a message that starts later. The driver is asked for a new allocation now, and not while a stream
    /// waits or a kernel runs.
    ///
    /// # Errors
    /// The length does not fit in 64 bits.
    pub(super) fn check_early(&self, devices: &Devices) -> Result<(), Error> {
        let buffer = self.buffer.borrow();
        buffer.packed_len()?;
        buffer.classify(devices);
        Ok(())
    }
}

/// What follows a message.
pub(super) type Then = Box<dyn FnOnce(&Result<Status, Error>) + Send>;

/// An operation of several messages that starts when its stream gets to it, and is polled by the thread of streams. It
/// allocates, frees and registers nothing while it is polled, and waits for no stream of the program.
pub trait StreamJob: Send {
    /// Makes progress without blocking. Returns the result once it has ended, and is not polled any more then.
    fn poll(&mut self) -> Option<Result<(), Error>>;

    /// Lets the stream pass what the job alone can end: nobody polls it any more.
    fn let_go(&mut self) {}
}

/// What starts.
enum What {
    Message(Described),
    /// A receive whose data the stream has copied when this starts.
    Landing(Arc<Message>),
    /// `None` once it has been dropped before it started.
    Job(Mutex<Option<Box<dyn StreamJob>>>),
}

/// A message or a job that starts when its stream gets to it. Its memory does not move.
pub(super) struct Message {
    request: Request,
    what: What,
    result: OnceLock<Result<Status, Error>>,
    /// Called when the message is over. Locked while the result is set.
    thens: Mutex<Vec<Then>>,
    /// A call of the host has returned the error.
    told: AtomicBool,
    /// A receive that nobody wants any more, before or after its stream got there.
    cancelled: AtomicBool,
}

impl Message {
    pub(super) fn new(described: Described) -> Arc<Message> {
        Message::of(What::Message(described))
    }

    /// Creates a message that starts behind the stream's copy of what another one has received.
    pub(super) fn landing(received: Arc<Message>) -> Arc<Message> {
        Message::of(What::Landing(received))
    }

    pub(super) fn job(job: Box<dyn StreamJob>) -> Arc<Message> {
        Message::of(What::Job(Mutex::new(Some(job))))
    }

    fn of(what: What) -> Arc<Message> {
        let (request, result) = (Request::new(), OnceLock::new());
        Arc::new(Message {
            request,
            what,
            result,
            thens: Mutex::default(),
            told: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
        })
    }

    /// Returns the message that receives the data of this one.
    pub(super) fn received(&self) -> &Message {
        if let What::Landing(received) = &self.what { received } else { self }
    }

    /// Starts the message on the calling thread.
    ///
    /// # Safety
    /// It is called once. The value lives, and the buffer is valid, until [`look`](Self::look) returns true.
    pub(super) unsafe fn start(&self, engine: &Engine) {
        let Described { communicator, way, peer, tag, buffer } = match &self.what {
            What::Message(described) => described,
            // It is polled with the others from now on.
            What::Landing(_) | What::Job(_) => return,
        };
        if self.is_cancelled() {
            return self.end(Ok(Status { cancelled: true, ..Status::EMPTY }));
        }
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
            // `cancel` sets the flag before it looks whether the request is active.
            Ok(Outcome::Started) if self.is_cancelled() => self.cancel(engine),
            Ok(Outcome::Started) => {}
            Ok(Outcome::Complete) => self.end(Ok(Status::EMPTY)),
            Err(error) => self.end(Err(error)),
        }
    }

    /// Looks whether a started message has ended.
    pub(super) fn look(&self) -> bool {
        if self.result.get().is_none() {
            match &self.what {
                What::Message(_) if self.request.is_complete() => self.end(self.request.result()),
                What::Message(_) => {}
                What::Landing(received) => {
                    if let Some(result) = received.result() {
                        self.end(result.clone());
                    }
                }
                What::Job(job) => {
                    let ended = job.lock().as_mut().and_then(|job| job.poll());
                    if let Some(result) = ended {
                        self.end(result.map(|()| Status::EMPTY));
                    }
                }
            }
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

    /// Lets the stream pass what only a job can end. Nothing polls the job any more.
    pub(super) fn let_go(&self) {
        if let What::Job(job) = &self.what
            && let Some(job) = &mut *job.lock()
        {
            job.let_go();
        }
    }

    /// Drops a job that has not started and never will, whoever still holds the message: others may wait for its end.
    pub(super) fn drop_job(&self) {
        let job = if let What::Job(job) = &self.what { job.lock().take() } else { None };
        drop(job);
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

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Cancels a receive that no message has matched: now, or when its stream gets there.
    pub(super) fn cancel(&self, engine: &Engine) {
        if let What::Landing(received) = &self.what {
            return received.cancel(engine);
        }
        if !matches!(&self.what, What::Message(described) if described.way == Way::Receive) {
            return;
        }
        self.cancelled.store(true, Ordering::SeqCst);
        if self.request.is_active() {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// Ends at its third poll.
    struct Third(u32);

    impl StreamJob for Third {
        fn poll(&mut self) -> Option<Result<(), Error>> {
            self.0 += 1;
            assert!(self.0 <= 3, "polled after its end");
            (self.0 == 3).then_some(Ok(()))
        }
    }

    fn told(message: &Message) -> Receiver<bool> {
        let (send, receive) = channel();
        message.then(Box::new(move |result| send.send(result.is_ok()).unwrap()));
        receive
    }

    #[test]
    fn a_job_is_polled_until_it_ends() {
        let message = Message::job(Box::new(Third(0)));
        let before = told(&message);
        assert!(!message.look() && !message.look() && before.try_recv().is_err());
        assert!(message.look() && message.look());
        assert!(before.try_recv().unwrap(), "called at the end");
        assert!(before.try_recv().is_err(), "called once");
        assert!(told(&message).try_recv().unwrap(), "called at once after the end");
    }

    #[test]
    fn the_first_end_counts() {
        let message = Message::job(Box::new(Third(0)));
        let before = told(&message);
        message.end(Err(Error::StreamsEnded));
        message.end(Ok(Status::EMPTY));
        assert!(message.look(), "an ended job is not polled");
        assert!(!before.try_recv().unwrap() && before.try_recv().is_err());
        assert!(message.tell() && !message.tell(), "its error is told once");
    }
}
