//! One stream, as its callers and the thread share it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_common_cuda::{CopySlot, CopySlotNumber, MappingsHeld, ProgramStream, StreamWords};
use parking_lot::Mutex;

use super::bounce::Chunks;
use super::operation::Message;
use super::queue::Queue;
use crate::error::Error;
use crate::rma::Passing;
use crate::tag::Engine;

/// The word that the stream writes.
const REACHED: usize = 0;
/// The word that the stream waits for.
const RELEASED: usize = 1;
/// More than any number of a call: a stream passes every wait.
const BEYOND: u64 = i64::MAX as u64;

/// A stream and what is not done on it.
pub(super) struct StreamState {
    pub(super) program: ProgramStream,
    words: Arc<StreamWords>,
    /// The number of the last call. Locked while a call is added to the queue and to the stream, so that both have the
    /// same order.
    pub(super) last: Mutex<u64>,
    pub(super) queue: Mutex<Queue<Arc<Message>>>,
    /// Messages that failed, and whose errors a later call on the stream may have to tell.
    failed: Mutex<Vec<Arc<Message>>>,
    /// Errors of prepared operations that no call has told.
    errors: Mutex<Vec<Error>>,
    /// Values that describe the stream. Changed with `last` locked. Without any, the program may have destroyed it.
    handles: AtomicUsize,
    /// A stream that has reached this number has passed every post of a prepared operation. Changed with `last` locked.
    prepared_end: AtomicU64,
    /// True once the driver has refused calls of which the stream may have got some. The words are not used for anything
    /// else any more, and no message passes through them.
    partly_refused: AtomicBool,
    /// Of sends through host memory.
    pub(super) chunks: Mutex<Chunks>,
    /// For the copies that kernels make in the stream, which do not overlap.
    slot: OnceLock<Option<CopySlot>>,
    /// The stream as memory of peers knows it, once it puts.
    pub(super) user: OnceLock<Arc<dyn Passing>>,
    /// The driver would wait for the stream before it maps memory.
    _held: MappingsHeld,
}

/// What a stream has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    Nothing,
    /// Work of the program, which ends without a message.
    Work,
    /// It may wait for a message.
    Messages,
}

/// A message under way.
pub(super) struct Running {
    /// The stream on which it started, if none of the host's calls started it.
    pub(super) state: Option<Arc<StreamState>>,
    pub(super) message: Arc<Message>,
}

impl StreamState {
    /// Creates the state of a stream whose words, perhaps used before, are at rest.
    pub(super) fn new(program: ProgramStream, words: Arc<StreamWords>, held: MappingsHeld) -> StreamState {
        let number = words.load(REACHED).max(words.load(RELEASED));
        StreamState {
            program,
            words,
            last: Mutex::new(number),
            queue: Mutex::new(Queue::new(number)),
            failed: Mutex::default(),
            errors: Mutex::default(),
            handles: AtomicUsize::new(0),
            prepared_end: AtomicU64::new(0),
            partly_refused: AtomicBool::new(false),
            chunks: Mutex::default(),
            slot: OnceLock::new(),
            user: OnceLock::new(),
            _held: held,
        }
    }

    /// Returns the slot of kernels that make copies in the stream.
    pub(super) fn copy_slot(&self) -> Option<CopySlotNumber> {
        self.slot.get_or_init(|| self.program.copy_slot()).as_ref().map(CopySlot::number)
    }

    pub(super) fn words(&self) -> &Arc<StreamWords> {
        &self.words
    }

    /// Returns the device address of the word that the stream writes.
    pub(super) fn reached_address(&self) -> u64 {
        self.words.device_address(REACHED)
    }

    /// Returns the device address of the word that the stream waits for.
    pub(super) fn released_address(&self) -> u64 {
        self.words.device_address(RELEASED)
    }

