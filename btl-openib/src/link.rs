//! A peer, the connection to it, and what is under way there.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_base::Rank;
use cableway_btl::{Error, Remains};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use smallvec::SmallVec;

use crate::NAME;
use crate::card::Address;
use crate::cells::Cell;
use crate::kept::{Kept, Message};
use crate::memory::Buffer;
use crate::order::{self, Arrivals};
use crate::settings::SPARE_COMPLETIONS;
use crate::shared::Shared;
use crate::verbs::{Data, Gather, Post, Work};
use crate::work::{LEAST, Lane, Owner, Works};

#[cfg(test)]
mod tests;

/// Longest message that is copied in order to be sent at once.
pub(crate) const COPIED: usize = 4 << 10;

/// A process of the job that we talk, or mean to talk, to.
pub(crate) struct Link {
    pub(crate) rank: Rank,
    /// Its place in the directory.
    pub(crate) id: u32,
    /// Where the peer is; none until this process means to send, or the peer has.
    pub(crate) address: Mutex<Option<Address>>,
    pub(crate) tx: Mutex<Tx>,
    /// Messages that stand for words, where the network has none. Locked after `tx`.
    pub(crate) signs: Mutex<Option<Box<Signs>>>,
    /// Messages of the peer that were handed up here.
    pub(crate) consumed: AtomicU64,
    /// How many of them the peer was told of.
    pub(crate) told: AtomicU64,
    /// Which of the networks of both processes it goes by; there once the peer's card was seen.
    pub(crate) place: OnceLock<u8>,
    /// Nothing is taken from it any more.
    pub(crate) silenced: AtomicBool,
    /// Whether `peer_failed` or `peer_left` was, or is about to be, called.
    pub(crate) reported: AtomicBool,
    /// Where messages come by several queue pairs; for progress alone.
    pub(crate) arrivals: Option<Box<Mutex<Arrivals>>>,
}

/// A link's sending side.
pub(crate) struct Tx {
    pub(crate) state: State,
    /// Of each queue pair.
    pub(crate) works: SmallVec<[Works; 1]>,
    /// Messages sent that the peer may not have consumed.
    kept: Kept,
    /// Where there are several queue pairs: that of each message not known to be consumed.
    lanes: VecDeque<u8>,
    /// What a broken connection leaves was told.
    settled: bool,
    /// There was to be a connection, and none was made.
    pub(crate) unmade: bool,
    /// The device refused the work that was to report the end of all before it.
    pub(crate) mute: bool,
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

/// Connected pairs of queue pairs, seen from this end.
pub(crate) struct Connection {
    /// One for each receive queue of the peer, whose buffers grow from one to the next.
    pub(crate) lanes: SmallVec<[Lane; 1]>,
    /// What the peer has consumed.
    pub(crate) cell: Cell,
    /// Where the peer wants to be told what we have consumed.
    pub(crate) their_cell: (u64, u32),
}

impl Connection {
    /// The queue pair for messages of `len` bytes; the last for those that none is for.
    #[inline]
    pub(crate) fn lane(&self, len: usize) -> usize {
        let last = self.lanes.len() - 1;
        self.lanes[..last].iter().position(|lane| lane.size >= len).unwrap_or(last)
    }
}

/// A message that means something to this transport alone, and that nobody but the two ends of a connection knows.
pub(crate) type Sign = [u8; 32];

/// The signs of a connection over iWARP, which has no words beside messages.
pub(crate) struct Signs {
    /// Sent first by the end that asked for the connection: before that, the other must send nothing (RFC 5044).
    pub(crate) greeting: Sign,
    /// Sent last.
    pub(crate) goodbye: Sign,
    /// This end asked.
    pub(crate) greets: bool,
    /// Or was asked, and has not been greeted yet.
    pub(crate) accepted: Option<Connection>,
}

/// What a message says to this transport itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Greeting,
    Goodbye,
}

