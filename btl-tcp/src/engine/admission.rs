//! Turns connections into links: own attempts, accepted connections, and the choice between two connections for one
//! link.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::sys::Socket;
use cableway_base::fork::Unshared;
use cableway_base::{Rank, descriptors};
use rustix::event::epoll::{self, EventFlags};

use super::pending::{Attempt, Failure, Next, Pending, Phase, ReadOutcome, Side};
use super::reader::Reader;
use super::{Engine, Source, event_data};
use crate::handshake::{Handshake, HandshakeEvent, Refusal, Verdict};
use crate::link::{Link, State};
use crate::{NAME, listener};

/// The number of connections accepted in one call.
const ACCEPTED_AT_ONCE: usize = 64;
/// The number of connections without a proof if descriptors are plentiful. The oldest is closed to make room.
const UNPROVED: usize = 256;

impl Engine {
    /// Starts or continues an attempt.
    pub(super) fn connect(&mut self, mut attempt: Attempt) {
        if self.watch_process(&attempt.link.peer) {
            let peer = Arc::clone(&attempt.link.peer);
            let error = peer.unreachable("its process has ended".to_owned());
            return self.failures.push((peer, error));
        }
        while wanted(&attempt.link) {
            let route = attempt.link.routes.lock().get(attempt.route).copied();
            let Some(route) = route else { return };
            let failure = match listener::connect(&route, &self.shared.settings.socket) {
                Ok(socket) => {
                    let pending = Pending {
                        socket: Arc::new(socket),
                        side: Side::Client(attempt.clone()),
                        phase: Phase::Connecting,
                        since: Instant::now(),
                        silent_since: None,
                    };
                    match self.insert(Source::Pending(Box::new(pending)), EventFlags::OUT) {
                        Ok(_) => return,
                        Err(error) => Failure::Io(error),
                    }
                }
                Err(error) => Failure::Io(error),
            };
            if !self.decide(&mut attempt, &failure) {
                return;
            }
        }
    }

    /// Handles a failed attempt. Returns whether to retry at once.
    fn decide(&mut self, attempt: &mut Attempt, failure: &Failure) -> bool {
        let peer = Arc::clone(&attempt.link.peer);
        log::debug!("{NAME}: connecting to peer {}: {failure}", peer.rank);
        match attempt.next(failure, Instant::now(), self.shared.settings.socket.peer_timeout) {
            Next::Now => true,
            Next::At(when) => {
                self.retries.push((when, attempt.clone()));
                false
            }
            Next::GiveUp(reason) => {
                if wanted(&attempt.link) {
                    let error = peer.unreachable(reason);
                    self.failures.push((peer, error));
                }
                false
            }
        }
    }

    /// Ends an attempt.
    pub(super) fn attempt_failed(&mut self, key: usize, failure: &Failure) {
        let Some(Source::Pending(pending)) = self.remove(key) else { return };
        if let Side::Client(mut attempt) = pending.side
            && self.decide(&mut attempt, failure)
        {
            self.connect(attempt);
        }
    }

