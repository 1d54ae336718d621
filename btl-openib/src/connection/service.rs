//! The thread that makes connections and hears what the device has to say. It sleeps until there is something to do.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ahash::AHashMap;
use cableway_base::Rank;
use cableway_btl::Error;
use cableway_common_cuda::Devices;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::datagrams::Datagrams;
use super::door::Door;
use super::handshake::{Due, Handshake};
use super::wire::{HELLO, Hello, Identity};
use crate::NAME;
use crate::card::{Address, BITS_24};
use crate::cells::Cell;
use crate::link::{Connection, Link, State};
use crate::port::Port;
use crate::process::{Found, Process, Watch};
use crate::settings::Settings;
use crate::shared::Shared;
use crate::verbs::{QueuePair, QueuePairOptions, Remote};

/// The thread, which ends when this is dropped.
pub(crate) struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Sets up the queue pair for datagrams, and with its number this process's address.
    ///
    /// # Errors
    /// The device or the system refuses.
    pub(crate) fn start(
        port: Port,
        identity: Identity,
        settings: Settings,
        devices: &Devices,
    ) -> Result<(Arc<Shared>, Self), Error> {
        let failed = |what: &'static str| move |error| Error::system(NAME, what, error);
        let door = Door::new().map_err(failed("cannot make an event descriptor"))?;
        let datagrams = Datagrams::open(&port, &settings)?;
        let (number, key) = datagrams.address();
        let address = Address {
            mtu: port.facts.mtu,
            kind: port.gid.kind,
            lid: port.facts.lid,
            reads: port.reads,
            gid: port.gid.bytes,
            datagrams: number,
            datagram_key: key,
            max_message: u32::try_from(settings.max_send_size).unwrap_or(u32::MAX),
            process: Process::own(),
        };
        let shared = Shared::new(port, door, address, identity, settings, devices);
        let server = Server {
            shared: Arc::clone(&shared),
            datagrams,
            come: Vec::new(),
            pending: AHashMap::new(),
            known: AHashMap::new(),
            watched: Vec::new(),
            beat: Instant::now(),
        };
        let thread =
            without_signals(|| std::thread::Builder::new().name("openib".to_owned()).spawn(move || server.serve()))
                .map_err(failed("cannot start a thread"))?;
        Ok((Arc::clone(&shared), Service { shared, thread: Some(thread) }))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.door.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("{NAME}: the thread that makes connections had panicked");
        }
    }
}

/// Runs `start` with all signals blocked, which a thread started there inherits: the program's handlers are not for it.
pub(crate) fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: signal sets are plain values, filled before they are read; the calls change this thread's mask only.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

struct Server {
    datagrams: Datagrams,
    /// Datagrams that were read and not heard yet.
    come: Vec<[u8; HELLO]>,
    /// Connections being made.
    pending: AHashMap<Rank, Pending>,
    /// What to answer those that are connected and have not heard so.
    known: AHashMap<Rank, (Hello, Address)>,
    /// Peers on this node that have not ended.
    watched: Vec<(Watch, Arc<Link>)>,
    /// When to look after silent peers.
    beat: Instant,
    shared: Arc<Shared>,
}

/// A connection being made.
struct Pending {
    link: Arc<Link>,
    pair: QueuePair,
    handshake: Handshake,
    address: Address,
    cell: Cell,
    first_packet: u32,
    /// The peer's window, its cell and the key to that; once it has said hello.
    theirs: Option<(u32, u64, u32)>,
}

impl Server {
    fn serve(mut self) {
        if let Err(error) = self.listen() {
            log::error!("{NAME}: no connections are made any more: {error}");
            let reason = error.to_string();
            self.shared.mailbox.post(|letters| letters.device = Some(reason));
        }
    }