/// What may be lost by a failure, and who hears of it.
#[derive(Default)]
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    any: AtomicBool,
    /// Somebody sleeps now and then, whom the bell wakes.
    listening: AtomicBool,
    bell: OnceLock<OwnedFd>,
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
        // One of the two sees what the other did: this the listener, or the listener the letter.
        self.any.store(true, Ordering::SeqCst);
        if self.listening.load(Ordering::SeqCst)
            && let Some(bell) = self.bell.get()
        {
            // It fails only where it is loud enough.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }

    /// What becomes readable with the next letter. None: there is one already, or the system has no descriptor.
    pub(crate) fn listen(&self) -> Option<BorrowedFd<'_>> {
        let bell = match self.bell.get() {
            Some(bell) => bell,
            None => {
                let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
                self.bell.get_or_init(|| made)
            }
        };
        let mut count = [0; 8];
        let _ = rustix::io::read(bell, &mut count);
        self.listening.store(true, Ordering::SeqCst);
        (!self.any.load(Ordering::SeqCst)).then(|| bell.as_fd())
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
    /// By so many queue pairs.
    pub(crate) fn new(rank: Rank, id: u32, queues: usize) -> Self {
        let tx = Tx {
            state: State::Idle,
            works: std::iter::repeat_with(Works::default).take(queues).collect(),
            kept: Kept::default(),
            lanes: VecDeque::new(),
            settled: false,
            unmade: false,
            mute: false,
            closing: false,
        };
        Link {
            rank,
            id,
            address: Mutex::default(),
            tx: Mutex::new(tx),
            signs: Mutex::new(None),
            consumed: AtomicU64::new(0),
            told: AtomicU64::new(0),
            place: OnceLock::new(),
            silenced: AtomicBool::new(false),
            reported: AtomicBool::new(false),
            arrivals: (queues > 1).then(|| Box::new(Mutex::new(Arrivals::new(queues)))),
        }
    }

    pub(crate) fn error(&self, reason: impl Into<String>) -> Error {
        Error::PeerGone { btl: NAME, peer: self.rank, reason: reason.into() }
    }

    pub(crate) fn left(&self) -> Error {
        Error::PeerLeft { btl: NAME, peer: self.rank }
    }

    /// The word that a message is a sign for.
    #[cold]
    pub(crate) fn word_of(&self, message: &Sign) -> Option<Word> {
        let signs = self.signs.lock();
        let signs = signs.as_ref()?;
        match message {
            sign if *sign == signs.greeting => Some(Word::Greeting),
            sign if *sign == signs.goodbye => Some(Word::Goodbye),
            _ => None,
        }
    }

    /// It was never connected.
    pub(crate) fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { btl: NAME, peer: self.rank, reason }
    }

    /// The id of work, by which its completion is found: 7 bits, 24 bits, as many as there can be queue pairs, and 32.
    fn work_id(&self, lane: usize, number: u32) -> u64 {
        (lane as u64) << 56 | u64::from(self.id) << 32 | u64::from(number)
    }
}

/// The parts of [`Link::work_id`]: link, lane and number.
pub(crate) fn of_work_id(id: u64) -> (usize, usize, u32) {
    ((id >> 32) as usize & 0xff_ffff, (id >> 56) as usize, id as u32)
}

impl Tx {
    /// By which queue pair another message of `len` bytes may be sent, so that fragments that are out still can. None:
    /// not now.
    ///
    /// # Errors
    /// The peer claims to have consumed what it was not sent, or to take what its buffers do not hold.
    #[inline]
    pub(crate) fn has_room(&mut self, shared: &Shared, len: usize) -> Result<Option<usize>, String> {
        let State::Connected(connection) = &self.state else { return Ok(None) };
        let consumed = connection.cell.read();
        let sent = self.kept.sent();
        let Some(waiting) = sent.checked_sub(consumed) else {
            return Err(format!("it says that it has consumed {consumed} messages of {sent} sent"));
        };
        let lane = connection.lane(len);
        // Its card may have come after its question.
        if connection.lanes[lane].size < len {
            return Err(format!("it promised to take {len} bytes, into buffers of {}", connection.lanes[lane].size));
        }
        let waiting = if connection.lanes.len() == 1 {
            waiting
        } else {
            while self.lanes.len() as u64 > waiting {
                let Some(lane) = self.lanes.pop_front() else { break };
                self.works[usize::from(lane)].waiting -= 1;
            }
            self.works[lane].waiting
        };
        let works = &self.works[lane];
        let room = waiting + (works.reserved as u64) < connection.lanes[lane].window && works.has_room(shared);
        Ok(room.then_some(lane))
    }

