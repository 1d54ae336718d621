//! A peer, the connection to it, and what is under way there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cableway_base::Rank;
use cableway_btl::{Error, Remains, Token};
use parking_lot::Mutex;

use crate::NAME;
use crate::card::Address;
use crate::cells::Cell;
use crate::kept::{Kept, Message};
use crate::memory::Buffer;
use crate::settings::SPARE_WORK;
use crate::shared::Shared;
use crate::verbs::{Gather, MemoryRegion, Post, QueuePair, Work};

/// Longest message that is copied in order to be sent at once.
pub(crate) const COPIED: usize = 4 << 10;
/// The word beside a goodbye; messages have none.
pub(crate) const GOODBYE: u32 = u32::from_be_bytes(*b"BYE.");

/// A process of the job that we talk, or mean to talk, to.
pub(crate) struct Link {
    pub(crate) rank: Rank,
    /// Its place in the directory.
    pub(crate) id: u32,
    /// Where the peer is; none until this process means to send, or the peer has.
    pub(crate) address: Mutex<Option<Address>>,
    pub(crate) tx: Mutex<Tx>,
    /// Messages of the peer that were handed up here.
    pub(crate) consumed: AtomicU64,
    /// How many of them the peer was told of.
    pub(crate) told: AtomicU64,
    /// Nothing is taken from it any more.
    pub(crate) silenced: AtomicBool,
    /// Whether `peer_failed` or `peer_left` was, or is about to be, called.
    pub(crate) reported: AtomicBool,
}

/// A link's sending side.
pub(crate) struct Tx {
    pub(crate) state: State,
    /// Work under way, the oldest first.
    queue: VecDeque<Owner>,
    /// The number of the oldest.
    oldest: u32,
    /// Messages sent that the peer may not have consumed.
    kept: Kept,
    /// What a broken connection leaves was told.
    settled: bool,
    /// Messages for which fragments are out.
    pub(crate) reserved: usize,
    /// Work since the last that will report its end.
    unsignalled: usize,
    /// Work that will.
    signalled: usize,
    /// Our goodbye has been sent, or will never be: nothing more may follow.
    pub(crate) closing: bool,
}

/// A queue pair stays until the transport goes, also where it is of no use any more: receive buffers that the device
/// gave to it would be lost with it.
pub(crate) enum State {
    /// Nobody has sent yet.
    Idle,
    /// The service makes a connection.
    Connecting,
    Connected(Connection),
    /// The peer said goodbye; what is under way comes back.
    Left {
        kept: Option<Connection>,
    },
    /// It broke; what is under way comes back.
    Broken(Connection, Error),
    /// Nothing is under way any more.
    Gone(Error, Option<Connection>),
}

/// Two connected queue pairs, seen from this end.
pub(crate) struct Connection {
    pub(crate) pair: QueuePair,
    /// Messages that the peer takes before it says that it has consumed some.
    pub(crate) window: u64,
    /// What the peer has consumed.
    pub(crate) cell: Cell,
    /// Where the peer wants to be told what we have consumed.
    pub(crate) their_cell: (u64, u32),
}

/// What work holds on to until it is done.
pub(crate) enum Owner {
    Nothing,
    Buffer { _buffer: Buffer },
    Transfer { token: Token, _region: Arc<MemoryRegion> },
}

/// What may be lost by a failure, and who hears of it.
#[derive(Default)]
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    any: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Letters {
    /// Links that are to be broken off, and why.
    pub(crate) failures: Vec<(Arc<Link>, Error)>,
    /// Links that the peer closed in good order before it could say so on the connection.
    pub(crate) closed: Vec<Arc<Link>>,
    /// Links whose peers, processes of this node, have ended.
    pub(crate) ended: Vec<Arc<Link>>,
    /// The device is of no use any more.
    pub(crate) device: Option<String>,
}