    pub(super) fn accept(&mut self, listener: &Arc<Socket>) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let mut from = None;
            let accepted = Unshared::open(|| {
                let (socket, address) = listener.accept()?;
                from = address.as_socket();
                Ok::<_, std::io::Error>(socket)
            });
            let socket = match accepted {
                Ok(socket) => socket,
                Err(error) => {
                    if error.kind() != std::io::ErrorKind::WouldBlock {
                        log::debug!("{NAME}: accept: {error}");
                    }
                    return;
                }
            };
            if let Err(error) = self.admit(socket, from) {
                self.clock.log_turned_away(from, &error.to_string());
            }
        }
    }

    fn admit(&mut self, socket: Socket, from: Option<std::net::SocketAddr>) -> std::io::Result<()> {
        socket.set_nonblocking(true)?;
        listener::prepare_accepted(&socket, from, &self.shared.settings.socket);
        let unproved = |source: &Source| match source {
            Source::Pending(pending) if matches!(pending.side, Side::Server { proved: false, .. }) => {
                Some(pending.since)
            }
            _ => None,
        };
        let unproved_peers = || self.entries.iter().filter_map(|(key, entry)| Some((unproved(&entry.source)?, key)));
        if unproved_peers().count() >= descriptors::share(UNPROVED)
            && let Some((_, oldest)) = unproved_peers().min()
        {
            self.turn_away(oldest, "too many unidentified connections");
        }
        let pending = Pending {
            socket: Arc::new(socket),
            side: Side::Server { from, proved: false },
            phase: Phase::Talking(Handshake::server(crate::random()?)),
            since: Instant::now(),
            silent_since: None,
        };
        self.insert(Source::Pending(Box::new(pending)), EventFlags::IN)?;
        Ok(())
    }

    /// Disconnects a foreign process.
    pub(super) fn turn_away(&mut self, key: usize, reason: &str) {
        if let Some(Source::Pending(pending)) = self.remove(key)
            && let Side::Server { from, .. } = pending.side
        {
            self.clock.log_turned_away(from, reason);
        }
    }

    pub(super) fn pending_ready(&mut self, key: usize) {
        // Each iteration reads at most one message. Its meaning decides about the rest.
        while let Some(Source::Pending(pending)) = self.entries.get_mut(key).map(|entry| &mut entry.source) {
            if matches!(pending.phase, Phase::Connecting) {
                if let Err(error) = pending.greet(&self.shared) {
                    return self.attempt_failed(key, &Failure::Io(error));
                }
                let (socket, stamp) = (Arc::clone(&pending.socket), self.entries[key].stamp);
                if let Err(errno) = epoll::modify(&self.epoll, &*socket, event_data(key, stamp), EventFlags::IN) {
                    return self.attempt_failed(key, &Failure::Io(errno.into()));
                }
                continue;
            }
            match pending.listen(&self.shared) {
                ReadOutcome::Nothing => return,
                ReadOutcome::Closed => return self.closed(key),
                ReadOutcome::Refused(refusal) => return self.refuse(key, refusal),
                ReadOutcome::Event(told) => self.told(key, told),
            }
        }
    }

    /// The other end closed the connection before it became a link.
    pub(super) fn closed(&mut self, key: usize) {
        let Some(Source::Pending(pending)) = self.entries.get(key).map(|entry| &entry.source) else { return };
        match pending.side {
            Side::Client(_) => self.attempt_failed(key, &Failure::Closed),
            // This connection lost against another one for the same link, or the peer gave up.
            Side::Server { from, .. } => {
                log::debug!("{NAME}: a connection from {from:?} was closed during the handshake");
                self.remove(key);
            }
        }
    }

    fn refuse(&mut self, key: usize, refusal: Refusal) {
        match self.entries.get(key).map(|entry| &entry.source) {
            Some(Source::Pending(pending)) if matches!(pending.side, Side::Client(_)) => {
                self.attempt_failed(key, &Failure::Foreign(refusal));
            }
            _ => self.turn_away(key, &refusal.to_string()),
        }
    }

    fn told(&mut self, key: usize, told: HandshakeEvent) {
        let Some(Source::Pending(pending)) = self.entries.get_mut(key).map(|entry| &mut entry.source) else { return };
        match told {
            HandshakeEvent::Reply(reply) => {
                if pending.say(reply.as_bytes()).is_err() {
                    self.closed(key);
                }
            }
            HandshakeEvent::Proved { from, link } => self.proved(key, from, link),
            HandshakeEvent::Confirmed { from, link } => {
                let link = self.shared.link(&self.shared.peer(from), link);
                self.promote(key, &link);
            }
            HandshakeEvent::Accepted => {
                let Side::Client(attempt) = &pending.side else { return };
                let link = Arc::clone(&attempt.link);
                let arbiter = self.shared.identity.decides(link.peer.rank);
                if wanted(&link) && arbiter && pending.say(Handshake::confirm().as_bytes()).is_err() {
                    return self.closed(key);
                }
                self.promote(key, &link);
            }
            HandshakeEvent::Duplicate => {
                // The arbiter's choice is in transit. If it is lost, this end tries again.
                if let Some(Source::Pending(pending)) = self.remove(key)
                    && let Side::Client(mut attempt) = pending.side
                {
                    let when = attempt.pause(Instant::now());
                    self.retries.push((when, attempt));
                }
            }
            HandshakeEvent::Left => {
                if let Some(Source::Pending(pending)) = self.remove(key)
                    && let Side::Client(attempt) = pending.side
                    && wanted(&attempt.link)
                {
                    attempt.link.tx.lock().state = State::Left(None);
                    self.leaving.push(Arc::clone(&attempt.link.peer));
                }
            }
        }
    }

    /// Decides whether the connection of an authenticated peer may carry the link that it requests.
    fn proved(&mut self, key: usize, from: Rank, number: usize) {
        let peer = self.shared.peer(from);
        if peer.gone.lock().is_some() {
            self.remove(key);
            return;
        }
        let link = self.shared.link(&peer, number);
        let verdict = if self.shared.finalizing.load(Ordering::Acquire) || link.tx.lock().closing {
            Verdict::Left
        } else if wanted(&link) {
            Verdict::Accept
        } else {
            Verdict::Duplicate
        };
        let Some(Source::Pending(pending)) = self.entries.get_mut(key).map(|entry| &mut entry.source) else { return };
        let (Phase::Talking(handshake), Side::Server { proved, .. }) = (&mut pending.phase, &mut pending.side) else {
            return;
        };
        *proved = true;
        let reply = match handshake.judge(&self.shared.identity, verdict) {
            Ok(reply) => reply,
            Err(refusal) => return self.turn_away(key, &refusal.to_string()),
        };
        let awaits_confirmation = handshake.wants() != 0;
        if pending.say(reply.as_bytes()).is_err() || verdict != Verdict::Accept {
            self.remove(key);
        } else if !awaits_confirmation {
            self.promote(key, &link);
        }
    }

    /// Makes a pending connection that of the link, unless the link has one.
    fn promote(&mut self, key: usize, link: &Arc<Link>) {
        let Some(Source::Pending(pending)) = self.entries.get(key).map(|entry| &entry.source) else { return };
        let socket = Arc::clone(&pending.socket);
        let mut tx = link.tx.lock();
        if !matches!(tx.state, State::Idle | State::Connecting) {
            drop(tx);
            self.remove(key);
            return;
        }
        tx.state = State::Connected(Arc::clone(&socket));
        drop(tx);
        let reader = Reader::new(Arc::clone(link), Arc::clone(&socket), self.shared.settings.max_message());
        let entry = &mut self.entries[key];
        entry.source = Source::Reader(Box::new(reader));
        let interest = EventFlags::IN | EventFlags::RDHUP;
        if let Err(errno) = epoll::modify(&self.epoll, &*socket, event_data(key, entry.stamp), interest) {
            let peer = Arc::clone(&link.peer);
            let error = peer.error(format!("epoll_ctl: {errno}"));
            self.failures.push((peer, error));
            return;
        }
        self.heat(key);
        self.forget_attempts(link);
        self.watch_process(&link.peer);
    }

    /// Cancels other attempts for a link.
    fn forget_attempts(&mut self, link: &Arc<Link>) {
        let attempts: Vec<usize> = self
            .entries
            .iter()
            .filter(|(_, entry)| match &entry.source {
                Source::Pending(pending) => {
                    matches!(&pending.side, Side::Client(attempt) if Arc::ptr_eq(&attempt.link, link))
                }
                _ => false,
            })
            .map(|(key, _)| key)
            .collect();
        for key in attempts {
            self.remove(key);
        }
        self.retries.retain(|(_, attempt)| !Arc::ptr_eq(&attempt.link, link));
    }
}

