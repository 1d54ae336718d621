//! How two processes come to share memory, and how one learns that the other is gone.
//!
//! Either side connects to the other's listening socket, both check who is there (`SO_PEERCRED`, then the job's
//! secret), and pass each other their segments:
//!
//! ```text
//! caller                                 listener
//!   HELLO, segment             ->          maps the segment, reads its FIFO and boxes from now on
//!   maps, reads                <-          REPLY, segment
//!   may send; READY            ->          may send
//!                              <-          READY (whether single copy works)
//! ```
//!
//! When both call at once, the call of the lower rank stands: its listener drops its own call, and the other call is
//! answered REFUSE. The socket stays open; that it hangs up tells of the peer's death, unless GOODBYE came before.
//!
//! All of it happens in progress, on sockets that never block.

pub(crate) mod socket;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod wire;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cableway_base::Rank;
use cableway_btl::Error;
use rustix::event::epoll;
use rustix::event::epoll::{EventData, EventFlags};
use slab::Slab;

use crate::NAME;
use crate::device::DeviceMapping;
use crate::inner::Inner;
use crate::peer::{Link, Peer, Status};
use crate::segment::{DeviceGeometry, Memory};
use socket::{Credentials, Received};
use wire::{Hello, Packet, Refusal};

/// A connection that has not said who it is by then is closed.
const PATIENCE: Duration = Duration::from_secs(5);
/// After both sides' calls collided, the peer's call is awaited so long before ours is made again.
const COLLISION_PAUSE: Duration = Duration::from_millis(100);
/// Connections that have not said who they are.
const MOST_STRANGERS: usize = 1024;
/// The listener's name for epoll.
const LISTENER: u64 = u64::MAX;

/// What progress must know.
pub(crate) enum Event {
    /// From now on the peer's memory is read.
    Attached(Arc<Peer>, Arc<Link>),
    /// The connection ended without a good-bye.
    Lost(Arc<Peer>, Error),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Accepted; nothing was said.
    Stranger,
    /// Our call, not answered yet.
    Called,
    /// Their call, answered.
    Answered,
    /// Both sides have all that they need.
    Open,
}

struct Connection {
    socket: OwnedFd,
    credentials: Credentials,
    stage: Stage,
    since: Instant,
    /// None as long as it is a stranger.
    peer: Option<Arc<Peer>>,
}

/// The sockets of this process.
pub(crate) struct Connections {
    epoll: OwnedFd,
    listener: Option<OwnedFd>,
    all: Slab<Connection>,
    /// The connection of each peer.
    by_rank: HashMap<Rank, usize>,
    /// Peers to be called, and not before when.
    to_call: VecDeque<(Arc<Peer>, Instant)>,
    /// Peers that have not answered an offered device segment.
    offers: usize,
    /// Whether something is under way.
    busy: bool,
    events: VecDeque<Event>,
}

