//! The parts common to both connection methods: queue pairs, links that connect or fail, and a watch over silent peers.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cableway_btl::Error;
use smallvec::SmallVec;

use super::wire::Refusal;
use crate::NAME;
use crate::card::Address;
use crate::credits::CreditCounter;
use crate::inbound::Inbound;
use crate::link::{Connection, Link, State};
use crate::receives::{PostTarget, Receives};
use crate::shared::Shared;
use crate::verbs::{QueuePair, QueuePairOptions};
use crate::work::ConnectedQp;
use cableway_btl::process::{Found, Watch};

pub(super) struct ConnectorCommon {
    pub(super) shared: Arc<Shared>,
    /// Processes of this node that are being watched.
    watched: Vec<(Watch, Arc<Link>)>,
    /// When to check silent peers next; none before the first connection.
    heartbeat: Option<Instant>,
}

/// This end of a connection that is being made.
pub(super) struct LocalEnd {
    pub(super) link: Arc<Link>,
    /// One for each receive queue.
    pub(super) pairs: SmallVec<[PreparedQp; 1]>,
    pub(super) credits: CreditCounter,
}

/// A queue pair and its receive buffers.
pub(super) struct PreparedQp {
    // Dropped before its buffers.
    pub(super) pair: Arc<QueuePair>,
    receives: Arc<Receives>,
}

impl ConnectorCommon {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        ConnectorCommon { shared: Arc::clone(shared), watched: Vec::new(), heartbeat: None }
    }

    /// Makes this end of a connection, to a peer at `address` if that is known.
    ///
    /// # Errors
    /// The peer has ended, or the device or the system refuses.
    pub(super) fn begin(&mut self, link: &Arc<Link>, address: Option<&Address>) -> Result<LocalEnd, Error> {
        let shared = &self.shared;
        let watch = match address.map(|address| address.process.find(&shared.address.process)) {
            Some(Found::Alive(watch)) => Some(watch),
            Some(Found::Elsewhere) | None => None,
            Some(Found::Ended) => return Err(link.unreachable("its process has ended".to_owned())),
        };
        let own_buffers = shared.port.own_buffers();
        shared.port.expect(own_buffers)?;
        let places = 0..shared.port.queues.len();
        let pairs = places.map(|place| shared.make(place, link)).collect::<Result<SmallVec<[PreparedQp; 1]>, _>>();
        let made = pairs.and_then(|pairs| Ok((pairs, shared.credit_counters.take()?)));
        let (pairs, credits) = made.inspect_err(|_| shared.port.expect_less(own_buffers))?;
        // The connection may be a second attempt.
        if let Some(watch) = watch
            && !self.watched.iter().any(|(_, watched)| Arc::ptr_eq(watched, link))
        {
            self.watched.push((watch, Arc::clone(link)));
        }
        let mut directory = shared.directory.write();
        for made in &pairs {
            let pair = Arc::clone(&made.pair);
            let inbound = Inbound { _pair: pair, link: Arc::clone(link), receives: Arc::clone(&made.receives) };
            directory.by_number.insert(made.pair.number(), Arc::new(inbound));
        }
        drop(directory);
        Ok(LocalEnd { link: Arc::clone(link), pairs, credits })
    }

    /// Establishes a connection whose two ends are connected.
    pub(super) fn establish(&mut self, link: &Arc<Link>, connection: Connection) {
        self.schedule_heartbeats();
        self.shared.establish(link, connection);
    }

    /// Schedules the first check of silent peers.
    pub(super) fn schedule_heartbeats(&mut self) {
        self.heartbeat.get_or_insert_with(|| Instant::now() + self.shared.settings.peer_timeout / 4);
    }

    /// Gives up a pending connection.
    pub(super) fn give_up(&self, end: LocalEnd, error: Error) {
        let link = self.forget(end);
        self.lose(&link, error);
    }

    pub(super) fn forget(&self, end: LocalEnd) -> Arc<Link> {
        self.release(&end);
        end.link
    }

    /// Releases an end that will not be connected.
    pub(super) fn release(&self, end: &LocalEnd) {
        self.unlist(end);
        self.shared.port.expect_less(self.shared.port.own_buffers());
    }

    /// Removes the end's queue pairs from the directory.
    pub(super) fn unlist(&self, end: &LocalEnd) {
        let mut directory = self.shared.directory.write();
        for made in &end.pairs {
            directory.by_number.remove(&made.pair.number());
        }
    }

    /// Fails the link for good; progress reports it.
    pub(super) fn lose(&self, link: &Arc<Link>, error: Error) {
        link.tx.lock().give_up(&self.shared, link, error);
    }

    /// Returns descriptors that become readable when peers end.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watched.iter().map(|(watch, _)| watch.as_fd())
    }

    /// Removes and returns the peers whose place in [`watched`](Self::watched) holds true.
    pub(super) fn take_ended(&mut self, ended: &[bool]) -> Vec<Arc<Link>> {
        let places = (0..self.watched.len()).rev().filter(|&place| ended.get(place).is_some_and(|&ended| ended));
        places.collect::<Vec<_>>().into_iter().map(|place| self.watched.swap_remove(place).1).collect()
    }

    /// Writes to silent peers at intervals, so that the device detects dead ones; returns when to call again.
    pub(super) fn send_heartbeats(&mut self, now: Instant) -> Option<Instant> {
        let beat = self.heartbeat?;
        if now < beat {
            return Some(beat);
        }
        for link in self.shared.all_links() {
            let mut tx = link.tx.lock();
            tx.rest();
            if matches!(tx.state, State::Connected(_))
                && !tx.is_watched()
                && let Err(error) = tx.tell_consumed(&self.shared, &link, true)
            {
                drop(tx);
                self.lose(&link, error);
            }
        }
        self.heartbeat = Some(now + self.shared.settings.peer_timeout / 4);
        self.heartbeat
    }
}

