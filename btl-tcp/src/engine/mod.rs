//! Progress: the one place where connections are made, watched and read. Only one thread at a time is inside.

mod admission;
mod pending;
mod reader;
mod watch;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use cableway_base::Rank;
use cableway_btl::{Error, Upcalls};
use rustix::event::{Timespec, epoll};
use slab::Slab;
use socket2::Socket;

use crate::link::{Letters, Link, Peer, State};
use crate::pool::Buffer;
use crate::shared::Shared;
use crate::{NAME, gather};
use pending::{Attempt, Pending};
use reader::{End, Reader, Turn};
use watch::Watch;

/// Small messages are parsed where they were read to: in a buffer of so many bytes, registered with the driver so that
/// a device copies out of it as fast as from elsewhere.
pub(crate) const SCRATCH: usize = 128 << 10;
/// Events taken from epoll at a time.
const EVENTS: usize = 64;
/// Connections that are read without asking epoll first.
const HOT: usize = 4;
/// Reads in vain before a connection is left to epoll again.
const COOLS_AFTER: u32 = 2_000;
/// Of so many polls one asks epoll while hot connections are being read.
const EPOLL_EVERY: u32 = 16;
/// After so many polls without any event, only each `IDLE_EVERY`th call makes a system call: a process whose messages
/// go by another transport should not feel this one.
const IDLE_AFTER: u32 = 4_000;
const IDLE_EVERY: u32 = 8;

pub(crate) struct Engine {
    shared: Arc<Shared>,
    /// Readable when a connection is.
    epoll: Arc<OwnedFd>,
    entries: Slab<Entry>,
    /// Tells an entry from an earlier one in the same place.
    stamp: u32,
    /// Keys of readers that had something not long ago, the latest first.
    hot: Vec<usize>,
    retries: Vec<(Instant, Attempt)>,
    /// Peers found dead, to be reported at the end of the call.
    failures: Vec<(Arc<Peer>, Error)>,
    /// Peers that have said goodbye on a link and are not reported yet: others may still have something to deliver.
    leaving: Vec<Arc<Peer>>,
    scratch: Buffer,
    /// Empty between calls; kept for its memory.
    letters: Letters,
    idle: u32,
    polls: u32,
    watch: Watch,
}

struct Entry {
    stamp: u32,
    source: Source,
}

enum Source {
    Listener(Arc<Socket>),
    Pending(Box<Pending>),
    Reader(Box<Reader>),
}

