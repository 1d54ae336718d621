//! One side of a prepared operation.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_base::Rank;
use cableway_common_cuda::{CopySlot, Mapped, StreamStep, WaitCondition, WordOperation};
use parking_lot::Mutex;

use super::board::{Flags, Line};
use super::note::Note;
use super::plan::{Side, Step};
use super::wire::{Farewell, Obstacle, data_tag};
use crate::buffer::OwnedBuffer;
use crate::error::Error;
use crate::stream::operation::{Described, Way};
use crate::stream::state::StreamState;
use crate::tag::Communicator;
use crate::wire::Malformed;

/// What moves the data of a prepared operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreparedPath {
    /// The two streams alone. Such an operation can be captured into a graph.
    Streams,
    /// The thread of streams, as for messages that are not prepared.
    Thread {
        /// Why the streams alone cannot.
        reason: &'static str,
    },
}

/// One side of a prepared operation.
pub(in crate::stream) struct Pair {
    pub(super) state: Arc<StreamState>,
    pub(super) communicator: Arc<Communicator>,
    pub(super) side: Side,
    pub(super) peer: i32,
    /// The peer's rank in the job.
    pub(super) process: Rank,
    pub(super) tag: i32,
    pub(super) buffer: OwnedBuffer,
    pub(super) messages: Mutex<Messages>,
    /// The sender's mapping of the receiver's memory, with the owner's id of it.
    pub(super) mapped: Mutex<Option<(u64, Mapped)>>,
    agreed: OnceLock<Result<Agreed, Error>>,
    failed: OnceLock<Error>,
    /// The peer has said its farewell.
    closed: AtomicBool,
    /// How often it had posted by then.
    peer_posts: AtomicU64,
    /// The stream ended before it had passed all posts.
    unmade: AtomicBool,
    /// This side has begun to say farewell.
    ended: AtomicBool,
    /// Its stream must not wait any longer.
    released: AtomicBool,
    posts: AtomicU64,
    /// It was captured into a graph, so posts do not count everything.
    captured: AtomicBool,
}

/// The messages of a side that are under way, and what they speak of.
#[derive(Default)]
pub(super) struct Messages {
    /// The receiver's number of the operation.
    pub(super) number: Option<u32>,
    /// The receiver's line.
    pub(super) line: Option<Line>,
    /// The offer or answer that is expected.
    pub(super) expected: Option<Note>,
    /// The peer's farewell. It ends with an error if the peer is gone.
    pub(super) farewell: Option<Note>,
    pub(super) sent: Vec<Note>,
}

/// What both sides have agreed.
pub(in crate::stream) enum Agreed {
    Direct(Direct),
    /// The thread moves the data, as messages with this tag.
    Thread {
        obstacle: Obstacle,
        tag: i32,
    },
    /// The peer does not exist.
    Nobody,
}

/// What the streams need.
pub(in crate::stream) struct Direct {
    pub(super) flags: Flags,
    pub(super) copy: Option<Copy>,
}

/// The sender's copy.
pub(super) struct Copy {
    pub(super) from: usize,
    /// In the mapping, which the pair keeps.
    pub(super) to: usize,
    pub(super) len: usize,
    /// For a kernel, if kernels in the stream's context may read the buffer. The posts of an operation do not overlap.
    pub(super) slot: Option<CopySlot>,
}

impl Pair {
    pub(in crate::stream) fn new(
        state: &Arc<StreamState>,
        communicator: &Arc<Communicator>,
        side: Side,
        (peer, process, tag): (i32, Rank, i32),
        buffer: OwnedBuffer,
    ) -> Pair {
        Pair {
            state: state.clone(),
            communicator: communicator.clone(),
            side,
            peer,
            process,
            tag,
            buffer,
            messages: Mutex::default(),
            mapped: Mutex::default(),
            agreed: OnceLock::new(),
            failed: OnceLock::new(),
            closed: AtomicBool::new(false),
            peer_posts: AtomicU64::new(0),
            unmade: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            released: AtomicBool::new(false),
            posts: AtomicU64::new(0),
            captured: AtomicBool::new(false),
        }
    }

