//! Progress: the only place that makes, watches and reads connections. One thread at a time executes it.

mod admission;
mod parting;
mod pending;
mod processes;
mod reader;
mod watch;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::sys::Socket;
use cableway_base::Rank;
use cableway_base::fork::Unshared;
use cableway_btl::process::Watch;
use cableway_btl::{Error, Upcalls};
use rustix::event::{Timespec, epoll};
use slab::Slab;

use crate::link::{Peer, Requests, State};
use crate::pool::Buffer;
use crate::shared::Shared;
use crate::{NAME, gather};
use pending::{Attempt, Pending};
use reader::{Reader, Turn};
use watch::Clock;

/// The size of the buffer for small messages, which are parsed in it. It is registered with the driver, so that devices
/// copy from it at full speed.
pub(crate) const SCRATCH: usize = 128 << 10;
/// The number of events taken from epoll at a time.
const EVENTS: usize = 64;
/// The number of connections that are read without asking epoll first.
const HOT: usize = 4;
/// The number of reads without data before a connection is left to epoll again.
const COOLS_AFTER: u32 = 2_000;
/// While hot connections are read, one of this many polls asks epoll.
const EPOLL_EVERY: u32 = 16;
/// After this many polls without an event, only each `IDLE_EVERY`th call makes a system call, so that tcp costs little
/// in a process that uses other transports.
const IDLE_AFTER: u32 = 4_000;
const IDLE_EVERY: u32 = 8;

pub(crate) type Epoll = Unshared<OwnedFd>;

pub(crate) struct Engine {
    shared: Arc<Shared>,
    /// Readable when a connection is readable.
    epoll: Arc<Epoll>,
    entries: Slab<Entry>,
    /// Distinguishes an entry from earlier ones in the same slot.
    stamp: u32,
    /// Keys of readers that recently had data, the latest first.
    hot: Vec<usize>,
    retries: Vec<(Instant, Attempt)>,
    /// Dead peers, which are reported at the end of the call.
    failures: Vec<(Arc<Peer>, Error)>,
    /// Peers that have said goodbye on a link and are not reported yet, because other links may still have messages.
    leaving: Vec<Arc<Peer>>,
    /// Peers on this node whose processes have ended.
    ended: Vec<Arc<Peer>>,
    scratch: Buffer,
    /// Empty between calls; kept for its allocation.
    requests: Requests,
    idle: u32,
    polls: u32,
    clock: Clock,
}

struct Entry {
    stamp: u32,
    source: Source,
}

enum Source {
    Listener(Arc<Socket>),
    /// The end of a peer's process.
    Process(Watch, Arc<Peer>),
    Pending(Box<Pending>),
    Reader(Box<Reader>),
}

impl Engine {
    pub(crate) fn epoll() -> Result<Arc<Epoll>, Error> {
        let epoll = Unshared::open(|| epoll::create(epoll::CreateFlags::CLOEXEC));
        epoll.map(Arc::new).map_err(|errno| Error::system(NAME, "cannot set up epoll", errno.into()))
    }

    pub(crate) fn new(
        shared: Arc<Shared>,
        epoll: Arc<Epoll>,
        listeners: impl Iterator<Item = Socket>,
    ) -> Result<Self, Error> {
        let clock = Clock::new(shared.settings.socket.peer_timeout);
        let mut engine = Engine {
            epoll,
            scratch: shared.pool.take(SCRATCH)?,
            shared,
            entries: Slab::new(),
            stamp: 0,
            hot: Vec::with_capacity(HOT + 1),
            retries: Vec::new(),
            failures: Vec::new(),
            leaving: Vec::new(),
            ended: Vec::new(),
            requests: Requests::default(),
            idle: 0,
            polls: 0,
            clock,
        };
        for listener in listeners {
            engine
                .insert(Source::Listener(Arc::new(listener)), epoll::EventFlags::IN)
                .map_err(|error| Error::system(NAME, "cannot watch a listening socket", error))?;
        }
        Ok(engine)
    }

    pub(crate) fn progress(&mut self, upcalls: &dyn Upcalls) -> usize {
        let _gathering = gather::Scope::new();
        let mut events = self.take_requests(upcalls);
        self.polls = self.polls.wrapping_add(1);
        if self.idle >= IDLE_AFTER && !self.polls.is_multiple_of(IDLE_EVERY) {
            return events;
        }
        events += self.read_hot(upcalls);
        if self.hot.is_empty() || self.polls.is_multiple_of(EPOLL_EVERY) {
            events += self.poll(upcalls);
        }
        if gather::is_on() {
            // Write the answers, and then handle the results of their completions.
            events += self.take_requests(upcalls);
            gather::end();
            events += self.take_requests(upcalls);
        }
        self.look_around();
        for (peer, error) in std::mem::take(&mut self.failures) {
            self.part(&peer, error, upcalls);
            events += 1;
        }
        if !self.leaving.is_empty() {
            events += self.report_leaving(upcalls);
        }
        self.idle = if events == 0 { self.idle.saturating_add(1) } else { 0 };
        events
    }

    /// Returns whether all possible work makes the descriptor of epoll readable. The next call checks epoll.
    pub(crate) fn may_sleep(&mut self) -> bool {
        self.idle = 0;
        let waits = self.failures.is_empty() && self.leaving.is_empty() && self.ended.is_empty();
        waits && self.retries.is_empty() && self.shared.request_queue.is_empty()
    }