    /// Notes that the driver has refused calls of which the stream may have got some.
    pub(super) fn note_partly_refused(&self) {
        self.partly_refused.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_partly_refused(&self) -> bool {
        self.partly_refused.load(Ordering::Relaxed)
    }

    /// Returns whether the stream has passed the call of this number, or never will.
    pub(super) fn has_passed(&self, number: u64) -> bool {
        self.has_reached(number) || !self.program.goes_on()
    }

    /// Returns whether the stream has passed the call of this number.
    pub(super) fn has_reached(&self, number: u64) -> bool {
        self.reached() >= number
    }

    /// Returns the last number that the stream has written.
    pub(super) fn reached(&self) -> u64 {
        self.words.load(REACHED)
    }

    /// Notes a value that describes the stream.
    pub(super) fn described(&self) {
        let _last = self.last.lock();
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the end of a value that describes the stream.
    pub(super) fn described_no_more(&self) {
        let _last = self.last.lock();
        self.handles.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether calls on the stream are not over, as its words show. The caller has locked `last`.
    pub(super) fn has_messages(&self) -> bool {
        self.program.goes_on() && !self.queue.lock().is_idle_at(self.words.load(REACHED))
    }

    /// Returns what the stream has to do. The caller has locked `last`.
    pub(super) fn pending(&self) -> Pending {
        if !self.program.goes_on() {
            return Pending::Nothing;
        }
        if self.has_messages() {
            return Pending::Messages;
        }
        let reached = self.words.load(REACHED);
        // Without a value that describes it, the program may have destroyed the stream.
        let idle = self.handles.load(Ordering::Relaxed) == 0 || self.is_program_idle();
        match idle {
            true => Pending::Nothing,
            false if reached < self.prepared_end.load(Ordering::Relaxed) => Pending::Messages,
            false => Pending::Work,
        }
    }

    /// Notes posts of prepared operations behind the call `last`. Their end shows once the stream writes a later number.
    /// The caller has locked `last`.
    pub(super) fn note_prepared(&self, last: u64) {
        self.prepared_end.store(last + 1, Ordering::SeqCst);
    }

    /// Returns whether the stream may have posts of prepared operations to do.
    pub(super) fn has_posts(&self) -> bool {
        // Later work counts as well.
        !self.has_passed_posts() && self.program.goes_on() && !self.is_program_idle()
    }

    /// Returns whether the stream waits for messages, now or when it gets there.
    pub(super) fn has_waits(&self) -> bool {
        self.queue.lock().has_waits()
    }

    /// Returns whether the stream has done all of the program's work, or its context does no more work.
    fn is_program_idle(&self) -> bool {
        self.program.is_idle().unwrap_or_else(|_| self.program.check().is_err())
    }

    /// Keeps an error of a prepared operation.
    pub(super) fn note_error(&self, error: Error) {
        self.errors.lock().push(error);
    }

    /// Keeps a message that failed.
    pub(super) fn note_failed(&self, message: &Arc<Message>) {
        self.failed.lock().push(message.clone());
    }

    /// Returns an error of an earlier message that no one has told.
    pub(super) fn untold(&self) -> Option<Error> {
        if let Some(error) = self.errors.lock().pop() {
            return Some(error);
        }
        let mut failed = self.failed.lock();
        while let Some(message) = failed.pop() {
            if let Some(Err(error)) = message.result()
                && message.tell()
            {
                return Some(error.clone());
            }
        }
        None
    }

    /// Starts what the stream has reached. Returns whether there was anything new.
    pub(super) fn start_due(self: &Arc<Self>, engine: &Engine, active: &mut Vec<Running>) -> bool {
        let new = self.queue.lock().note_reached(self.words.load(REACHED));
        if !new {
            return false;
        }
        loop {
            // The lock is free while the engine works, so that calls on the stream never wait for it.
            let due = self.queue.lock().take_due();
            let Some(message) = due else { return true };
            // SAFETY: the list keeps the message until it is over, and the caller of the stream's method keeps the
            // buffer.
            unsafe { message.start(engine) };
            active.push(Running { state: Some(self.clone()), message });
        }
    }

    /// Lets the stream go on as far as the messages permit. Returns whether it goes on.
    pub(super) fn release(&self) -> bool {
        let released = self.queue.lock().release();
        if let Some(number) = released {
            self.words.store(RELEASED, number);
        }
        released.is_some()
    }

    /// Ends every message that has not started, and lets the stream pass every present and later wait.
    pub(super) fn give_up(&self, error: &Error) {
        let mut queue = self.queue.lock();
        while let Some(message) = queue.take_any() {
            message.end(Err(error.clone()));
            message.let_go();
        }
        self.words.store(RELEASED, BEYOND);
    }

    /// Returns whether nothing is left to do.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.lock().is_idle()
    }

    /// Returns whether nothing is left to do for anybody, so that nobody needs the stream's words any more.
    pub(super) fn is_at_rest(&self) -> bool {
        let passed = || self.queue.lock().is_passed_at(self.words.load(REACHED)) || !self.program.goes_on();
        self.is_idle() && passed() && self.chunks.lock().are_unused() && !self.is_partly_refused()
    }

    /// Fails if the stream will do nothing more, because its context is destroyed or a kernel has faulted there.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.program.check().map_err(Error::StreamContext)
    }

    /// Ends the messages that a stream will not reach any more.
    pub(super) fn end_unreached(&self, error: &Error) {
        let mut queue = self.queue.lock();
        let unreached: Vec<_> = std::iter::from_fn(|| queue.take_any()).collect();
        queue.note_reached(BEYOND);
        drop(queue);
        for message in unreached {
            message.end(Err(error.clone()));
            message.drop_job();
            self.note_failed(&message);
        }
    }

    /// Returns whether the stream has passed all posts of prepared operations, as far as its numbers show.
    pub(super) fn has_passed_posts(&self) -> bool {
        self.words.load(REACHED) >= self.prepared_end.load(Ordering::SeqCst)
    }
}