impl Connections {
    pub(crate) fn new(listener: OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Connections {
            epoll,
            listener: Some(listener),
            all: Slab::new(),
            by_rank: HashMap::new(),
            to_call: VecDeque::new(),
            offers: 0,
            busy: false,
            events: VecDeque::new(),
        })
    }

    /// Whether something is under way that deserves a closer look than usual.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// What has happened.
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

    /// Looks at all sockets.
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
        let count = epoll::wait(&self.epoll, &mut ready[..], Some(&immediately)).unwrap_or(0);
        for event in &ready[..count] {
            match event.data.u64() {
                LISTENER => self.accept(now),
                key => self.receive(inner, key as usize),
            }
        }
        self.turn_strangers_away(now);
        self.busy = self.offers > 0
            || !self.to_call.is_empty()
            || self.all.iter().any(|(_, connection)| connection.stage != Stage::Open);
    }

    /// Says good-bye to a peer, and listens to it still. Whether it could be said.
    pub(crate) fn say_goodbye(&mut self, peer: &Peer) -> bool {
        match self.by_rank.get(&peer.rank).and_then(|&key| self.all.get(key)) {
            Some(connection) if connection.stage != Stage::Called => {
                let sent = socket::send(connection.socket.as_fd(), &Packet::Goodbye.to_bytes(), None);
                !matches!(sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            _ => true,
        }
    }

    /// Ends all connecting, and says good-bye to everybody. Whether that is done.
    pub(crate) fn finish(&mut self) -> bool {
        self.listener = None;
        self.to_call.clear();
        let peers: Vec<_> = self.all.iter().filter_map(|(_, connection)| connection.peer.clone()).collect();
        peers.iter().all(|peer| self.say_goodbye(peer))
    }

    /// Offers our device segment to a peer.
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

    /// Closes the connection to a peer, saying nothing.
    pub(crate) fn close(&mut self, peer: &Peer) {
        if let Some(key) = self.by_rank.remove(&peer.rank) {
            self.remove(key);
        }
    }

    fn make_call(&mut self, inner: &Inner, peer: Arc<Peer>) {
        let Some(name) = peer.socket.get() else { return };
        let lost = |reason: String| Event::Lost(peer.clone(), peer.gone(reason));
        let socket = match socket::connect(name) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Its queue of connections is full; it has to come round to them first.
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
        let hello = Packet::Hello(inner.hello(peer.rank, index));
        if let Err(error) = socket::send(socket.as_fd(), &hello.to_bytes(), inner.memory.file()) {
            return self.events.push_back(lost(format!("its socket takes no greeting: {error}")));
        }
        let rank = peer.rank;
        if let Some(key) = self.insert(socket, credentials, Stage::Called, Some(peer)) {
            self.by_rank.insert(rank, key);
        }
    }

    fn accept(&mut self, now: Instant) {
        while let Some(listener) = &self.listener {
            match socket::accept(listener) {
                Ok(Some(socket)) => match socket::credentials(socket.as_fd()) {
                    Ok(credentials) => drop(self.insert(socket, credentials, Stage::Stranger, None)),
                    Err(error) => log::warn!("{NAME}: turned away a connection that tells no owner: {error}"),
                },
                Ok(None) => return,
                Err(error) => {
                    // Out of descriptors, say. The connection stays in the queue; its maker waits.
                    cableway_base::warn_once("sm/accept", || format!("{NAME}: a connection waits: {error}"));
                    return;
                }
            }
            let strangers = self.all.iter().filter(|(_, connection)| connection.stage == Stage::Stranger).count();
            if strangers > MOST_STRANGERS {
                return self.turn_strangers_away(now + PATIENCE);
            }
        }
    }

    fn turn_strangers_away(&mut self, now: Instant) {
        let late = |connection: &Connection| {
            connection.stage == Stage::Stranger && now.saturating_duration_since(connection.since) > PATIENCE
        };
        let late: Vec<_> = self.all.iter().filter(|(_, connection)| late(connection)).map(|(key, _)| key).collect();
        for key in late {
            log::warn!("{NAME}: turned away a connection of {} that says nothing", self.who(key));
            self.remove(key);
        }
    }

    fn receive(&mut self, inner: &Inner, key: usize) {
        while let Some(connection) = self.all.get(key) {
            match socket::receive(&connection.socket) {
                Ok(Received::Packet(bytes, file)) => {
                    let handled = Packet::parse(&bytes)
                        .map_err(str::to_owned)
                        .and_then(|packet| self.handle(inner, key, packet, file));
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

    /// One packet. An error is the peer's fault and ends the connection.
    fn handle(&mut self, inner: &Inner, key: usize, packet: Packet, file: Option<OwnedFd>) -> Result<(), String> {
        let Some(connection) = self.all.get_mut(key) else { return Ok(()) };
        match (packet, connection.stage) {
            (Packet::Hello(hello), Stage::Stranger) => {
                check_greeting(inner, connection.credentials, &hello)?;
                self.answer(inner, key, &hello, file)
            }
            (Packet::Reply(hello), Stage::Called) => {
                check_greeting(inner, connection.credentials, &hello)?;
                let Some(peer) = connection.peer.clone() else { return Ok(()) };
                if hello.rank.get() != peer.rank {
                    return Err(format!("rank {} answers in the place of rank {}", hello.rank, peer.rank));
                }
                let link = link(inner, &peer, connection.credentials, &hello, file)?;
                connection.stage = Stage::Open;
                self.attach(peer, link, true);
                Ok(())
            }
            (Packet::Ready { single_copy }, Stage::Answered | Stage::Open) => {
                connection.stage = Stage::Open;
                if let Some(peer) = &connection.peer {
                    peer.single_copy_checked(single_copy);
                    peer.advance(Status::Open);
                }
                Ok(())
            }
            (Packet::Goodbye, Stage::Answered | Stage::Open) => {
                if let Some(peer) = &connection.peer {
                    peer.advance(Status::Departed);
                }
                Ok(())
            }
            (Packet::Refuse(Refusal::Collision), Stage::Called) => {
                if let Some(peer) = connection.peer.take() {
                    self.by_rank.remove(&peer.rank);
                    self.to_call.push_back((peer, Instant::now() + COLLISION_PAUSE));
                }
                self.remove(key);
                Ok(())
            }
            (Packet::Refuse(reason), Stage::Called) => Err(format!("it refused the connection: {reason:?}")),
            (Packet::Device(geometry), Stage::Open) => {
                let Some(peer) = connection.peer.clone() else { return Ok(()) };
                let taken = take_device(inner, &peer, geometry, file);
                if let Err(reason) = &taken {
                    log::warn!("{NAME}: the device segment of rank {} was not taken: {reason}", peer.rank);
                }
                tell(connection, &Packet::DeviceReady { taken: taken.is_ok() }, None);
                Ok(())
            }
            (Packet::DeviceReady { taken }, Stage::Open) => {
                self.offers = self.offers.saturating_sub(1);
                if let Some(peer) = &connection.peer {
                    peer.device.answered(taken);
                }
                Ok(())
            }
            _ => Err("a packet came out of turn".to_owned()),
        }
    }

    /// A process of our job calls.
    fn answer(&mut self, inner: &Inner, key: usize, hello: &Hello, file: Option<OwnedFd>) -> Result<(), String> {
        let rank = hello.rank.get();
        let peer = inner.peer(rank);
        if !matches!(peer.status(), Status::Idle | Status::Connecting) || peer.link.get().is_some() {
            return Err(format!("rank {rank} is connected already"));
        }
        if let Some(&ours) = self.by_rank.get(&rank) {
            if inner.job.rank < rank {
                return self.refuse(key, Refusal::Collision);
            }
            self.remove(ours);
            self.by_rank.remove(&rank);
        }
        let Some(index) = inner.index_of(rank) else {
            log::warn!("{NAME}: more processes call than the job has on this node");
            return self.refuse(key, Refusal::Full);
        };
        let Some(connection) = self.all.get_mut(key) else { return Ok(()) };
        let link = match link(inner, &peer, connection.credentials, hello, file) {
            Ok(link) => link,
            Err(reason) => {
                let _ = self.refuse(key, Refusal::Segment);
                return Err(reason);
            }
        };
        connection.stage = Stage::Answered;
        connection.peer = Some(peer.clone());
        self.by_rank.insert(rank, key);
        peer.advance(Status::Connecting);
        tell(connection, &Packet::Reply(inner.hello(rank, index)), inner.memory.file());
        self.attach(peer, link, false);
        Ok(())
    }

    /// Both segments are mapped on this side.
    fn attach(&mut self, peer: Arc<Peer>, link: Link, may_send: bool) {
        let single_copy = match &link.remote {
            None => false,
            Some(remote) => remote.check().inspect_err(crate::single_copy::explain).is_ok(),
        };
        peer.single_copy_checked(single_copy);
        let link = Arc::new(link);
        let _ = peer.link.set(link.clone());
        if may_send {
            peer.advance(Status::Open);
        }
        if let Some(connection) = self.by_rank.get(&peer.rank).and_then(|&key| self.all.get(key)) {
            tell(connection, &Packet::Ready { single_copy }, None);
        }
        self.events.push_back(Event::Attached(peer, link));
    }

    fn refuse(&mut self, key: usize, reason: Refusal) -> Result<(), String> {
        if let Some(connection) = self.all.get(key) {
            tell(connection, &Packet::Refuse(reason), None);
        }
        self.remove(key);
        Ok(())
    }

    /// The other side broke the rules, or is none of ours.
    fn break_off(&mut self, key: usize, reason: &str) {
        log::warn!("{NAME}: turned away {}: {reason}", self.who(key));
        if let Some(peer) = self.remove(key) {
            self.by_rank.remove(&peer.rank);
            let error = peer.malformed(reason);
            self.events.push_back(Event::Lost(peer, error));
        }
    }

    fn hung_up(&mut self, key: usize) {
        let stage = self.all.get(key).map(|connection| connection.stage);
        let Some(peer) = self.remove(key) else { return };
        self.by_rank.remove(&peer.rank);
        if peer.status() != Status::Departed {
            let reason = match stage {
                Some(Stage::Called) => "it hung up on our greeting",
                _ => "it died",
            };
            let error = peer.gone(reason);
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
        socket: OwnedFd,
        credentials: Credentials,
        stage: Stage,
        peer: Option<Arc<Peer>>,
    ) -> Option<usize> {
        let entry = self.all.vacant_entry();
        let key = entry.key();
        if let Err(error) = epoll::add(&self.epoll, &socket, EventData::new_u64(key as u64), EventFlags::IN) {
            log::warn!("{NAME}: a connection cannot be watched: {error}");
            if let Some(peer) = peer {
                let error = Error::system(NAME, "watching a connection", error.into());
                self.events.push_back(Event::Lost(peer, error));
            }
            return None;
        }
        entry.insert(Connection { socket, credentials, stage, since: Instant::now(), peer });
        Some(key)
    }

    /// Forgets a connection; its peer, if it had one. Closing the socket takes it out of epoll.
    fn remove(&mut self, key: usize) -> Option<Arc<Peer>> {
        self.all.try_remove(key)?.peer
    }
}

/// Sends a packet of which nothing else depends: if it does not get through, the hang-up that follows says enough.
fn tell(connection: &Connection, packet: &Packet, file: Option<BorrowedFd<'_>>) {
    if let Err(error) = socket::send(connection.socket.as_fd(), &packet.to_bytes(), file) {
        log::debug!("{NAME}: process {} does not listen: {error}", connection.credentials.pid);
    }
}

/// Whether the other side is a process of this user and this job, and speaks to us.
fn check_greeting(inner: &Inner, credentials: Credentials, hello: &Hello) -> Result<(), String> {
    if credentials.uid != inner.uid {
        return Err(format!("it is of user {}, this process of user {}", credentials.uid, inner.uid));
    }
    if !wire::same_secret(&hello.secret, &inner.job.secret) {
        return Err("it does not know the job's secret".to_owned());
    }
    if hello.to.get() != inner.job.rank || hello.rank.get() == inner.job.rank || hello.rank.get() >= inner.job.size {
        return Err(format!("rank {} wants rank {}, this is rank {}", hello.rank, hello.to, inner.job.rank));
    }
    Ok(())
}

fn link(
    inner: &Inner,
    peer: &Peer,
    credentials: Credentials,
    hello: &Hello,
    file: Option<OwnedFd>,
) -> Result<Link, String> {
    let layout = hello.geometry.layout()?;
    let our_index = u16::try_from(hello.index.get()).map_err(|_| "its number for us is out of range")?;
    let index = inner.index_of(peer.rank).ok_or("more processes than the job has on this node")?;
    let file = file.ok_or("its segment did not come along")?;
    let memory = Memory::open(file, layout.len).map_err(|error| error.to_string())?;
    let remote = inner.single_copy_allowed(credentials.pid, &hello.node).then(|| crate::single_copy::Remote {
        pid: credentials.pid,
        cookie_address: hello.cookie_address.get(),
        cookie: hello.cookie.get(),
    });
    let device = std::sync::OnceLock::new();
    Ok(Link { memory: Arc::new(memory), layout, our_index, index, remote, device })
}

fn take_device(inner: &Inner, peer: &Peer, geometry: DeviceGeometry, file: Option<OwnedFd>) -> Result<(), String> {
    let link = peer.link.get().ok_or("it came too early")?;
    let (classes, len) = geometry.layout()?;
    let memory = Memory::open(file.ok_or("the segment did not come along")?, len).map_err(|error| error.to_string())?;
    let mapping = DeviceMapping::new(memory, classes, &inner.devices);
    link.device.set(mapping).map_err(|_| "it came a second time".to_owned())
}