impl Engine {
    pub(crate) fn epoll() -> Result<Arc<OwnedFd>, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        epoll.map(Arc::new).map_err(|errno| Error::system(NAME, "cannot set up epoll", errno.into()))
    }

    pub(crate) fn new(
        shared: Arc<Shared>,
        epoll: Arc<OwnedFd>,
        listeners: impl Iterator<Item = Socket>,
    ) -> Result<Self, Error> {
        let watch = Watch::new(shared.settings.socket.peer_timeout);
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
            letters: Letters::default(),
            idle: 0,
            polls: 0,
            watch,
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
        let mut events = self.read_mail(upcalls);
        self.polls = self.polls.wrapping_add(1);
        if self.idle >= IDLE_AFTER && !self.polls.is_multiple_of(IDLE_EVERY) {
            return events;
        }
        events += self.read_hot(upcalls);
        if self.hot.is_empty() || self.polls.is_multiple_of(EPOLL_EVERY) {
            events += self.poll(upcalls);
        }
        if gather::is_on() {
            // Writes the answers; then what their completions led to.
            events += self.read_mail(upcalls);
            gather::end();
            events += self.read_mail(upcalls);
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

    /// Whether all that there is to do will make epoll's descriptor readable. The next call looks there.
    pub(crate) fn may_sleep(&mut self) -> bool {
        self.idle = 0;
        self.failures.is_empty() && self.leaving.is_empty() && self.retries.is_empty() && self.shared.mailbox.is_empty()
    }

    fn read_mail(&mut self, upcalls: &dyn Upcalls) -> usize {
        if !self.shared.mailbox.collect(&mut self.letters) {
            return 0;
        }
        self.idle = 0;
        let mut letters = std::mem::take(&mut self.letters);
        let mut events = letters.finished.len();
        if letters.finished.len() > 1 {
            gather::begin();
        }
        for (token, result) in letters.finished.drain(..) {
            upcalls.completed(token, result);
        }
        for link in letters.blocked.drain(..) {
            let mut tx = link.tx.lock();
            tx.listed = false;
            tx.flush(&link, &self.shared.mailbox);
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
        for link in letters.connect.drain(..) {
            self.connect(Attempt::new(link));
        }
        for link in letters.broken.drain(..) {
            self.suspect(&link, upcalls);
        }
        self.letters = letters;
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
                Source::Pending(_) => self.pending_ready(key),
                Source::Reader(_) => {
                    events += self.read(key, upcalls);
                    self.heat(key);
                }
            }
        }
        events
    }

    /// Reads a link; returns how many frames there were.
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

    /// Has a connection read first from now on.
    fn heat(&mut self, key: usize) {
        if self.hot.first() == Some(&key) {
            return;
        }
        self.hot.retain(|&hot| hot != key);
        self.hot.insert(0, key);
        self.hot.truncate(HOT);
    }

    /// Writing on a link failed: reads what is left, after which the connection has ended.
    fn suspect(&mut self, link: &Arc<Link>, upcalls: &dyn Upcalls) {
        let reason = match &link.tx.lock().state {
            State::Broken(reason) => reason.clone(),
            _ => return,
        };
        let Some(key) = self.reader_of(link) else {
            self.failures.push((Arc::clone(&link.peer), link.peer.error(reason)));
            return;
        };
        loop {
            let Some(Entry { source: Source::Reader(reader), .. }) = self.entries.get_mut(key) else { return };
            reader.suspect = Some(reason.clone());
            match reader.turn(&mut self.scratch, &self.shared, upcalls) {
                Turn::More(_) => {}
                Turn::Drained(_) => return self.ended(key, End::Io(io::Error::other(reason)), upcalls),
                Turn::Ended(_, end) => return self.ended(key, end, upcalls),
            }
        }
    }

    fn reader_of(&self, link: &Arc<Link>) -> Option<usize> {
        self.entries.iter().find_map(|(key, entry)| match &entry.source {
            Source::Reader(reader) if Arc::ptr_eq(&reader.link, link) => Some(key),
            _ => None,
        })
    }

    /// A link's connection is over: in good order if either end said goodbye, else its peer has failed.
    fn ended(&mut self, key: usize, end: End, upcalls: &dyn Upcalls) {
        let Some(Source::Reader(reader)) = self.remove(key) else { return };
        let Reader { link, left, suspect, .. } = *reader;
        let peer = Arc::clone(&link.peer);
        let mut tx = link.tx.lock();
        if (left || tx.closing) && !matches!(end, End::Violation(_)) {
            let finished = tx.outbox.take_finished();
            let lost = tx.outbox.abandon();
            tx.state = State::Left(None);
            if tx.closing {
                peer.links.lock().remove(&link.number);
            }
            drop(tx);
            for token in finished {
                upcalls.completed(token, Ok(()));
            }
            for token in lost {
                upcalls.completed(token, Err(peer.left()));
            }
            if left {
                self.leaving.push(peer);
            }
            return;
        }
        drop(tx);
        let error = match (end, suspect) {
            (End::Violation(reason), _) => {
                log::warn!("{NAME}: peer {} is disconnected: {reason}", peer.rank);
                Error::Malformed { btl: NAME, peer: peer.rank, reason }
            }
            (_, Some(reason)) => peer.error(reason),
            (End::Io(error), None) => peer.error(error.to_string()),
            (End::Eof, None) => peer.error("it closed the connection without a goodbye"),
        };
        self.failures.push((peer, error));
    }

    /// Reports peers that have said goodbye on all their links; returns how many.
    #[cold]
    fn report_leaving(&mut self, upcalls: &dyn Upcalls) -> usize {
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.sort_unstable_by_key(|peer| peer.rank);
        leaving.dedup_by_key(|peer| peer.rank);
        let (still, gone): (Vec<_>, Vec<_>) = leaving.into_iter().partition(|peer| {
            self.entries.iter().any(|(_, entry)| match &entry.source {
                Source::Listener(_) => false,
                Source::Pending(pending) => pending.may_carry() && pending.peer() == Some(peer.rank),
                Source::Reader(reader) => reader.link.peer.rank == peer.rank && !reader.left,
            })
        });
        self.leaving = still;
        for peer in &gone {
            self.part(peer, peer.left(), upcalls);
        }
        gone.len()
    }

    /// Ends everything that has to do with a peer that failed or left, and reports it.
    fn part(&mut self, peer: &Arc<Peer>, error: Error, upcalls: &dyn Upcalls) {
        {
            let mut gone = peer.gone.lock();
            if gone.is_some() {
                return;
            }
            *gone = Some(error.clone());
        }
        let theirs: Vec<usize> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.source.peer() == Some(peer.rank))
            .map(|(key, _)| key)
            .collect();
        for key in theirs {
            self.remove(key);
        }
        self.retries.retain(|(_, attempt)| attempt.link.peer.rank != peer.rank);
        for link in peer.all_links() {
            let mut tx = link.tx.lock();
            let finished = tx.outbox.take_finished();
            let lost = tx.outbox.abandon();
            tx.state = State::Gone(error.clone());
            drop(tx);
            for token in finished {
                upcalls.completed(token, Ok(()));
            }
            for token in lost {
                upcalls.completed(token, Err(error.clone()));
            }
        }
        match error {
            Error::PeerLeft { .. } => upcalls.peer_left(peer.rank),
            error => upcalls.peer_failed(peer.rank, error),
        }
    }

    fn insert(&mut self, source: Source, interest: epoll::EventFlags) -> io::Result<usize> {
        self.stamp = self.stamp.wrapping_add(1);
        let socket = Arc::clone(source.socket());
        let entry = Entry { stamp: self.stamp, source };
        let key = self.entries.insert(entry);
        if let Err(errno) = epoll::add(&self.epoll, &*socket, event_data(key, self.stamp), interest) {
            self.entries.remove(key);
            return Err(errno.into());
        }
        Ok(key)
    }

    /// Takes an entry out. Its socket may live on in the link, so epoll is told.
    fn remove(&mut self, key: usize) -> Option<Source> {
        let entry = self.entries.try_remove(key)?;
        self.hot.retain(|&hot| hot != key);
        if let Err(errno) = epoll::delete(&self.epoll, &**entry.source.socket()) {
            log::debug!("{NAME}: epoll_ctl: {errno}");
        }
        Some(entry.source)
    }
}

impl Source {
    fn socket(&self) -> &Arc<Socket> {
        match self {
            Source::Listener(socket) => socket,
            Source::Pending(pending) => &pending.socket,
            Source::Reader(reader) => &reader.socket,
        }
    }

    fn peer(&self) -> Option<Rank> {
        match self {
            Source::Listener(_) => None,
            Source::Pending(pending) => pending.peer(),
            Source::Reader(reader) => Some(reader.link.peer.rank),
        }
    }
}

fn event_data(key: usize, stamp: u32) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(stamp) << 32 | key as u64)
}
