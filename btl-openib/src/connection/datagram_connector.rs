//! Connection setup by datagrams.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ahash::AHashMap;
use cableway_base::Rank;
use cableway_btl::Error;
use smallvec::SmallVec;

use super::common::{ConnectorCommon, LocalEnd, PreparedQp};
use super::connector::Connector;
use super::datagrams::Datagrams;
use super::handshake::{Due, Handshake};
use super::wire::{HELLO, Hello, Queue, Refusal};
use super::work_queue::{Work, WorkQueue};
use crate::NAME;
use crate::card::{Address, BITS_24};
use crate::link::{Link, State};
use crate::port::PortQueue;
use crate::shared::Shared;
use crate::verbs::Remote;

/// Makes connections by datagrams.
pub(super) struct DatagramConnector {
    common: ConnectorCommon,
    datagrams: Datagrams,
    /// Kept for its memory.
    come: Vec<[u8; HELLO]>,
    work_queue: WorkQueue<Hello, Arc<Link>>,
    /// Connections being made.
    pending: AHashMap<Rank, Pending>,
    /// Replies for peers that are connected but may not know it yet.
    known: AHashMap<Rank, (Hello, Address)>,
    /// When timeouts were last checked.
    looked: Instant,
}

/// A connection being made.
struct Pending {
    end: LocalEnd,
    handshake: Handshake,
    address: Address,
    first_packet: u32,
    /// The peer's queues and its credit counter's address and key; none before its hello.
    theirs: Option<(SmallVec<[Queue; 1]>, u64, u32)>,
}

impl Connector for DatagramConnector {
    fn common(&self) -> &ConnectorCommon {
        &self.common
    }

    fn common_mut(&mut self) -> &mut ConnectorCommon {
        &mut self.common
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.datagrams.descriptor()
    }

    fn arm(&mut self) -> io::Result<()> {
        self.datagrams.arm()
    }

    fn drain(&mut self) {
        self.datagrams.drain();
    }

    fn mend(&mut self) -> io::Result<()> {
        self.datagrams.mend()
    }

    fn read(&mut self) -> io::Result<()> {
        self.datagrams.read(&mut self.come)?;
        for bytes in self.come.drain(..) {
            match Hello::decode(&self.common.shared.identity, &bytes) {
                Ok((rank, hello)) => self.work_queue.receive(rank, hello),
                Err(reason) => log::debug!("{NAME}: a datagram is ignored: {reason}"),
            }
        }
        Ok(())
    }

    fn hear_all(&mut self) {
        while let Some((rank, hello)) = self.work_queue.take_message() {
            self.receive(rank, &hello);
        }
    }

    fn want(&mut self, link: Arc<Link>) {
        self.work_queue.connect(link);
    }

    /// Drains the datagram buffers after each piece of work, since hundreds of datagrams can arrive while one queue
    /// pair is created.
    fn work(&mut self) -> io::Result<()> {
        const AT_A_TIME: usize = 16;
        for _ in 0..AT_A_TIME {
            match self.work_queue.take() {
                Some(Work::Receive(rank, hello)) => self.receive(rank, &hello),
                Some(Work::Connect(link)) => self.connect(link),
                None => break,
            }
            self.read()?;
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.work_queue.is_empty()
    }

    /// Postpones timeouts until every queued datagram is handled, for at most one second.
    fn tick(&mut self, now: Instant) -> Option<Instant> {
        let soon = self.looked + Duration::from_secs(1);
        if self.work_queue.pending_messages() != 0 && now < soon {
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
                    self.send_pending(rank);
                    next = Some(now + Duration::from_millis(1));
                }
                Due::TooLate => {
                    if let Some(pending) = self.pending.remove(&rank) {
                        let seconds = self.common.shared.settings.peer_timeout.as_secs_f64();
                        let error = pending.end.link.unreachable(format!("it does not answer within {seconds} s"));
                        self.common.give_up(pending.end, error);
                    }
                }
                Due::At(instant) => next = Some(next.map_or(instant, |next| next.min(instant))),
            }
        }
        next
    }

    fn peer_ended(&mut self, link: &Arc<Link>) -> bool {
        let Some(pending) = self.pending.remove(&link.rank) else { return false };
        let error = link.unreachable("its process has ended".to_owned());
        self.common.give_up(pending.end, error);
        true
    }

    /// Tells pending peers several times, since datagrams can be lost.
    fn close(&mut self) {
        const TIMES: usize = 3;
        let pending = std::mem::take(&mut self.pending);
        for (rank, pending) in pending {
            for _ in 0..TIMES {
                self.refuse(rank, Refusal::Closed, &pending.address);
            }
            let link = self.common.forget(pending.end);
            let mut tx = link.tx.lock();
            if matches!(tx.state, State::Connecting) {
                tx.state = State::Gone(link.error("the link was closed here"), None);
            }
        }
    }
}

