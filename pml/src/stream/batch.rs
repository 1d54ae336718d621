//! Calls on a stream that reach it together.

use std::sync::Arc;

use cableway_common_cuda::{StreamStep, WaitCondition, WordOperation};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::bounce::Chunks;
use super::connections::warn_of_waiting;
use super::message::StreamMessage;
use super::operation::{Message, StreamJob};
use super::prepared::pair::Pair;
use super::queue::Written;
use super::shared::Shared;
use super::state::StreamState;
use crate::error::Error;

/// Calls that reach the stream together, in their order: the driver is called once for all of them. Made by
/// [`Stream::batch`](super::Stream::batch).
pub struct StreamBatch<'s> {
    pub(super) shared: &'s Arc<Shared>,
    pub(super) state: &'s Arc<StreamState>,
    /// The number of the last call. Locked, so that no other call comes between.
    last: MutexGuard<'s, u64>,
    /// The number before the first call.
    before: u64,
    /// The numbers that the stream wrote before the first call.
    written: Written,
    pub(super) steps: SmallVec<[StreamStep; 4]>,
    /// The chunks before the calls, if they have changed.
    chunks: Option<Chunks>,
    /// Receives among the calls whose data the stream copies.
    received: SmallVec<[Arc<Message>; 1]>,
    /// Prepared operations among the calls.
    prepared: SmallVec<[Arc<Pair>; 1]>,
    /// Why no graph can contain the calls.
    uncapturable: Option<Uncapturable>,
    /// The thread has something to do.
    for_thread: bool,
}

/// Why calls cannot be captured into a graph.
enum Uncapturable {
    /// The thread takes part in them, or they hold numbers.
    Numbered,
    /// A prepared operation that a thread moves.
    Thread { peer: i32, reason: &'static str },
}

impl<'s> StreamBatch<'s> {
    /// Begins calls. Holds the stream's lock.
    pub(super) fn new(shared: &'s Arc<Shared>, state: &'s Arc<StreamState>) -> Self {
        let last = state.last.lock();
        let (before, written) = (*last, state.queue.lock().written());
        StreamBatch {
            shared,
            state,
            last,
            before,
            written,
            steps: SmallVec::new(),
            chunks: None,
            received: SmallVec::new(),
            prepared: SmallVec::new(),
            uncapturable: None,
            for_thread: false,
        }
    }

    /// Starts a job when the stream gets there. What it returns stands for it as for a message.
    ///
    /// # Safety
    /// The memory that the job uses stays valid, and untouched other than by earlier work of the stream, until it is over.
    pub unsafe fn run(&mut self, job: Box<dyn StreamJob>) -> StreamMessage {
        self.start_message(Message::job(job))
    }

    /// Makes the stream wait until all of the messages are over.
    pub fn wait(&mut self, messages: &[&StreamMessage]) {
        let open: Vec<Arc<Message>> =
            messages.iter().map(|message| message.inner().clone()).filter(|message| !message.is_over()).collect();
        // What a message has written is visible to the stream's later work, as to any work that is added now.
        if !open.is_empty() {
            self.wait_for(open);
        }
    }

    pub(super) fn wait_for(&mut self, open: Vec<Arc<Message>>) {
        let number = self.next();
        self.state.queue.lock().wait_at(number, open);
        let address = self.state.released_address();
        self.push(WordOperation::wait(address, number, WaitCondition::GreaterOrEqual));
    }

    /// As [`Stream::operate`](super::Stream::operate).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn operate(&mut self, operations: &[WordOperation]) {
        operations.iter().for_each(|operation| self.push(*operation));
    }

    /// Adds the calls to the stream.
    ///
    /// # Errors
    /// The driver refused. Messages of the batch are over, with this error.
    pub fn post(mut self) -> Result<(), Error> {
        let steps = std::mem::take(&mut self.steps);
        if steps.is_empty() {
            return Ok(());
        }
        let waits = steps.iter().any(StreamStep::is_wait);
        // The thread may look before the stream writes, which does no harm.
        let posted = self.refuse_capture().and_then(|captured| {
            // SAFETY: the words of the state, and what prepared operations use, live as long as the stream uses them; others
            // are the promise of `operate`'s caller.
            let enqueued = unsafe { self.state.program.enqueue(&steps) }.map_err(Error::Stream);
            enqueued.inspect_err(|error| self.fail_partly(error)).map(|()| captured)
        });
        match posted {
            Ok(captured) => {
                self.prepared.iter().for_each(|pair| pair.note_post(captured));
                if !self.prepared.is_empty() && !captured {
                    self.state.note_prepared(*self.last);
                }
            }
            Err(ref error) => self.withdraw(error),
        }
        // Puts of the stream alone need no thread, and prepared operations only one that watches their peers.
        match self.for_thread {
            true => self.shared.called(),
            false if !self.prepared.is_empty() => self.shared.posted(),
            false => {}
        }
        if waits && posted.is_ok() {
            warn_of_waiting(self.shared, self.state);
        }
        posted.map(drop)
    }

