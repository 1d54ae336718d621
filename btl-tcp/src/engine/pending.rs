//! Connections that are not links yet: own attempts, and accepted connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sys::Socket;

use crate::handshake::{Handshake, HandshakeEvent, LONGEST, Refusal};
use crate::link::Link;
use crate::shared::Shared;
use crate::sys;

/// How long to retry if a process refuses connections. After that it counts as dead.
const REFUSED_FOR: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const PAUSE_DOUBLES: u32 = 5;

pub(crate) struct Pending {
    pub(crate) socket: Arc<Socket>,
    pub(crate) side: Side,
    pub(crate) phase: Phase,
    pub(crate) since: Instant,
    /// The time since which the peer's kernel owes an acknowledgement.
    pub(crate) silent_since: Option<Instant>,
}

pub(crate) enum Side {
    Client(Attempt),
    /// The peer's address, and whether it has proved that it belongs to the job.
    Server {
        from: Option<SocketAddr>,
        proved: bool,
    },
}

pub(crate) enum Phase {
    Connecting,
    Talking(Handshake),
}

/// Own attempts to connect a link.
#[derive(Clone)]
pub(crate) struct Attempt {
    pub(crate) link: Arc<Link>,
    /// The index of the link's route.
    pub(crate) route: usize,
    first_failure: Option<Instant>,
    rounds: u32,
}

/// How an attempt failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The system returned an error.
    Io(io::Error),
    /// There was no answer.
    Timeout,
    /// The peer closed the connection before it accepted or refused the link.
    Closed,
    /// The other end is a foreign process.
    Foreign(Refusal),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Io(error) => write!(f, "{error}"),
            Failure::Timeout => write!(f, "no answer"),
            Failure::Closed => write!(f, "it closed the connection during the handshake"),
            Failure::Foreign(refusal) => write!(f, "{refusal}"),
        }
    }
}

/// The next step after a failure.
pub(crate) enum Next {
    Now,
    At(Instant),
    GiveUp(String),
}

impl Attempt {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Attempt { link, route: 0, first_failure: None, rounds: 0 }
    }

    /// Continues with the next route. After the last one it waits and continues with the first.
    pub(crate) fn next(&mut self, failure: &Failure, now: Instant, peer_timeout: Duration) -> Next {
        let routes = self.link.routes.lock();
        let remote = routes.get(self.route).map_or_else(|| "its address".to_owned(), |route| route.remote.to_string());
        self.route += 1;
        if self.route < routes.len() {
            return Next::Now;
        }
        drop(routes);
        self.route = 0;
        let first = *self.first_failure.get_or_insert(now);
        let patience = match failure {
            Failure::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => REFUSED_FOR.min(peer_timeout),
            _ => peer_timeout,
        };
        if now.duration_since(first) >= patience || matches!(failure, Failure::Timeout) {
            return Next::GiveUp(format!("cannot connect to {remote}: {failure}"));
        }
        Next::At(self.pause(now))
    }

    /// When to try again.
    pub(crate) fn pause(&mut self, now: Instant) -> Instant {
        let pause = FIRST_PAUSE * (1 << self.rounds.min(PAUSE_DOUBLES));
        self.rounds += 1;
        now + pause
    }
}

/// The outcome of a read.
pub(crate) enum ReadOutcome {
    /// Nothing yet.
    Nothing,
    Event(HandshakeEvent),
    /// The other end closed or reset the connection.
    Closed,
    Refused(Refusal),
}

impl Pending {
    /// Starts the client's handshake on a new connection.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn greet(&mut self, shared: &Shared) -> io::Result<()> {
        let Side::Client(attempt) = &self.side else { return Ok(()) };
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        let nonce = crate::random()?;
        let (handshake, hello) =
            Handshake::client(&shared.identity, attempt.link.peer.rank, attempt.link.number, nonce);
        self.say(hello.as_bytes())?;
        self.phase = Phase::Talking(handshake);
        Ok(())
    }

    /// Continues the handshake. Reads at most to the end of one message.
    pub(crate) fn listen(&mut self, shared: &Shared) -> ReadOutcome {
        let Phase::Talking(handshake) = &mut self.phase else { return ReadOutcome::Nothing };
        let mut bytes = [0; LONGEST];
        let wants = handshake.wants();
        if wants == 0 {
            return ReadOutcome::Nothing;
        }
        match sys::receive(&self.socket, &mut bytes[..wants]) {
            Ok(0) => ReadOutcome::Closed,
            Ok(count) => match handshake.receive(&shared.identity, &bytes[..count]) {
                Ok(Some(told)) => ReadOutcome::Event(told),
                Ok(None) => ReadOutcome::Nothing,
                Err(refusal) => ReadOutcome::Refused(refusal),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ReadOutcome::Nothing,
            Err(_) => ReadOutcome::Closed,
        }
    }

    /// Sends a handshake message. A new connection has room for it. If it has not, it is given up.
    ///
    /// # Errors
    /// The connection is broken.
    pub(crate) fn say(&self, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the bytes are borrowed.
        let sent = unsafe { sys::send_vectored(&self.socket, &[sys::Slice::of(bytes)]) }?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}