impl LocalEnd {
    /// Returns the number of its first queue pair, which names it to peers.
    pub(super) fn number(&self) -> u32 {
        self.pairs[0].pair.number()
    }

    /// Keeps alive what the device may use while it may still connect this end.
    pub(super) fn keep(&self) -> impl Send + use<> {
        self.pairs.iter().map(|made| (Arc::clone(&made.pair), Arc::clone(&made.receives))).collect::<Vec<_>>()
    }

    /// Builds the connection from each peer queue's buffer size and window.
    pub(super) fn connected(self, queues: impl Iterator<Item = (u32, u32)>, their_credits: (u64, u32)) -> Connection {
        let qp = |(made, (size, window)): (PreparedQp, (u32, u32))| {
            ConnectedQp::new(made.pair, made.receives, size as usize, window.into())
        };
        Connection { qps: self.pairs.into_iter().zip(queues).map(qp).collect(), credits: self.credits, their_credits }
    }
}

impl Shared {
    /// Creates a queue pair for a peer, with the buffers of a receive queue.
    fn make(&self, place: usize, link: &Link) -> Result<PreparedQp, Error> {
        let queue = &self.port.queues[place];
        let options = QueuePairOptions {
            port: self.port.facts.number,
            pkey_index: self.port.partition.index,
            depth: self.port.depth as u32,
            inline: self.settings.inline,
            receives: queue.options.count as u32,
        };
        let pair = QueuePair::connected(&self.port.protection, &self.port.completions, queue.shared.as_ref(), &options)
            .map_err(|error| Error::system(NAME, format!("no queue pair for peer {}", link.rank), error))?;
        let pair = Arc::new(pair);
        let receives = match &queue.shared {
            Some(shared) => self.receives(place, shared)?,
            None => {
                let taker = PostTarget::One(Arc::clone(&pair));
                Receives::new(&self.port.protection, taker, &self.devices, place, &queue.options)?
            }
        };
        Ok(PreparedQp { pair, receives })
    }

    /// Removes the queue pairs of an abandoned connection from the directory.
    pub(super) fn unlist(&self, connection: &Connection) {
        let mut directory = self.directory.write();
        for qp in &connection.qps {
            directory.by_number.remove(&qp.pair.number());
        }
        drop(directory);
        self.port.expect_less(self.port.own_buffers());
    }

    /// Admits a peer's connection request and marks the link as connecting.
    ///
    /// # Errors
    /// The request is refused, with the reason for the peer.
    pub(super) fn admit_request(&self, link: &Link) -> Result<(), Refusal> {
        let mut tx = link.tx.lock();
        let finalizing = self.finalizing.load(Ordering::Acquire);
        if matches!(tx.state, State::Idle) && !tx.closing && !finalizing {
            tx.state = State::Connecting;
        }
        match tx.state {
            State::Connecting => Ok(()),
            // A peer that receives `Closed` drops all messages of this process, on every transport.
            State::Gone(_, None) if tx.unmade && !finalizing => Err(Refusal::Unable),
            _ => Err(Refusal::Closed),
        }
    }

    /// Marks the link as connected.
    pub(crate) fn establish(&self, link: &Link, connection: Connection) {
        log::debug!("{NAME}: connected to rank {}, queue pair {}", link.rank, connection.qps[0].pair.number());
        let mut tx = link.tx.lock();
        if !matches!(tx.state, State::Connecting) {
            // This end gave up meanwhile. Fail the queue pairs, since the peer may already use its end.
            if matches!(tx.state, State::Gone(..)) {
                for qp in &connection.qps {
                    if let Err(error) = qp.pair.fail() {
                        log::debug!("{NAME}: the connection to peer {} cannot be stopped: {error}", link.rank);
                    }
                }
            }
            // A goodbye may have arrived before the connection was known to be established.
            if let State::Gone(_, kept) | State::Left { kept } = &mut tx.state {
                *kept = Some(connection);
            } else {
                self.unlist(&connection);
            }
            return;
        }
        tx.state = State::Connected(connection);
        // The active side sends first.
        let greeting = link.control.lock().as_ref().filter(|control| control.greets).map(|control| control.greeting);
        if let Some(greeting) = greeting
            && let Err(error) = tx.send_control(self, link, &greeting)
        {
            log::debug!("{NAME}: no greeting to peer {}: {error}", link.rank);
        }
        if std::mem::take(&mut tx.closing) {
            tx.close(self, link);
        }
    }

    /// Establishes the connection when the active side's greeting arrives.
    #[cold]
    pub(crate) fn welcome(&self, link: &Link) {
        let accepted = link.control.lock().as_mut().and_then(|control| control.accepted.take());
        if let Some(connection) = accepted {
            self.establish(link, connection);
        }
    }
}
