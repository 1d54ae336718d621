//! Connects two processes over shared memory, and detects the peer's end.
//!
//! Either process connects to the other's listening socket. Both check the other's identity (`SO_PEERCRED`, then the
//! job's secret), and pass their segments to each other:
//!
//! ```text
//! caller                                 listener
//!   HELLO, segment             ->          maps the segment, reads its FIFO and boxes from now on
//!   maps, reads                <-          REPLY, segment
//!   may send; READY            ->          may send
//!                              <-          READY (whether single copy works)
//! ```
//!
//! If both call at once, the call of the lower rank wins: its listener drops its own call, and answers the other call
//! with REFUSE. The socket stays open. Its hang-up reports the peer's death, unless GOODBYE came before.
//!
//! Later either side may send DEVICE with its segment for device messages, which the peer answers with DEVICE_READY. It
//! may send ASK to request descriptors of the peer's device memory, which the peer answers with GIVE. GONE names freed
//! device memory whose mapping the peer must close.
//!
//! All of this happens within progress, on non-blocking sockets.

mod admission;
mod handshake;
pub(crate) mod socket;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod wire;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cableway_base::Rank;
use cableway_base::fork::Unshared;
use cableway_btl::Error;
use cableway_common_cuda::DescriptorRequest;
use rustix::event::epoll;
use rustix::event::epoll::{EventData, EventFlags};
use slab::Slab;

use crate::NAME;
use crate::inner::Inner;
use crate::peer::{Link, Peer, Status};
use crate::segment::DeviceGeometry;
use socket::{Credentials, Descriptor, Received};
use wire::Packet;

/// If the calls of both sides collided and the peer's call does not arrive, this side calls again after this time.
const COLLISION_PAUSE: Duration = Duration::from_millis(100);
/// The listener's key for epoll. Connections have their own keys.
const LISTENER: u64 = u64::MAX;
/// Set in a connection's key to mean the process at its other end.
const PROCESS: u64 = 1 << 63;

/// A peer whose memory can be read from now on.
pub(crate) struct Attached {
    pub(crate) peer: Arc<Peer>,
    pub(crate) link: Arc<Link>,
}

/// The ends of peers, for progress.
pub(crate) enum Event {
    /// The peer has said goodbye. Only earlier messages may still be unread.
    Left(Arc<Peer>),
    /// The connection ended without a goodbye.
    Lost(Arc<Peer>, Error),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Accepted, without an introduction.
    Accepted,
    /// An own call without an answer yet.
    Called,
    /// A peer's call, answered.
    Answered,
    /// Both sides have everything that they need.
    Open,
}

struct Connection {
    socket: Descriptor,
    /// Readable after the end of the peer's process.
    process: Option<Descriptor>,
    credentials: Credentials,
    stage: Stage,
    since: Instant,
    /// The peer; `None` before its introduction.
    peer: Option<Arc<Peer>>,
    /// The number of requested descriptors without an answer.
    asked: usize,
}

/// The sockets of this process.
pub(crate) struct Connections {
    epoll: Descriptor,
    listener: Option<Descriptor>,
    /// The limit of accepted connections without an introduction.
    most_accepted: usize,
    all: Slab<Connection>,
    /// The connection of each peer.
    by_rank: HashMap<Rank, usize>,
    /// Peers to call, and the earliest time.
    to_call: VecDeque<(Arc<Peer>, Instant)>,
    /// Peers that have not answered an offered device segment.
    offers: usize,
    /// True if something is in progress.
    busy: bool,
    attached: VecDeque<Attached>,
    events: VecDeque<Event>,
}

impl Connections {
    pub(crate) fn new(listener: Descriptor) -> io::Result<Self> {
        let epoll = Unshared::open(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        epoll::add(&*epoll, &*listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Connections {
            epoll,
            listener: Some(listener),
            most_accepted: admission::most_accepted(),
            all: Slab::new(),
            by_rank: HashMap::new(),
            to_call: VecDeque::new(),
            offers: 0,
            busy: false,
            attached: VecDeque::new(),
            events: VecDeque::new(),
        })
    }

    /// Returns whether something is in progress, so that sockets should be checked more often.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Returns the next peer that was attached. Its messages may be in the FIFO already, so take all of these before
    /// anything is read there.
    pub(crate) fn next_attached(&mut self) -> Option<Attached> {
        self.attached.pop_front()
    }

    /// Returns the next end of a peer.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Connects to a peer, unless the peer has connected already.
    pub(crate) fn call(&mut self, peer: Arc<Peer>) {
        if peer.status() == Status::Idle && peer.advance(Status::Connecting) {
            self.to_call.push_back((peer, Instant::now()));
            self.busy = true;
        }
    }

    /// Checks all sockets.
    pub(crate) fn poll(&mut self, inner: &Inner) {
        let now = Instant::now();
        for _ in 0..self.to_call.len() {
            let Some((peer, when)) = self.to_call.pop_front() else { break };
            if peer.status() == Status::Connecting && !self.by_rank.contains_key(&peer.rank) {
                if when <= now { self.make_call(inner, peer) } else { self.to_call.push_back((peer, when)) }
            }
        }
        let empty = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut ready = [empty; 32];
        let immediately = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&*self.epoll, &mut ready[..], Some(&immediately)).unwrap_or(0);
        for event in &ready[..count] {
            match event.data.u64() {
                LISTENER => self.accept(inner, now),
                key if key & PROCESS != 0 => self.process_ended(inner, (key & !PROCESS) as usize),
                key => self.receive(inner, key as usize),
            }
        }
        self.turn_silent_away(now);
        self.busy = self.offers > 0
            || !self.to_call.is_empty()
            || self.all.iter().any(|(_, connection)| connection.stage != Stage::Open || connection.asked > 0);
    }