    pub(in crate::stream) fn state(&self) -> &Arc<StreamState> {
        &self.state
    }

    /// Returns the peer's rank in the communicator.
    pub(in crate::stream) fn peer(&self) -> i32 {
        self.peer
    }

    /// Describes the message of a post that the thread moves.
    pub(in crate::stream) fn describe(&self, tag: i32) -> Described {
        let (communicator, buffer) = (self.communicator.clone(), self.buffer.borrow().to_owned());
        let way = if self.side == Side::Send { Way::Send } else { Way::Receive };
        Described { communicator, way, peer: self.peer, tag, buffer }
    }

    /// Returns what was agreed.
    pub(in crate::stream) fn agreed(&self) -> Option<Result<&Agreed, &Error>> {
        self.agreed.get().map(Result::as_ref)
    }

    pub(super) fn agree(&self, what: Result<Agreed, Error>) {
        let _ = self.agreed.set(what);
    }

    /// Ends the agreement of an operation without a peer.
    pub(in crate::stream) fn agree_on_nobody(&self) {
        self.agree(Ok(Agreed::Nobody));
    }

    /// Ends the agreement on the thread's way.
    pub(super) fn agree_on_thread(&self, obstacle: Obstacle, number: u32) {
        log::info!(
            "a prepared operation with rank {} on a stream is moved by a thread: {}",
            self.peer,
            obstacle.reason()
        );
        self.agree(Ok(Agreed::Thread { obstacle, tag: data_tag(number) }));
    }

    /// Fails if the operation cannot be posted any more.
    pub(in crate::stream) fn check(&self) -> Result<(), Error> {
        match self.failed.get() {
            Some(error) => Err(error.clone()),
            None if self.ended.load(Ordering::Acquire) => {
                Err(Error::BadRequest { reason: "its scope has ended, or it was ended" })
            }
            None if self.closed.load(Ordering::Acquire) && !self.is_behind() => {
                Err(Error::PreparedEnded { peer: self.peer })
            }
            None => Ok(()),
        }
    }

    /// Returns whether messages that the peer has sent before its farewell are left to receive. Only those that a thread
    /// moves leave before their receive.
    fn is_behind(&self) -> bool {
        let by_thread = matches!(self.agreed(), Some(Ok(Agreed::Thread { .. })));
        self.side == Side::Receive && by_thread && self.posts() < self.peer_posts.load(Ordering::Acquire)
    }

    /// Notes that this side posts no more. Returns false if it was noted before.
    pub(in crate::stream) fn begin_end(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }

    /// Appends what the stream does at a post.
    pub(in crate::stream) fn append_steps(&self, direct: &Direct, to: &mut impl Extend<StreamStep>) {
        let address = |flag| direct.flags.address(flag);
        to.extend(self.side.steps().iter().filter_map(|step| {
            Some(match *step {
                Step::Await(flag) => {
                    StreamStep::Word(WordOperation::wait(address(flag), 1, WaitCondition::GreaterOrEqual))
                }
                Step::Clear(flag) => StreamStep::Clear(address(flag)),
                Step::Raise(flag) => StreamStep::Word(WordOperation::write(address(flag), 1)),
                Step::Copy => {
                    let Copy { from, to, len, slot } = direct.copy.as_ref()?;
                    let (from, to, len, by_kernel) = (*from, *to, *len, slot.as_ref().map(CopySlot::number));
                    let dst = std::ptr::with_exposed_provenance_mut(to);
                    StreamStep::Copy { dst, src: std::ptr::with_exposed_provenance(from), len, by_kernel }
                }
            })
        }));
    }