    fn listen(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let events = shared.port.context.event_descriptor()?;
        loop {
            let now = Instant::now();
            let wake = self.tick(now);
            self.datagrams.arm()?;
            self.read()?;
            if shared.door.stopped() {
                return Ok(());
            }
            let wait = wake.map(|wake| timespec(wake.saturating_duration_since(Instant::now())));
            let fixed = [shared.door.bell(), self.datagrams.descriptor(), events];
            let watched = self.watched.iter().map(|(watch, _)| watch.as_fd());
            let sources = fixed.into_iter().chain(watched);
            let mut sources: Vec<_> = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
            match poll(&mut sources, wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let mut ended =
                sources[fixed.len()..].iter().map(|source| !source.revents().is_empty()).collect::<Vec<_>>();
            shared.door.answer();
            self.datagrams.drain();
            // What a peer said before it ended comes first.
            if ended.contains(&true) {
                self.read()?;
                ended.resize(self.watched.len(), false);
                self.bury(&ended);
            }
            while let Some(event) = shared.port.context.next_event() {
                self.hear_device(event.kind, event.queue_pair);
            }
            for link in shared.door.commands() {
                self.connect(link);
            }
            if shared.door.closes() {
                self.close();
            }
        }
    }

    /// Does what the time demands; returns when to do so again.
    fn tick(&mut self, now: Instant) -> Option<Instant> {
        let ranks: Vec<Rank> = self.pending.keys().copied().collect();
        let mut next: Option<Instant> = None;
        for rank in ranks {
            let due = match self.pending.get_mut(&rank) {
                Some(pending) => pending.handshake.due(now),
                None => continue,
            };
            match due {
                Due::Again => {
                    self.say_pending(rank);
                    next = Some(now + Duration::from_millis(1));
                }
                Due::TooLate => {
                    if let Some(pending) = self.pending.remove(&rank) {
                        let seconds = self.shared.settings.peer_timeout.as_secs_f64();
                        let error = pending.link.unreachable(format!("it does not answer within {seconds} s"));
                        self.give_up(pending, error);
                    }
                }
                Due::At(instant) => next = Some(next.map_or(instant, |next| next.min(instant))),
            }
        }
        if self.known.is_empty() {
            return next;
        }
        let interval = self.shared.settings.peer_timeout / 4;
        if now >= self.beat {
            self.beat = now + interval;
            self.look_after();
        }
        Some(next.map_or(self.beat, |next| next.min(self.beat)))
    }

    /// Has the device find out whether silent peers are there still.
    fn look_after(&self) {
        for link in self.shared.all_links() {
            let mut tx = link.tx.lock();
            if matches!(tx.state, State::Connected(_))
                && !tx.is_watched()
                && let Err(error) = tx.tell_consumed(&self.shared, &link, true)
            {
                drop(tx);
                self.shared.mailbox.post(|letters| letters.failures.push((Arc::clone(&link), error)));
            }
        }
    }

    /// This process wants to send.
    fn connect(&mut self, link: Arc<Link>) {
        let rank = link.rank;
        // The peer may have been first.
        if self.pending.contains_key(&rank) || self.known.contains_key(&rank) {
            return;
        }
        if self.shared.finalizing.load(Ordering::Acquire) {
            let error = link.error("the link was closed here");
            return self.lose(&link, error);
        }
        let Some(address) = *link.address.lock() else { return };
        match self.begin(Arc::clone(&link), address) {
            Ok(()) => self.say_pending(rank),
            Err(error) => self.lose(&link, error),
        }
    }

    /// Peers have ended, those at the places that hold true.
    fn bury(&mut self, ended: &[bool]) {
        for place in (0..ended.len()).rev().filter(|&place| ended[place]) {
            let (_, link) = self.watched.swap_remove(place);
            match self.pending.remove(&link.rank) {
                Some(pending) => {
                    let error = link.unreachable("its process has ended".to_owned());
                    self.give_up(pending, error);
                }
                None => self.shared.mailbox.post(|letters| letters.ended.push(link)),
            }
        }
    }

    /// Makes this end of a connection.
    fn begin(&mut self, link: Arc<Link>, address: Address) -> Result<(), Error> {
        let shared = &self.shared;
        match address.process.find(&shared.address.process) {
            Found::Alive(watch) => self.watched.push((watch, Arc::clone(&link))),
            Found::Elsewhere => {}
            Found::Ended => return Err(link.unreachable("its process has ended".to_owned())),
        }
        shared.receives()?;
        let options = QueuePairOptions {
            port: shared.port.facts.number,
            pkey_index: shared.settings.pkey_index,
            depth: shared.port.depth as u32,
            inline: shared.settings.inline,
        };
        let pair =
            QueuePair::connected(&shared.port.protection, &shared.port.completions, &shared.port.queue, &options)
                .map_err(|error| Error::system(NAME, format!("no queue pair for peer {}", link.rank), error))?;
        let cell = shared.cells.take()?;
        let random =
            u32::from_ne_bytes(crate::random().map_err(|error| Error::system(NAME, "no random bytes", error))?);
        shared.directory.write().by_number.insert(pair.number(), Arc::clone(&link));
        let handshake = Handshake::new(pair.number(), Instant::now(), shared.settings.peer_timeout);
        let rank = link.rank;
        let first_packet = random & BITS_24;
        self.pending.insert(rank, Pending { link, pair, handshake, address, cell, first_packet, theirs: None });
        Ok(())
    }

    fn hear(&mut self, rank: Rank, hello: &Hello) {
        if hello.closed {
            // Nothing can have come from it by a connection that it had not finished making.
            let link = match self.pending.remove(&rank) {
                Some(pending) => self.forget(pending),
                None => self.shared.link(rank),
            };
            self.shared.mailbox.post(|letters| letters.closed.push(link));
            return;
        }
        if let Some((ours, address)) = self.known.get(&rank).copied() {
            if ours.knows != hello.number {
                log::warn!("{NAME}: rank {rank} connects a second time, which it cannot: ignored");
            } else if hello.asks {
                self.say(rank, &ours, &address);
            }
            return;
        }
        if !self.pending.contains_key(&rank) && !self.accept(rank, hello) {
            return;
        }
        let Some(pending) = self.pending.get_mut(&rank) else { return };
        pending.theirs = Some((hello.window, hello.cell, hello.cell_key));
        let step = match pending.handshake.heard(hello.number, hello.knows, hello.asks) {
            Ok(step) => step,
            Err(reason) => return log::warn!("{NAME}: what rank {rank} says is ignored: {reason}"),
        };
        if step.connect {
            let remote = self.shared.remote(hello, &pending.address);
            if let Err(error) = pending.pair.connect(&remote, pending.first_packet) {
                let error = Error::system(NAME, format!("cannot connect to peer {rank}"), error);
                if let Some(pending) = self.pending.remove(&rank) {
                    self.give_up(pending, error);
                }
                return;
            }
        }
        if step.answer {
            self.say_pending(rank);
        }
        if step.ready {
            self.establish(rank);
        }
    }

    /// A peer was first. False: it is told, or nothing is said.
    fn accept(&mut self, rank: Rank, hello: &Hello) -> bool {
        let link = self.shared.link(rank);
        let refused = {
            let mut tx = link.tx.lock();
            if matches!(tx.state, State::Idle) && !tx.closing && !self.shared.finalizing.load(Ordering::Acquire) {
                tx.state = State::Connecting;
            }
            !matches!(tx.state, State::Connecting)
        };
        if refused {
            if hello.asks {
                self.say_closed(rank, &hello.address);
            }
            return false;
        }
        let address = *link.address.lock().get_or_insert(hello.address);
        match self.begin(Arc::clone(&link), address) {
            Ok(()) => true,
            Err(error) => {
                self.lose(&link, error);
                false
            }
        }
    }

    /// Both ends are connected.
    fn establish(&mut self, rank: Rank) {
        let Some(pending) = self.pending.remove(&rank) else { return };
        let Some((window, cell, key)) = pending.theirs else { return };
        let hello = Hello { asks: false, ..self.shared.hello(&pending) };
        if self.known.is_empty() {
            self.beat = Instant::now() + self.shared.settings.peer_timeout / 4;
        }
        self.known.insert(rank, (hello, pending.address));
        let connection =
            Connection { pair: pending.pair, window: window.into(), cell: pending.cell, their_cell: (cell, key) };
        log::debug!("{NAME}: connected to rank {rank}, queue pair {}", connection.pair.number());
        let mut tx = pending.link.tx.lock();
        if !matches!(tx.state, State::Connecting) {
            // Closed by a goodbye that came before we knew that we were connected.
            if let State::Gone(_, kept) | State::Left { kept } = &mut tx.state {
                *kept = Some(connection);
            }
            return;
        }
        tx.state = State::Connected(connection);
        if std::mem::take(&mut tx.closing) {
            tx.close(&self.shared, &pending.link);
        }
    }

    /// A connection is not to be.
    fn give_up(&self, pending: Pending, error: Error) {
        let link = self.forget(pending);
        self.lose(&link, error);
    }

    fn forget(&self, pending: Pending) -> Arc<Link> {
        self.shared.directory.write().by_number.remove(&pending.pair.number());
        pending.link
    }

    /// This process ends: who is being connected to hears so, as often as makes it likely that one datagram arrives.
    fn close(&mut self) {
        const TIMES: usize = 3;
        let pending = std::mem::take(&mut self.pending);
        for (rank, pending) in pending {
            for _ in 0..TIMES {
                self.say_closed(rank, &pending.address);
            }
            let link = self.forget(pending);
            let mut tx = link.tx.lock();
            if matches!(tx.state, State::Connecting) {
                tx.state = State::Gone(link.error("the link was closed here"), None);
            }
        }
    }

    fn say_closed(&mut self, rank: Rank, address: &Address) {
        let closed = Hello {
            asks: false,
            closed: true,
            number: 0,
            first_packet: 0,
            knows: 0,
            window: 0,
            cell: 0,
            cell_key: 0,
            address: self.shared.address,
        };
        self.say(rank, &closed, address);
    }

    fn lose(&self, link: &Arc<Link>, error: Error) {
        self.shared.mailbox.post(|letters| letters.failures.push((Arc::clone(link), error)));
    }

    fn say_pending(&mut self, rank: Rank) {
        let Some(pending) = self.pending.get(&rank) else { return };
        let (hello, address) = (self.shared.hello(pending), pending.address);
        self.say(rank, &hello, &address);
    }

    /// A datagram that is not sent is said again, as one that is lost.
    fn say(&mut self, to: Rank, hello: &Hello, address: &Address) {
        let sent = self.shared.identity.encode(to, hello).and_then(|bytes| {
            let sent = self.datagrams.send(&self.shared.port, &self.shared.settings, address, &bytes);
            sent.map_err(|error| error.to_string())
        });
        if let Err(reason) = sent {
            log::debug!("{NAME}: cannot say hello to rank {to}: {reason}");
        }
    }

    /// Hears what has come, until there is no more.
    fn read(&mut self) -> io::Result<()> {
        let mut come = std::mem::take(&mut self.come);
        self.datagrams.read(&mut come)?;
        for bytes in come.drain(..) {
            match self.shared.identity.decode(&bytes) {
                Ok((rank, hello)) => self.hear(rank, &hello),
                Err(reason) => log::debug!("{NAME}: a datagram is ignored: {reason}"),
            }
        }
        self.come = come;
        Ok(())
    }

    /// What the device says about a queue pair or itself; `enum ibv_event_type`.
    fn hear_device(&self, kind: i32, queue_pair: Option<u32>) {
        let name = &self.shared.port.context.name;
        match (kind, queue_pair) {
            (1..=3, Some(number)) => {
                let Some(link) = self.shared.directory.read().by_number.get(&number).map(Arc::clone) else { return };
                let error = match kind {
                    1 => link.error("its queue pair here failed"),
                    _ => {
                        let reason = "it reached for memory that it was not given".to_owned();
                        Error::Malformed { btl: NAME, peer: link.rank, reason }
                    }
                };
                self.lose(&link, error);
            }
            (0 | 8 | 14, _) => {
                let reason = match kind {
                    0 => "a completion queue overflowed",
                    8 => "it reports a fatal error",
                    _ => "the shared receive queue failed",
                };
                self.shared.mailbox.post(|letters| letters.device = Some(reason.to_owned()));
            }
            // Connections outlast a port that comes back in time; where it does not, they say so themselves.
            (9, _) => log::info!("{NAME}: {name}: a port is up"),
            (10, _) => log::warn!("{NAME}: {name}: a port is down"),
            _ => log::debug!("{NAME}: {name}: event {kind}"),
        }
    }
}

impl Shared {
    /// What to say about a connection being made.
    fn hello(&self, pending: &Pending) -> Hello {
        let (cell, cell_key) = pending.cell.remote();
        Hello {
            asks: !pending.handshake.ready(),
            closed: false,
            number: pending.pair.number(),
            first_packet: pending.first_packet,
            knows: pending.handshake.knows(),
            window: self.settings.receives.window as u32,
            cell,
            cell_key,
            address: self.address,
        }
    }

    /// The peer's end, as our queue pair is to know it.
    fn remote(&self, hello: &Hello, address: &Address) -> Remote {
        Remote {
            number: hello.number,
            first_packet: hello.first_packet,
            path: self.port.path_to(address, &self.settings),
            mtu: self.address.mtu.min(hello.address.mtu),
            reads: self.port.reads.min(hello.address.reads),
            timeout: self.settings.timeout,
            retries: self.settings.retries,
            rnr_timer: self.settings.rnr_timer,
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    // A little later rather than too early, which would be another round for nothing.
    let duration = duration + Duration::from_millis(1);
    Timespec { tv_sec: duration.as_secs() as _, tv_nsec: duration.subsec_nanos().into() }
}