    /// Notes that the calls contain a post of a prepared operation.
    pub(super) fn note_prepared(&mut self, pair: &Arc<Pair>) {
        self.prepared.push(pair.clone());
    }

    /// Notes that no graph can contain the calls, because the thread moves a prepared operation.
    pub(super) fn refuse_captures_for(&mut self, peer: i32, reason: &'static str) {
        self.uncapturable = Some(Uncapturable::Thread { peer, reason });
    }

    /// Fails if the stream captures a graph that cannot contain the calls. Returns whether it captures one.
    fn refuse_capture(&self) -> Result<bool, Error> {
        let captures = self.state.program.is_capturing().map_err(Error::Stream)?;
        match self.uncapturable {
            Some(Uncapturable::Thread { peer, reason }) if captures => Err(Error::NotCapturable { peer, reason }),
            Some(Uncapturable::Numbered) if captures => Err(Error::Stream(self.state.program.captures())),
            None if captures && !self.state.program.captures_words() => {
                Err(Error::Stream(self.state.program.captures()))
            }
            _ => Ok(captures),
        }
    }

    pub(super) fn start_message(&mut self, message: Arc<Message>) -> StreamMessage {
        let number = self.next();
        self.state.queue.lock().start_at(number, message.clone());
        self.write(number);
        StreamMessage::new(self.shared.clone(), message)
    }

    /// Appends a mark, and returns its number. The stream counts as busy until it has passed the mark.
    pub fn mark(&mut self) -> u64 {
        let number = self.next();
        self.state.queue.lock().mark(number);
        self.write(number);
        number
    }

    /// Starts a job when the stream gets there, and makes the stream wait for a word of the program after that. `job` gets
    /// the number that the stream writes once it has passed the wait.
    pub(super) fn run_beside(
        &mut self,
        wait: WordOperation,
        job: impl FnOnce(u64) -> Box<dyn StreamJob>,
    ) -> StreamMessage {
        let (start, passed) = (self.next(), self.next());
        let message = Message::job(job(passed));
        self.state.queue.lock().start_at(start, message.clone());
        self.write(start);
        self.push(wait);
        self.state.queue.lock().mark(passed);
        self.write(passed);
        StreamMessage::new(self.shared.clone(), message)
    }

    /// Makes the stream write the number of a call in which the thread has no part.
    pub(super) fn pass(&mut self, number: u64) {
        self.uncapturable.get_or_insert(Uncapturable::Numbered);
        self.state.queue.lock().pass(number);
        self.steps.push(StreamStep::Word(WordOperation::write(self.state.reached_address(), number)));
    }

    /// Returns how many numbers the stream has to write until it has passed the calls.
    pub(super) fn ahead(&self) -> u64 {
        self.last.saturating_sub(self.state.reached())
    }

    /// Returns the number of the next call.
    pub(super) fn next(&mut self) -> u64 {
        *self.last += 1;
        *self.last
    }

    /// Makes the stream write a number. It stands for those before it.
    fn write(&mut self, number: u64) {
        self.for_thread = true;
        let address = self.state.reached_address();
        match self.steps.last_mut() {
            Some(StreamStep::Word(last)) if last.address == address => last.value = number,
            _ => self.push(WordOperation::write(address, number)),
        }
    }

    fn push(&mut self, operation: WordOperation) {
        self.for_thread = true;
        self.uncapturable.get_or_insert(Uncapturable::Numbered);
        self.steps.push(StreamStep::Word(operation));
    }

    /// Gives a chunk to a send.
    pub(super) fn take_chunk(&mut self, send: &Arc<Message>) {
        let mut chunks = self.state.chunks.lock();
        self.chunks.get_or_insert_with(|| chunks.clone());
        chunks.take(send);
    }

    /// Notes that the stream copies what a message has received.
    pub(super) fn note_received(&mut self, message: &Arc<Message>) {
        self.received.push(message.clone());
    }

    /// Notes that the stream may have got a part of the calls. The words of prepared operations tell nothing then, and
    /// nothing copies what receives get that the thread has started already.
    fn fail_partly(&self, error: &Error) {
        self.state.note_partly_refused();
        self.prepared.iter().for_each(|pair| pair.fail(error));
        self.received.iter().for_each(|message| message.cancel(&self.shared.engine));
    }

    /// Ends the batch's messages. If the driver took a part of the calls, the stream passes it.
    fn withdraw(&mut self, error: &Error) {
        if let Some(chunks) = self.chunks.take() {
            *self.state.chunks.lock() = chunks;
        }
        let withdrawn = self.state.queue.lock().withdraw(self.before, self.written);
        withdrawn.iter().for_each(|message| message.end(Err(error.clone())));
    }
}

impl Drop for StreamBatch<'_> {
    /// Ends the messages of a batch that was not posted.
    fn drop(&mut self) {
        if !self.steps.is_empty() {
            self.withdraw(&Error::BadRequest { reason: "its batch was dropped" });
            self.shared.called();
        }
    }
}