impl Mailbox {
    pub(crate) fn post(&self, write: impl FnOnce(&mut Letters)) {
        write(&mut self.letters.lock());
        self.any.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn collect(&self) -> Option<Letters> {
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::Acquire) {
            return None;
        }
        Some(std::mem::take(&mut *self.letters.lock()))
    }
}

impl Link {
    pub(crate) fn new(rank: Rank, id: u32) -> Self {
        let tx = Tx {
            state: State::Idle,
            queue: VecDeque::new(),
            oldest: 0,
            kept: Kept::default(),
            settled: false,
            reserved: 0,
            unsignalled: 0,
            signalled: 0,
            closing: false,
        };
        Link {
            rank,
            id,
            address: Mutex::default(),
            tx: Mutex::new(tx),
            consumed: AtomicU64::new(0),
            told: AtomicU64::new(0),
            silenced: AtomicBool::new(false),
            reported: AtomicBool::new(false),
        }
    }

    pub(crate) fn error(&self, reason: impl Into<String>) -> Error {
        Error::PeerGone { btl: NAME, peer: self.rank, reason: reason.into() }
    }

    pub(crate) fn left(&self) -> Error {
        Error::PeerLeft { btl: NAME, peer: self.rank }
    }

    /// It was never connected.
    pub(crate) fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { btl: NAME, peer: self.rank, reason }
    }

    /// The id of work, by which its completion is found.
    fn work_id(&self, number: u32) -> u64 {
        u64::from(self.id) << 32 | u64::from(number)
    }
}

/// The parts of [`Link::work_id`].
pub(crate) fn of_work_id(id: u64) -> (usize, u32) {
    ((id >> 32) as usize, id as u32)
}

impl Tx {
    /// Whether another message may be sent, and fragments that are out still can.
    ///
    /// # Errors
    /// The peer claims to have consumed what it was not sent.
    #[inline]
    pub(crate) fn has_room(&self, shared: &Shared, connection: &Connection) -> Result<bool, String> {
        let consumed = connection.cell.read();
        let sent = self.kept.sent();
        let Some(waiting) = sent.checked_sub(consumed) else {
            return Err(format!("it says that it has consumed {consumed} messages of {sent} sent"));
        };
        Ok(waiting + (self.reserved as u64) < connection.window && self.has_work(shared))
    }

    /// Whether the queues of connection and port have room for more work.
    #[inline]
    pub(crate) fn has_work(&self, shared: &Shared) -> bool {
        self.queue.len() + self.reserved + SPARE_WORK < shared.port.depth && shared.has_completions()
    }