    fn take_requests(&mut self, upcalls: &dyn Upcalls) -> usize {
        if !self.shared.request_queue.collect(&mut self.requests) {
            return 0;
        }
        self.idle = 0;
        let mut requests = std::mem::take(&mut self.requests);
        let mut events = requests.finished.len();
        if requests.finished.len() > 1 {
            gather::begin();
        }
        for (token, result) in requests.finished.drain(..) {
            upcalls.completed(token, result);
        }
        for link in requests.blocked.drain(..) {
            let mut tx = link.tx.lock();
            tx.listed = false;
            tx.flush(&link, &self.shared.request_queue);
            let finished = tx.outbox.take_finished();
            drop(tx);
            events += finished.len();
            if finished.len() > 1 {
                gather::begin();
            }
            for token in finished {
                upcalls.completed(token, Ok(()));
            }
        }
        for peer in requests.met.drain(..) {
            self.met(&peer);
        }
        for link in requests.connect.drain(..) {
            self.connect(Attempt::new(link));
        }
        for link in requests.broken.drain(..) {
            self.suspect(&link, upcalls);
        }
        self.requests = requests;
        events
    }

    fn read_hot(&mut self, upcalls: &dyn Upcalls) -> usize {
        let mut events = 0;
        let mut index = 0;
        while let Some(&key) = self.hot.get(index) {
            events += self.read(key, upcalls);
            match self.entries.get(key).map(|entry| &entry.source) {
                Some(Source::Reader(reader)) if reader.cold < COOLS_AFTER => index += 1,
                _ => self.hot.retain(|&hot| hot != key),
            }
        }
        events
    }

    fn poll(&mut self, upcalls: &dyn Upcalls) -> usize {
        let mut room = [const { MaybeUninit::uninit() }; EVENTS];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (ready, _) = match epoll::wait(&self.epoll, &mut room, Some(&none)) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => return 0,
            Err(errno) => {
                cableway_base::warn_once("tcp/epoll", || format!("{NAME}: epoll_wait: {errno}"));
                return 0;
            }
        };
        let mut events = 0;
        for event in ready {
            let word = event.data.u64();
            let (key, stamp) = ((word & 0xffff_ffff) as usize, (word >> 32) as u32);
            let Some(entry) = self.entries.get(key).filter(|entry| entry.stamp == stamp) else { continue };
            match &entry.source {
                Source::Listener(listener) => self.accept(&Arc::clone(listener)),
                Source::Process(..) => self.process_ended(key),
                Source::Pending(_) => self.pending_ready(key),
                Source::Reader(_) => {
                    events += self.read(key, upcalls);
                    self.heat(key);
                }
            }
        }
        events
    }

    /// Reads a link. Returns the number of frames.
    fn read(&mut self, key: usize, upcalls: &dyn Upcalls) -> usize {
        let Some(Entry { source: Source::Reader(reader), .. }) = self.entries.get_mut(key) else { return 0 };
        reader.cold = reader.cold.saturating_add(1);
        match reader.turn(&mut self.scratch, &self.shared, upcalls) {
            Turn::Drained(frames) | Turn::More(frames) => {
                if reader.left {
                    let mut tx = reader.link.tx.lock();
                    if let State::Connected(socket) = &tx.state {
                        tx.state = State::Left(Some(Arc::clone(socket)));
                        self.leaving.push(Arc::clone(&reader.link.peer));
                    }
                }
                frames
            }
            Turn::Ended(frames, end) => {
                self.ended(key, end, upcalls);
                frames
            }
        }
    }

    /// Gives a connection priority in later reads.
    fn heat(&mut self, key: usize) {
        if self.hot.first() == Some(&key) {
            return;
        }
        self.hot.retain(|&hot| hot != key);
        self.hot.insert(0, key);
        self.hot.truncate(HOT);
    }

    fn insert(&mut self, source: Source, interest: epoll::EventFlags) -> io::Result<usize> {
        self.stamp = self.stamp.wrapping_add(1);
        let place = self.entries.vacant_entry();
        let key = place.key();
        epoll::add(&self.epoll, source.descriptor(), event_data(key, self.stamp), interest)?;
        place.insert(Entry { stamp: self.stamp, source });
        Ok(key)
    }

    /// Removes an entry and its registration with epoll, because the socket may stay open in the link.
    fn remove(&mut self, key: usize) -> Option<Source> {
        let entry = self.entries.try_remove(key)?;
        self.hot.retain(|&hot| hot != key);
        if let Err(errno) = epoll::delete(&self.epoll, entry.source.descriptor()) {
            log::debug!("{NAME}: epoll_ctl: {errno}");
        }
        Some(entry.source)
    }
}

impl Source {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Source::Listener(socket) => socket.as_fd(),
            Source::Process(watch, _) => watch.as_fd(),
            Source::Pending(pending) => pending.socket.as_fd(),
            Source::Reader(reader) => reader.socket.as_fd(),
        }
    }

    fn peer(&self) -> Option<Rank> {
        match self {
            Source::Listener(_) => None,
            Source::Process(_, peer) => Some(peer.rank),
            Source::Pending(pending) => pending.peer(),
            Source::Reader(reader) => Some(reader.link.peer.rank),
        }
    }
}

fn event_data(key: usize, stamp: u32) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(stamp) << 32 | key as u64)
}