    /// Says goodbye to a peer, but continues to listen to it. Returns whether the goodbye was sent.
    pub(crate) fn say_goodbye(&mut self, peer: &Peer) -> bool {
        match self.by_rank.get(&peer.rank).and_then(|&key| self.all.get(key)) {
            // Send it even if the call has no answer yet: a later answer then finds that the caller has left.
            Some(connection) => {
                let sent = socket::send(connection.socket.as_fd(), &Packet::Goodbye.to_bytes(), None);
                !matches!(sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            None => true,
        }
    }

    /// Stops connecting, and says goodbye to all peers. Returns whether that is complete.
    pub(crate) fn finish(&mut self) -> bool {
        self.listener = None;
        self.to_call.clear();
        let peers: Vec<_> = self.all.iter().filter_map(|(_, connection)| connection.peer.clone()).collect();
        peers.iter().all(|peer| self.say_goodbye(peer))
    }

    /// Offers the own device segment to a peer.
    pub(crate) fn offer_device(&mut self, peer: &Peer, geometry: DeviceGeometry, file: Option<BorrowedFd<'_>>) {
        let Some(connection) = self.by_rank.get(&peer.rank).and_then(|&key| self.all.get(key)) else { return };
        match socket::send(connection.socket.as_fd(), &Packet::Device(geometry).to_bytes(), file) {
            Ok(()) => (self.offers, self.busy) = (self.offers + 1, true),
            Err(error) => {
                log::warn!("{NAME}: the device segment cannot be passed to rank {}: {error}", peer.rank);
                peer.device.answered(false);
            }
        }
    }

    /// Requests descriptors of a peer's device memory. Returns whether the request was sent.
    pub(crate) fn ask(&mut self, peer: &Peer, wanted: &DescriptorRequest) -> bool {
        let connection = self.by_rank.get(&peer.rank).and_then(|&key| self.all.get_mut(key));
        let Some(connection) = connection.filter(|connection| connection.stage == Stage::Open) else { return false };
        match socket::send(connection.socket.as_fd(), &Packet::DescriptorRequest(wanted.into()).to_bytes(), None) {
            Ok(()) => {
                connection.asked += 1;
                self.busy = true;
                true
            }
            Err(error) => {
                log::debug!("{NAME}: cannot request device memory of rank {}: {error}", peer.rank);
                false
            }
        }
    }

    /// Notifies a peer of freed device memory that was exported to it. Returns whether the notice was sent, or the peer
    /// is gone.
    pub(crate) fn tell_gone(&mut self, peer: Rank, buffer_id: u64) -> bool {
        let connection = self.by_rank.get(&peer).and_then(|&key| self.all.get(key));
        let Some(connection) = connection.filter(|connection| connection.stage == Stage::Open) else { return true };
        let sent = socket::send(connection.socket.as_fd(), &Packet::Gone { buffer_id }.to_bytes(), None);
        !matches!(sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Closes the connection to a peer without a goodbye.
    pub(crate) fn close(&mut self, peer: &Peer) {
        if let Some(key) = self.by_rank.remove(&peer.rank) {
            self.remove(key);
        }
    }

    fn make_call(&mut self, inner: &Inner, peer: Arc<Peer>) {
        let Some(name) = peer.socket.get() else { return };
        let lost = |reason: String| Event::Lost(peer.clone(), peer.unreachable(reason));
        let socket = match socket::connect(name) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // The queue of the peer's listening socket is full. Try again later.
                self.to_call.push_back((peer, Instant::now()));
                return;
            }
            Err(error) => return self.events.push_back(lost(format!("its socket does not answer: {error}"))),
        };
        let credentials = match socket::credentials(socket.as_fd()) {
            Ok(credentials) if credentials.uid == inner.uid => credentials,
            Ok(other) => {
                let reason = format!("its socket belongs to user {}, not {}", other.uid, inner.uid);
                return self.events.push_back(lost(reason));
            }
            Err(error) => return self.events.push_back(lost(format!("its socket tells no owner: {error}"))),
        };
        let Some(index) = inner.index_of(peer.rank) else {
            return self.events.push_back(lost("more processes than the job has on this node".to_owned()));
        };
        let Some(hello) = inner.hello(peer.rank, index) else {
            return self.events.push_back(lost("it has no name, or shares no secret with this process".to_owned()));
        };
        let hello = Packet::Hello(hello);
        if let Err(error) = socket::send(socket.as_fd(), &hello.to_bytes(), inner.memory.file()) {
            return self.events.push_back(lost(format!("its socket takes no greeting: {error}")));
        }
        let rank = peer.rank;
        if let Some(key) = self.insert(socket, credentials, Stage::Called, Some(peer)) {
            self.by_rank.insert(rank, key);
            self.watch_process(key);
        }
    }

    /// Watches a peer's process, so that its death is detected even if another process keeps the connection open.
    fn watch_process(&mut self, key: usize) {
        let Some(connection) = self.all.get_mut(key) else { return };
        let Some(process) = socket::process(connection.socket.as_fd(), connection.credentials) else { return };
        let name = EventData::new_u64(key as u64 | PROCESS);
        match epoll::add(&*self.epoll, &*process, name, EventFlags::IN) {
            Ok(()) => connection.process = Some(process),
            Err(error) => log::debug!("{NAME}: process {} is not watched: {error}", connection.credentials.pid),
        }
    }

    /// Handles the reported end of the process at the other end.
    fn process_ended(&mut self, inner: &Inner, key: usize) {
        let ended = |connection: &Connection| connection.process.as_ref().is_some_and(socket::has_ended);
        // Handle earlier packets first, such as a goodbye. The key may name another connection by then.
        if self.all.get(key).is_some_and(ended) {
            self.receive(inner, key);
            if self.all.get(key).is_some_and(ended) {
                self.hung_up(key);
            }
        }
    }

    fn receive(&mut self, inner: &Inner, key: usize) {
        while let Some(connection) = self.all.get(key) {
            match socket::receive(&connection.socket) {
                Ok(Received::Packet(bytes, files)) => {
                    let handled = Packet::parse(&bytes)
                        .map_err(str::to_owned)
                        .and_then(|packet| self.handle(inner, key, packet, files));
                    if let Err(reason) = handled {
                        return self.break_off(key, &reason);
                    }
                }
                Ok(Received::Nothing) => return,
                Ok(Received::HungUp) => return self.hung_up(key),
                Err(error) => return self.break_off(key, &error.to_string()),
            }
        }
    }

    /// Closes a connection whose other side violated the protocol or is a foreign process.
    fn break_off(&mut self, key: usize, reason: &str) {
        log::warn!("{NAME}: turned away {}: {reason}", self.who(key));
        let called = self.all.get(key).is_some_and(|connection| connection.stage == Stage::Called);
        if let Some(peer) = self.remove(key) {
            self.by_rank.remove(&peer.rank);
            let error = if called { peer.unreachable(reason) } else { peer.malformed(reason) };
            self.events.push_back(Event::Lost(peer, error));
        }
    }

    fn hung_up(&mut self, key: usize) {
        let stage = self.all.get(key).map(|connection| connection.stage);
        let Some(peer) = self.remove(key) else { return };
        self.by_rank.remove(&peer.rank);
        if peer.status() != Status::Departed {
            let error = match stage {
                Some(Stage::Called) => peer.unreachable("it closed the connection during the handshake"),
                _ => peer.gone("it died"),
            };
            self.events.push_back(Event::Lost(peer, error));
        }
    }

    fn who(&self, key: usize) -> String {
        match self.all.get(key) {
            Some(Connection { peer: Some(peer), .. }) => format!("rank {}", peer.rank),
            Some(connection) => {
                format!("process {} of user {}", connection.credentials.pid, connection.credentials.uid)
            }
            None => "a connection".to_owned(),
        }
    }

    fn insert(
        &mut self,
        socket: Descriptor,
        credentials: Credentials,
        stage: Stage,
        peer: Option<Arc<Peer>>,
    ) -> Option<usize> {
        let entry = self.all.vacant_entry();
        let key = entry.key();
        if let Err(error) = epoll::add(&*self.epoll, &*socket, EventData::new_u64(key as u64), EventFlags::IN) {
            log::warn!("{NAME}: a connection cannot be watched: {error}");
            if let Some(peer) = peer {
                let error = Error::system(NAME, "watching a connection", error.into());
                self.events.push_back(Event::Lost(peer, error));
            }
            return None;
        }
        let since = Instant::now();
        entry.insert(Connection { socket, process: None, credentials, stage, since, peer, asked: 0 });
        Some(key)
    }

    /// Forgets a connection. Returns its peer, if known. Closing the socket removes it from epoll.
    fn remove(&mut self, key: usize) -> Option<Arc<Peer>> {
        self.all.try_remove(key)?.peer
    }
}

/// Sends a packet on which nothing depends: if it fails, the hang-up that follows says enough.
fn tell(connection: &Connection, packet: &Packet, file: Option<BorrowedFd<'_>>) {
    if let Err(error) = socket::send(connection.socket.as_fd(), &packet.to_bytes(), file) {
        log::debug!("{NAME}: process {} does not listen: {error}", connection.credentials.pid);
    }
}