impl DatagramConnector {
    pub(super) fn new(shared: &Arc<Shared>, datagrams: Datagrams) -> Self {
        let (pending, known) = (AHashMap::new(), AHashMap::new());
        let (come, work_queue, looked) = (Vec::new(), WorkQueue::default(), Instant::now());
        DatagramConnector { common: ConnectorCommon::new(shared), datagrams, come, work_queue, pending, known, looked }
    }

    /// Starts a connection that this process wants to send on.
    fn connect(&mut self, link: Arc<Link>) {
        let rank = link.rank;
        // The peer may have connected first.
        if self.pending.contains_key(&rank) || self.known.contains_key(&rank) {
            return;
        }
        if self.common.shared.finalizing.load(Ordering::Acquire) {
            let error = link.error("the link was closed here");
            return self.common.lose(&link, error);
        }
        let Some(address) = *link.address.lock() else { return };
        match self.begin(&link, address) {
            Ok(()) => self.send_pending(rank),
            Err(error) => self.common.lose(&link, error),
        }
    }

    /// Makes this end of a connection.
    fn begin(&mut self, link: &Arc<Link>, address: Address) -> Result<(), Error> {
        let random =
            u32::from_ne_bytes(crate::random().map_err(|error| Error::system(NAME, "no random bytes", error))?);
        let end = self.common.begin(link, Some(&address))?;
        let handshake = Handshake::new(end.number(), Instant::now(), self.common.shared.settings.peer_timeout, random);
        let first_packet = random & BITS_24;
        self.pending.insert(link.rank, Pending { end, handshake, address, first_packet, theirs: None });
        Ok(())
    }

    fn receive(&mut self, rank: Rank, hello: &Hello) {
        if let Some(refusal) = hello.refusal {
            return self.hear_refusal(rank, refusal);
        }
        if let Some((ours, address)) = self.known.get(&rank).cloned() {
            if ours.knows != hello.number() {
                log::warn!("{NAME}: a second connection of rank {rank} is ignored");
            } else if hello.asks {
                self.send_hello(rank, &ours, &address);
            }
            return;
        }
        if !self.pending.contains_key(&rank) && !self.accept(rank, hello) {
            return;
        }
        let Some(pending) = self.pending.get_mut(&rank) else { return };
        if pending.end.pairs.len() != hello.queues.len() {
            let (theirs, ours) = (hello.queues.len(), pending.end.pairs.len());
            return log::warn!("{NAME}: rank {rank} offers {theirs} queue pairs instead of {ours}: ignored");
        }
        // The published card may differ from the one in the hello.
        let largest = hello.queues.last().map_or(0, |queue| queue.size);
        if let Err(reason) = pending.address.is_kept_by(largest) {
            if let Some(pending) = self.pending.remove(&rank) {
                self.common.give_up(pending.end, Error::Malformed { btl: NAME, peer: rank, reason });
            }
            return;
        }
        pending.theirs = Some((hello.queues.clone(), hello.credits, hello.credits_key));
        let step = match pending.handshake.receive(hello.number(), hello.knows, hello.asks) {
            Ok(step) => step,
            Err(reason) => return log::warn!("{NAME}: a hello of rank {rank} is ignored: {reason}"),
        };
        if step.connect {
            let connected = pending.end.pairs.iter().zip(&hello.queues).try_for_each(|(made, theirs)| {
                let remote = self.common.shared.remote(theirs.number, hello, &pending.address);
                made.pair.connect(&remote, pending.first_packet)
            });
            if let Err(error) = connected {
                let error = Error::system(NAME, format!("cannot connect to peer {rank}"), error);
                if let Some(pending) = self.pending.remove(&rank) {
                    self.common.give_up(pending.end, error);
                }
                return;
            }
        }
        if step.answer {
            self.send_pending(rank);
        }
        if step.ready {
            self.establish(rank);
        }
    }