    /// Sends a message that goes within the work, where nothing stands in its way. None: nothing was done, and the long way
    /// finds out why.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[inline]
    pub(crate) fn send_at_once(
        &mut self,
        shared: &Shared,
        link: &Link,
        header: &[u8],
        payload: &[u8],
    ) -> Option<Result<(), Error>> {
        let State::Connected(connection) = &self.state else { return None };
        let ([lane], [works]) = (&connection.lanes[..], &mut self.works[..]) else { return None };
        let waiting = self.kept.sent().checked_sub(connection.cell.read())?;
        let fits = header.len() + payload.len() <= lane.pair.inline().min(lane.size);
        if self.closing || !fits || waiting + works.reserved as u64 >= lane.window || !works.has_room(shared) {
            return None;
        }
        let data = Data::Within(header, payload);
        // SAFETY: nothing registered.
        let begun = unsafe { begin(shared, link, (0, lane, works), Work::Send, data, false, Owner::Nothing) };
        if begun.is_ok() {
            self.kept.push(Message::copied(header, payload));
        }
        Some(begun)
    }

    /// Starts a message, the first `len` bytes of a buffer, and keeps it.
    ///
    /// # Errors
    /// As [`start`](Self::start); with the buffer, which the device does not read.
    #[inline]
    pub(crate) fn send(
        &mut self,
        shared: &Shared,
        link: &Link,
        lane: usize,
        buffer: Buffer,
        len: usize,
    ) -> Result<(), (Error, Buffer)> {
        let work = self.works[lane].next();
        // A buffer is kept until its queue pair reports something: of several, that one may never be used again.
        let signal = len > COPIED || self.works.len() > 1;
        let data = Data::Registered(Gather { address: buffer.address().as_ptr(), len, key: buffer.key() });
        // SAFETY: the buffer is kept until the work is done.
        match unsafe { self.start(shared, link, lane, self.work_of_message(), data, signal, Owner::Nothing) } {
            Ok(()) => {
                self.keep_sent(lane, Message::Buffer { buffer, len, lane: lane as u8, work });
                Ok(())
            }
            Err(error) => Err((error, buffer)),
        }
    }

    /// Starts a message that goes within the work, and keeps a copy, which is made when the message is on its way.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[inline]
    pub(crate) fn send_copy(
        &mut self,
        shared: &Shared,
        link: &Link,
        lane: usize,
        header: &[u8],
        payload: &[u8],
    ) -> Result<(), Error> {
        let data = Data::Within(header, payload);
        // SAFETY: nothing registered.
        unsafe { self.start(shared, link, lane, self.work_of_message(), data, false, Owner::Nothing) }?;
        self.keep_sent(lane, Message::copied(header, payload));
        Ok(())
    }