/// Returns whether a link still needs a connection.
pub(super) fn wanted(link: &Link) -> bool {
    matches!(link.tx.lock().state, State::Idle | State::Connecting)
}

impl Engine {
    /// Cancels all own attempts. If the peer may already use a connection for its link, it receives a goodbye.
    pub(crate) fn stop_connecting(&mut self) {
        self.retries.clear();
        self.drop_sources(|source| match source {
            Source::Pending(pending) => pending.may_carry() || matches!(pending.side, Side::Client(_)),
            _ => false,
        });
    }

    /// Stops listening. The system refuses later connections.
    pub(crate) fn stop_listening(&mut self) {
        self.drop_sources(|source| !matches!(source, Source::Reader(_)));
    }

    fn drop_sources(&mut self, which: impl Fn(&Source) -> bool) {
        let keys: Vec<usize> =
            self.entries.iter().filter(|(_, entry)| which(&entry.source)).map(|(key, _)| key).collect();
        for key in keys {
            if let Some(Source::Pending(pending)) = self.remove(key)
                && pending.may_carry()
            {
                // A peer that does not use the connection finds it closed.
                let _ = pending.say(&crate::wire::goodbye());
            }
        }
    }
}

impl Pending {
    /// Returns whether the peer may use this connection for its link before this end knows it.
    pub(super) fn may_carry(&self) -> bool {
        matches!(&self.phase, Phase::Talking(handshake) if handshake.may_carry())
    }

    /// Returns the peer of this connection, or `None` while it is unknown.
    pub(super) fn peer(&self) -> Option<Rank> {
        match (&self.side, &self.phase) {
            (Side::Client(attempt), _) => Some(attempt.link.peer.rank),
            (Side::Server { .. }, Phase::Talking(handshake)) => handshake.proved(),
            _ => None,
        }
    }
}