    /// Starts a message, and keeps it as `message` has it, which is told the number of the work.
    ///
    /// # Safety
    /// As [`start`](Self::start), where the message keeps alive what must be.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub(crate) unsafe fn send(
        &mut self,
        shared: &Shared,
        link: &Link,
        data: Gather,
        inline: bool,
        message: impl FnOnce(u32) -> Message,
    ) -> Result<(), Error> {
        let signal = data.len > COPIED;
        let work = self.oldest.wrapping_add(self.queue.len() as u32);
        // SAFETY: the caller's promise.
        unsafe { self.start(shared, link, Work::Send, data, inline, signal, Owner::Nothing) }?;
        self.release();
        self.kept.push(message(work));
        Ok(())
    }

    /// Keeps a message that was to be sent by a connection that broke meanwhile. False: that is too late.
    pub(crate) fn keep(&mut self, buffer: Buffer, len: usize) -> bool {
        let broken = matches!(self.state, State::Broken(..) | State::Gone(..)) && !self.closing && !self.settled;
        if broken {
            self.kept.push(Message::Buffer { buffer, len, work: self.oldest });
        }
        broken
    }

    /// Lets go of messages that the peer has consumed.
    #[inline]
    pub(crate) fn release(&mut self) {
        if let State::Connected(connection) = &self.state {
            self.kept.release(connection.cell.read(), self.oldest);
        }
    }

    /// Nobody will ask for what was sent.
    pub(crate) fn forget(&mut self) {
        self.kept = Kept::default();
    }

    /// What the connection leaves that broke; told once. None also where the peer claims what cannot be.
    pub(crate) fn remains(&mut self, received: u64) -> Option<Remains> {
        let State::Gone(_, connection) = &self.state else { return None };
        let delivered = connection.as_ref().map_or(0, |connection| connection.cell.read());
        if delivered > self.kept.sent() || std::mem::replace(&mut self.settled, true) {
            return None;
        }
        Some(Remains { received, delivered, uncertain: self.kept.take(delivered) })
    }

    /// Starts work. There must be room for it.
    ///
    /// # Safety
    /// As [`QueuePair::post`], where `owner` keeps alive what must be.
    ///
    /// # Errors
    /// The device refused: the link is to be broken off.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "each is a word of one request")]
    pub(crate) unsafe fn start(
        &mut self,
        shared: &Shared,
        link: &Link,
        work: Work<'_>,
        data: Gather,
        inline: bool,
        signal: bool,
        owner: Owner,
    ) -> Result<(), Error> {
        let State::Connected(connection) = &self.state else { return Err(link.error("there is no connection")) };
        // What holds nothing is let go of by the completion of what follows; not too late, for the queue has an end.
        let signalled = signal || self.unsignalled + 1 >= (shared.port.depth / 4).max(1);
        let number = self.oldest.wrapping_add(self.queue.len() as u32);
        let post = Post { id: link.work_id(number), signalled, inline };
        // SAFETY: the caller's promise.
        unsafe { connection.pair.post(work, data, post) }
            .map_err(|error| Error::system(NAME, format!("cannot send to peer {}", link.rank), error))?;
        shared.under_way.fetch_add(1, Ordering::Relaxed);
        self.queue.push_back(owner);
        if signalled {
            self.unsignalled = 0;
            self.signalled += 1;
        } else {
            self.unsignalled += 1;
        }
        Ok(())
    }

    /// Work `number` and all before it is done: what each held is handed to `each`. False if there is no such work.
    pub(crate) fn finish(&mut self, shared: &Shared, number: u32, mut each: impl FnMut(Owner, bool)) -> bool {
        let count = number.wrapping_sub(self.oldest) as usize + 1;
        if count > self.queue.len() {
            return false;
        }
        for place in 1..=count {
            let Some(owner) = self.queue.pop_front() else { break };
            each(owner, place == count);
        }
        self.oldest = number.wrapping_add(1);
        self.signalled = self.signalled.saturating_sub(1);
        shared.under_way.fetch_sub(count, Ordering::Relaxed);
        self.release();
        true
    }

    /// The device will not report the end of anything any more.
    pub(crate) fn abandon(&mut self, shared: &Shared) -> VecDeque<Owner> {
        shared.under_way.fetch_sub(self.queue.len(), Ordering::Relaxed);
        self.signalled = 0;
        std::mem::take(&mut self.queue)
    }

    /// Why it broke, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &self.state {
            State::Broken(_, error) | State::Gone(error, _) => Some(error.clone()),
            _ => None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether something under way will tell of the peer's death.
    pub(crate) fn is_watched(&self) -> bool {
        self.signalled != 0
    }

    /// Tells the peer how many of its messages were consumed. False: not now.
    pub(crate) fn tell_consumed(&mut self, shared: &Shared, link: &Link, watch: bool) -> Result<bool, Error> {
        let State::Connected(connection) = &self.state else { return Ok(true) };
        if self.closing {
            return Ok(true);
        }
        if self.queue.len() + self.reserved + SPARE_WORK > shared.port.depth || !shared.has_completions() {
            return Ok(false);
        }
        let (address, key) = connection.their_cell;
        let inline = connection.pair.inline() >= size_of::<u64>();
        let consumed = link.consumed.load(Ordering::Relaxed);
        let word = consumed.to_le_bytes();
        let work = Work::Write { address, key };
        if inline {
            let data = Gather { address: word.as_ptr(), len: word.len(), key: 0 };
            // SAFETY: inline data is copied at once.
            unsafe { self.start(shared, link, work, data, true, watch, Owner::Nothing) }?;
        } else {
            let buffer = shared.pool.take(word.len())?;
            // SAFETY: a fresh buffer of at least eight bytes.
            unsafe { buffer.address().as_ptr().copy_from_nonoverlapping(word.as_ptr(), word.len()) };
            let data = Gather { address: buffer.address().as_ptr(), len: word.len(), key: buffer.key() };
            // SAFETY: the buffer is kept by its owner.
            unsafe { self.start(shared, link, work, data, false, watch, Owner::Buffer { _buffer: buffer }) }?;
        }
        link.told.store(consumed, Ordering::Relaxed);
        Ok(true)
    }

    /// Says goodbye after what is under way. Nothing can be sent after that.
    pub(crate) fn close(&mut self, shared: &Shared, link: &Link) {
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        match &self.state {
            State::Idle => self.state = State::Gone(link.error("the link was closed here"), None),
            State::Connected(_) => {
                let nothing = Gather { address: std::ptr::null(), len: 0, key: 0 };
                // SAFETY: there is no data. Room for it was kept.
                let sent = unsafe {
                    self.start(shared, link, Work::SendWithWord(GOODBYE), nothing, false, true, Owner::Nothing)
                };
                if let Err(error) = sent {
                    log::debug!("{NAME}: no goodbye to peer {}: {error}", link.rank);
                }
            }
            State::Connecting | State::Left { .. } | State::Broken(..) | State::Gone(..) => {}
        }
    }

    /// The peer has said goodbye: nothing of ours will be received any more. False if it was known before.
    pub(crate) fn leave(&mut self, shared: &Shared, link: &Link) -> bool {
        self.stop(shared, link);
        let state = std::mem::replace(&mut self.state, State::Idle);
        let (next, new) = match state {
            State::Connected(connection) => (State::Left { kept: Some(connection) }, true),
            State::Idle | State::Connecting => (State::Left { kept: None }, true),
            other => (other, false),
        };
        self.state = next;
        new
    }

    /// Breaks it off: what is under way comes back, in error. False if it was broken or gone already.
    pub(crate) fn break_off(&mut self, shared: &Shared, link: &Link, error: Error) -> bool {
        self.stop(shared, link);
        let state = std::mem::replace(&mut self.state, State::Idle);
        let (next, broken) = match state {
            State::Connected(connection) => (State::Broken(connection, error), true),
            State::Idle | State::Connecting => (State::Gone(error, None), true),
            other => (other, false),
        };
        self.state = next;
        broken
    }

    /// What is under way comes back, and nothing arrives any more. Work that was done without a report would stay in
    /// the queue for ever: so there is more work behind it, that fails at once and says so.
    fn stop(&mut self, shared: &Shared, link: &Link) {
        let State::Connected(connection) = &self.state else { return };
        let stopped = connection.pair.fail();
        if self.queue.is_empty() {
            return;
        }
        let nothing = Gather { address: std::ptr::null(), len: 0, key: 0 };
        // SAFETY: there is no data. Room for it was kept.
        let last = unsafe { self.start(shared, link, Work::Send, nothing, false, true, Owner::Nothing) };
        if let Err(error) = stopped.map_err(|error| error.to_string()).and(last.map_err(|error| error.to_string())) {
            log::debug!("{NAME}: the connection to peer {} cannot be stopped: {error}", link.rank);
        }
    }
}

impl Shared {
    /// Whether the completion queue has room for more.
    #[inline]
    fn has_completions(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) + self.port.buffers + 64 < self.port.room
    }
}