    /// Handles a refusal. The peer never used its end, so no message can have arrived.
    fn hear_refusal(&mut self, rank: Rank, refusal: Refusal) {
        let pending = self.pending.remove(&rank);
        match (refusal, pending) {
            (Refusal::Closed, pending) => {
                let link = match pending {
                    Some(pending) => self.common.forget(pending.end),
                    None => self.common.shared.link(rank),
                };
                self.common.shared.notices.post(|notices| notices.closed.push(link));
            }
            (Refusal::Unable, Some(pending)) => {
                let error = pending.end.link.unreachable("it could not make its end of a connection".to_owned());
                self.common.give_up(pending.end, error);
            }
            (Refusal::Unable, None) => {}
        }
    }

    /// Accepts a connection that a peer started. Returns false if it was refused or ignored.
    fn accept(&mut self, rank: Rank, hello: &Hello) -> bool {
        // Do not answer: the peer falls back to another transport. A `Closed` refusal would claim that this process
        // left.
        if self.common.shared.lost.load(Ordering::Relaxed) {
            return false;
        }
        let link = self.common.shared.link(rank);
        if let Err(refusal) = self.common.shared.admit_request(&link) {
            if hello.asks {
                self.refuse(rank, refusal, &hello.address);
            }
            return false;
        }
        let address = *link.address.lock().get_or_insert(hello.address);
        match self.begin(&link, address) {
            Ok(()) => true,
            Err(error) => {
                self.common.lose(&link, error);
                false
            }
        }
    }

    /// Establishes a connection whose two ends are connected.
    fn establish(&mut self, rank: Rank) {
        let Some(pending) = self.pending.remove(&rank) else { return };
        let hello = Hello { asks: false, ..self.common.shared.hello(&pending) };
        let Some((queues, credits, key)) = pending.theirs else { return };
        self.known.insert(rank, (hello, pending.address));
        let link = Arc::clone(&pending.end.link);
        let connection = pending.end.connected(queues.iter().map(|queue| (queue.size, queue.window)), (credits, key));
        self.common.establish(&link, connection);
    }

    fn refuse(&mut self, rank: Rank, refusal: Refusal, address: &Address) {
        let hello = Hello {
            asks: false,
            refusal: Some(refusal),
            queues: SmallVec::new(),
            first_packet: 0,
            knows: 0,
            credits: 0,
            credits_key: 0,
            address: self.common.shared.address,
        };
        self.send_hello(rank, &hello, address);
    }

    fn send_pending(&mut self, rank: Rank) {
        let Some(pending) = self.pending.get(&rank) else { return };
        let (hello, address) = (self.common.shared.hello(pending), pending.address);
        self.send_hello(rank, &hello, &address);
    }

    /// Sends a hello. A failed send counts as a lost datagram and is repeated.
    fn send_hello(&mut self, to: Rank, hello: &Hello, address: &Address) {
        let sent = hello.encode(&self.common.shared.identity, to).and_then(|bytes| {
            let sent = self.datagrams.send(&self.common.shared.port, &self.common.shared.settings, address, &bytes);
            sent.map_err(|error| error.to_string())
        });
        if let Err(reason) = sent {
            log::debug!("{NAME}: cannot say hello to rank {to}: {reason}");
        }
    }
}

impl Shared {
    /// Builds the hello for a pending connection.
    fn hello(&self, pending: &Pending) -> Hello {
        let (credits, credits_key) = pending.end.credits.remote();
        let queue = |(made, queue): (&PreparedQp, &PortQueue)| Queue {
            number: made.pair.number(),
            size: queue.options.size as u32,
            window: queue.options.window as u32,
        };
        let queues = pending.end.pairs.iter().zip(&self.port.queues).map(queue).collect();
        Hello {
            asks: !pending.handshake.ready(),
            refusal: None,
            queues,
            first_packet: pending.first_packet,
            knows: pending.handshake.knows(),
            credits,
            credits_key,
            address: self.address,
        }
    }

    /// Builds the attributes that connect a queue pair to the peer's.
    fn remote(&self, number: u32, hello: &Hello, address: &Address) -> Remote {
        Remote {
            number,
            first_packet: hello.first_packet,
            path: self.port.path_to(address, &self.settings),
            mtu: self.address.mtu.min(hello.address.mtu),
            reads: self.port.reads.min(hello.address.reads),
            patience: self.settings.patience(),
        }
    }
}