    /// Notes that the stream has got a post, or a graph has.
    pub(in crate::stream) fn note_post(&self, captured: bool) {
        if captured {
            self.captured.store(true, Ordering::Release);
        } else {
            self.posts.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn posts(&self) -> u64 {
        self.posts.load(Ordering::Acquire)
    }

    /// Notes that the stream ended before it had passed all posts.
    pub(in crate::stream) fn note_unmade(&self) {
        self.unmade.store(true, Ordering::Release);
    }

    /// Returns what the peer is told at the end of the operation.
    pub(super) fn farewell(&self) -> Farewell {
        // The thread makes posts of its own messages, also if the stream ended.
        let unknown = self.is_direct() && self.unmade.load(Ordering::Acquire);
        Farewell { posts: if unknown { Farewell::UNKNOWN } else { self.posts() } }
    }

    /// Returns whether the streams alone move the data.
    fn is_direct(&self) -> bool {
        matches!(self.agreed(), Some(Ok(Agreed::Direct(_))))
    }

    fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Acquire)
    }

    /// Returns whether the peer must be watched: the stream may wait for it, or a message to it is under way.
    pub(super) fn needs_watch(&self) -> bool {
        // Nobody is told of a graph's launches.
        (self.is_direct() && (self.is_captured() || self.state.has_posts())) || !self.messages.lock().sent.is_empty()
    }

    /// Returns whether the stream was given anything.
    pub(in crate::stream) fn is_used(&self) -> bool {
        self.posts() != 0 || self.is_captured()
    }

    /// Ends the operation: the next call tells the error. A receiver's stream waits no longer. A sender's stream still does,
    /// because its copy would reach a buffer that may be in use.
    pub(in crate::stream) fn fail(&self, error: &Error) {
        if self.failed.set(error.clone()).is_ok() && self.is_used() {
            self.state.note_error(error.clone());
        }
        if self.side == Side::Receive {
            self.let_go();
        }
    }

    /// Ends the operation of a peer that is gone: no stream waits for it, and its memory is nobody's.
    pub(super) fn lose_peer(&self, error: &Error) {
        self.fail(error);
        self.let_go();
    }

    fn let_go(&self) {
        self.released.store(true, Ordering::Release);
        self.release();
    }

    /// Waits until the stream has nothing left to do, though no thread watches the peer any more.
    pub(in crate::stream) fn wait_alone(&self) {
        if self.side == Side::Receive {
            self.let_go();
        }
        while self.state.program.goes_on() && !self.state.program.is_idle().unwrap_or(true) {
            self.release();
            std::thread::yield_now();
        }
    }

    /// Lets the stream pass its present wait, if it must not wait any more. The stream clears the flag, so this is called
    /// again and again. Returns whether it must be.
    pub(super) fn release(&self) -> bool {
        let released = self.released.load(Ordering::Acquire);
        if let (true, Some(Ok(Agreed::Direct(direct)))) = (released, self.agreed()) {
            direct.flags.raise(self.side.awaited());
        }
        released
    }

    /// Looks whether the peer is gone or has said its farewell. Returns whether there was anything new, or the malformed
    /// message.
    pub(super) fn look(&self) -> Result<bool, Malformed> {
        let mut messages = self.messages.lock();
        messages.sent.retain(|note| !note.is_over());
        if self.closed.load(Ordering::Acquire) || self.failed.get().is_some() {
            return Ok(false);
        }
        let Some(farewell) = messages.farewell.as_ref().and_then(Note::received) else { return Ok(false) };
        let result = farewell.map(Farewell::parse);
        drop(messages);
        match result {
            Err(error) => self.lose_peer(&error),
            Ok(farewell) => self.close(&farewell?),
        }
        Ok(true)
    }

    /// Handles the peer's farewell.
    fn close(&self, farewell: &Farewell) {
        self.peer_posts.store(farewell.posts, Ordering::Release);
        self.closed.store(true, Ordering::Release);
        if self.side == Side::Send || !self.is_direct() {
            // A send that the receiver never posts stays where it is: its copy would reach memory that the receiver has taken back.
            return;
        }
        // The sender's last signals were given before its farewell. Receives that it did not answer end with an error.
        let unanswered = !self.is_captured() && self.posts() > farewell.posts;
        if unanswered || farewell.posts == Farewell::UNKNOWN {
            return self.fail(&Error::PreparedEnded { peer: self.peer });
        }
        self.let_go();
    }
}
