//! The thread that makes connections and hears what the device has to say. It sleeps until there is something to do.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ahash::AHashMap;
use cableway_base::Rank;
use cableway_btl::{Error, Identity};
use cableway_common_cuda::Devices;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::datagrams::Datagrams;
use super::desk::{Desk, Work};
use super::door::Door;
use super::events;
use super::handshake::Due;
use super::making::Pending;
use super::wire::{HELLO, Hello};
use crate::NAME;
use crate::card::Address;
use crate::link::{Link, State};
use crate::port::Port;
use crate::process::{Process, Watch};
use crate::settings::Settings;
use crate::shared::Shared;

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
            queues: settings.queues.len() as u8,
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
            desk: Desk::default(),
            pending: AHashMap::new(),
            known: AHashMap::new(),
            watched: Vec::new(),
            beat: Instant::now(),
            looked: Instant::now(),
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

pub(super) struct Server {
    pub(super) datagrams: Datagrams,
    /// Kept for its memory.
    come: Vec<[u8; HELLO]>,
    desk: Desk<Hello, Arc<Link>>,
    /// Connections being made.
    pub(super) pending: AHashMap<Rank, Pending>,
    /// What to answer those that are connected and have not heard so.
    pub(super) known: AHashMap<Rank, (Hello, Address)>,
    /// Peers on this node that have not ended.
    pub(super) watched: Vec<(Watch, Arc<Link>)>,
    /// When to look after silent peers.
    pub(super) beat: Instant,
    /// When the time was looked at last.
    looked: Instant,
    pub(super) shared: Arc<Shared>,
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
        let device = shared.port.context.event_descriptor()?;
        loop {
            let wake = self.tick(Instant::now());
            self.datagrams.arm()?;
            self.read()?;
            if shared.door.stopped() {
                return Ok(());
            }
            let wait = match self.desk.is_empty() {
                true => wake.map(|wake| timespec(wake.saturating_duration_since(Instant::now()))),
                false => Some(Timespec::default()),
            };
            let fixed = [shared.door.bell(), self.datagrams.descriptor(), device];
            let watched = self.watched.iter().map(|(watch, _)| watch.as_fd());
            let sources = fixed.into_iter().chain(watched);
            let mut sources: Vec<_> = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
            match poll(&mut sources, wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
            let removed = sources[1..fixed.len()].iter().any(|source| source.revents().intersects(gone));
            let mut ended =
                sources[fixed.len()..].iter().map(|source| !source.revents().is_empty()).collect::<Vec<_>>();
            shared.door.answer();
            self.datagrams.drain();
            // What a peer said before it ended comes first.
            if ended.contains(&true) {
                self.read()?;
                while let Some((rank, hello)) = self.desk.take_said() {
                    self.hear(rank, &hello);
                }
                ended.resize(self.watched.len(), false);
                self.bury(&ended);
            }
            while let Some(event) = shared.port.context.next_event() {
                events::hear(&shared, &event);
            }
            // What it had to say has been heard; it would be asked for ever.
            if removed {
                return Err(io::Error::other("the device was removed"));
            }
            for link in shared.door.commands() {
                self.desk.connect(link);
            }
            if shared.door.closes() {
                self.close();
            }
            self.work()?;
        }
    }

    /// Does some of what waits to be done. To make a queue pair takes as long as hundreds of datagrams take to come, so
    /// their buffers are emptied after each.
    fn work(&mut self) -> io::Result<()> {
        const AT_A_TIME: usize = 16;
        for _ in 0..AT_A_TIME {
            match self.desk.take() {
                Some(Work::Hear(rank, hello)) => self.hear(rank, &hello),
                Some(Work::Connect(link)) => self.connect(link),
                None => break,
            }
            self.read()?;
        }
        Ok(())
    }

    /// Does what the time demands; returns when to do so again. That waits until everybody was heard, for no more than a
    /// second.
    fn tick(&mut self, now: Instant) -> Option<Instant> {
        let soon = self.looked + Duration::from_secs(1);
        if self.desk.unheard() != 0 && now < soon {
            return Some(soon);
        }
        self.looked = now;
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
            tx.rest();
            if matches!(tx.state, State::Connected(_))
                && !tx.is_watched()
                && let Err(error) = tx.tell_consumed(&self.shared, &link, true)
            {
                drop(tx);
                self.shared.mailbox.post(|letters| letters.failures.push((Arc::clone(&link), error)));
            }
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

    /// Takes what has come out of the device's buffers, until there is no more.
    fn read(&mut self) -> io::Result<()> {
        self.datagrams.read(&mut self.come)?;
        for bytes in self.come.drain(..) {
            match Hello::decode(&self.shared.identity, &bytes) {
                Ok((rank, hello)) => self.desk.hear(rank, hello),
                Err(reason) => log::debug!("{NAME}: a datagram is ignored: {reason}"),
            }
        }
        Ok(())
    }
}

fn timespec(duration: Duration) -> Timespec {
    // A little later rather than too early, which would be another round for nothing.
    let duration = duration + Duration::from_millis(1);
    Timespec { tv_sec: duration.as_secs() as _, tv_nsec: duration.subsec_nanos().into() }
}