    #[inline]
    fn work_of_message(&self) -> Work<'static> {
        if self.works.len() > 1 { Work::SendWithWord(order::word(self.kept.sent())) } else { Work::Send }
    }

    /// What has been consumed meanwhile is let go of when work is done, which is soon enough.
    #[inline]
    fn keep_sent(&mut self, lane: usize, message: Message) {
        self.kept.push(message);
        if self.works.len() > 1 {
            self.works[lane].waiting += 1;
            self.lanes.push_back(lane as u8);
        }
    }

    /// Keeps a message that was to be sent by a connection that broke meanwhile. False: that is too late.
    pub(crate) fn keep(&mut self, buffer: Buffer, len: usize) -> bool {
        let broken = matches!(self.state, State::Broken(..) | State::Gone(..)) && !self.closing && !self.settled;
        if broken {
            self.kept.push(Message::Buffer { buffer, len, lane: 0, work: 0 });
        }
        broken
    }

    /// Lets go of messages that the peer has consumed.
    #[inline]
    pub(crate) fn release(&mut self) {
        if let State::Connected(connection) = &self.state {
            let works = &self.works;
            self.kept.release(connection.cell.read(), |lane, work| works[lane].is_under_way(work));
        }
    }

    /// Gives back the memory of queues that were long and are empty.
    pub(crate) fn rest(&mut self) {
        self.release();
        self.works.iter_mut().for_each(Works::rest);
        if self.kept.is_empty() {
            self.kept.shrink_to(LEAST);
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
    /// As [`QueuePair::post`](crate::verbs::QueuePair::post), where `owner` keeps alive what must be.
    ///
    /// # Errors
    /// The device refused: the link is to be broken off.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "each is a word of one request")]
    pub(crate) unsafe fn start(
        &mut self,
        shared: &Shared,
        link: &Link,
        lane: usize,
        work: Work<'_>,
        data: Data<'_>,
        signal: bool,
        owner: Owner,
    ) -> Result<(), Error> {
        let State::Connected(connection) = &self.state else { return Err(link.error("there is no connection")) };
        let works = &mut self.works[lane];
        // SAFETY: the caller's promise.
        unsafe { begin(shared, link, (lane, &connection.lanes[lane], works), work, data, signal, owner) }
    }

    /// Work `number` of a lane and all before it there is done: what each held is handed to `each`. False if there is no
    /// such work.
    #[inline]
    pub(crate) fn finish(&mut self, shared: &Shared, lane: usize, number: u32, each: impl FnMut(Owner, bool)) -> bool {
        let known = self.works.get_mut(lane).is_some_and(|works| works.finish(shared, number, each));
        self.release();
        known
    }

    /// The device will not report the end of anything any more.
    pub(crate) fn abandon(&mut self, shared: &Shared) -> Vec<Owner> {
        if self.mute
            && let State::Broken(connection, _) | State::Left { kept: Some(connection) } = &self.state
        {
            for error in connection.lanes.iter().filter_map(|lane| lane.pair.reset().err()) {
                log::debug!("{NAME}: a queue pair cannot be reset: {error}");
            }
        }
        self.works.iter_mut().flat_map(|works| works.abandon(shared)).collect()
    }

    /// Why it broke, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &self.state {
            State::Broken(_, error) | State::Gone(error, _) => Some(error.clone()),
            _ => None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.works.iter().all(Works::is_empty)
    }

    /// Whether something under way will tell of the peer's death.
    pub(crate) fn is_watched(&self) -> bool {
        self.works.iter().any(Works::is_watched)
    }

    /// Tells the peer how many of its messages were consumed. False: not now.
    pub(crate) fn tell_consumed(&mut self, shared: &Shared, link: &Link, watch: bool) -> Result<bool, Error> {
        let State::Connected(connection) = &self.state else { return Ok(true) };
        if self.closing {
            return Ok(true);
        }
        if !self.works[0].has_spare_room(shared) {
            return Ok(false);
        }
        let (address, key) = connection.their_cell;
        let consumed = link.consumed.load(Ordering::Relaxed);
        self.start_copied(shared, link, Work::Write { address, key }, &consumed.to_le_bytes(), watch)?;
        link.told.store(consumed, Ordering::Relaxed);
        Ok(true)
    }

    /// Starts work on a copy of a few bytes, by the first queue pair. There must be room for it.
    fn start_copied(
        &mut self,
        shared: &Shared,
        link: &Link,
        work: Work<'static>,
        bytes: &[u8],
        signal: bool,
    ) -> Result<(), Error> {
        let State::Connected(connection) = &self.state else { return Err(link.error("there is no connection")) };
        if connection.lanes[0].pair.inline() >= bytes.len() {
            // SAFETY: nothing registered.
            return unsafe { self.start(shared, link, 0, work, Data::Within(bytes, &[]), signal, Owner::Nothing) };
        }
        let buffer = shared.pool.take(bytes.len())?;
        // SAFETY: a fresh buffer of at least as many bytes.
        unsafe { buffer.address().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let data = Gather { address: buffer.address().as_ptr(), len: bytes.len(), key: buffer.key() };
        let (data, owner) = (Data::Registered(data), Owner::Buffer { _buffer: buffer });
        // SAFETY: the buffer is kept by its owner.
        unsafe { self.start(shared, link, 0, work, data, signal, owner) }
    }

    /// Sends a sign. There must be room for it, with the peer, too.
    pub(crate) fn send_sign(&mut self, shared: &Shared, link: &Link, sign: &Sign) -> Result<(), Error> {
        self.start_copied(shared, link, Work::Send, sign, true)
    }

    /// Says goodbye after what is under way. Nothing can be sent after that.
    pub(crate) fn close(&mut self, shared: &Shared, link: &Link) {
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        match &self.state {
            State::Idle => self.state = State::Gone(link.error("the link was closed here"), None),
            State::Connected(connection) => {
                let sign = link.signs.lock().as_ref().map(|signs| signs.goodbye);
                if let Some(goodbye) = sign {
                    // Room for it was kept.
                    if let Err(error) = self.send_sign(shared, link, &goodbye) {
                        log::debug!("{NAME}: no goodbye to peer {}: {error}", link.rank);
                    }
                    return;
                }
                let (address, key) = connection.their_cell;
                let goodbye = Work::SendWithWord(order::word(self.kept.sent()) | order::GOODBYE);
                for lane in 0..self.works.len() {
                    // Of the others, what was sent without a report is to be reported.
                    let last = if lane == 0 { goodbye } else { Work::Write { address, key } };
                    if lane != 0 && self.works[lane].is_empty() {
                        continue;
                    }
                    // SAFETY: there is no data. Room for it was kept.
                    let sent = unsafe { self.start(shared, link, lane, last, Data::Nothing, true, Owner::Nothing) };
                    if let Err(error) = sent {
                        log::debug!("{NAME}: no goodbye to peer {}: {error}", link.rank);
                    }
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

    /// Breaks it off, and has progress say so.
    #[cold]
    pub(crate) fn give_up(&mut self, shared: &Shared, link: &Arc<Link>, error: Error) {
        self.break_off(shared, link, error.clone());
        shared.mailbox.post(|letters| letters.failures.push((Arc::clone(link), error)));
    }

    /// Breaks it off: what is under way comes back, in error. False if it was broken or gone already.
    pub(crate) fn break_off(&mut self, shared: &Shared, link: &Link, error: Error) -> bool {
        self.stop(shared, link);
        let state = std::mem::replace(&mut self.state, State::Idle);
        let (next, broken) = match state {
            State::Connected(connection) => (State::Broken(connection, error), true),
            State::Idle | State::Connecting => {
                self.unmade = true;
                (State::Gone(error, None), true)
            }
            other => (other, false),
        };
        self.state = next;
        broken
    }

    /// What is under way comes back, and nothing arrives any more. Work that was done without a report would stay in
    /// its queue for ever: so there is more work behind it, that fails at once and says so.
    fn stop(&mut self, shared: &Shared, link: &Link) {
        for lane in 0..self.works.len() {
            let State::Connected(connection) = &self.state else { return };
            let stopped = connection.lanes[lane].pair.fail();
            // On iWARP what is started from here on is not reported; all else has been, once this is done.
            if self.works[lane].is_empty() || shared.port.context.is_iwarp() {
                continue;
            }
            // SAFETY: there is no data. Room for it was kept.
            let last = unsafe { self.start(shared, link, lane, Work::Send, Data::Nothing, true, Owner::Nothing) };
            self.mute |= last.is_err();
            if let Err(error) = stopped.map_err(|error| error.to_string()).and(last.map_err(|error| error.to_string()))
            {
                log::debug!("{NAME}: the connection to peer {} cannot be stopped: {error}", link.rank);
            }
        }
    }
}

/// Starts work on a lane, of which there is this much already.
///
/// # Safety
/// As [`Tx::start`].
///
/// # Errors
/// As there.
#[inline]
unsafe fn begin(
    shared: &Shared,
    link: &Link,
    (number, lane, works): (usize, &Lane, &mut Works),
    work: Work<'_>,
    data: Data<'_>,
    signal: bool,
    owner: Owner,
) -> Result<(), Error> {
    let signalled = signal || works.is_due(shared);
    let post = Post { id: link.work_id(number, works.next()), signalled };
    // SAFETY: the caller's promise.
    unsafe { lane.pair.post(work, data, post) }
        .map_err(|error| Error::system(NAME, format!("cannot send to peer {}", link.rank), error))?;
    works.push(shared, owner, signalled);
    Ok(())
}

impl Shared {
    /// Whether the completion queue has room for more.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) + SPARE_COMPLETIONS < self.port.room
    }
}
