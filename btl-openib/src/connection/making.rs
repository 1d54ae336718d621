//! Making connections: what is done about a peer that is to be connected, and said to it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cableway_base::Rank;
use cableway_btl::Error;
use smallvec::SmallVec;

use super::handshake::Handshake;
use super::service::Server;
use super::wire::{Hello, Queue};
use crate::NAME;
use crate::card::{Address, BITS_24};
use crate::cells::Cell;
use crate::link::{Connection, Link, State};
use crate::port::PortQueue;
use crate::process::Found;
use crate::receives::{Inbound, Receives, Taker};
use crate::shared::Shared;
use crate::verbs::{QueuePair, QueuePairOptions, Remote};
use crate::work::Lane;

/// A connection being made.
pub(super) struct Pending {
    pub(super) link: Arc<Link>,
    /// One for each receive queue.
    pairs: SmallVec<[Made; 1]>,
    pub(super) handshake: Handshake,
    address: Address,
    cell: Cell,
    first_packet: u32,
    /// The peer's queues, its cell and the key to that; once it has said hello.
    theirs: Option<(SmallVec<[Queue; 1]>, u64, u32)>,
}

/// A queue pair, and the buffers in which messages arrive by it.
struct Made {
    // Gone before its buffers.
    pair: Arc<QueuePair>,
    receives: Arc<Receives>,
}

impl Server {
    /// This process wants to send.
    pub(super) fn connect(&mut self, link: Arc<Link>) {
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

    /// Makes this end of a connection.
    fn begin(&mut self, link: Arc<Link>, address: Address) -> Result<(), Error> {
        let shared = &self.shared;
        match address.process.find(&shared.address.process) {
            Found::Alive(watch) => self.watched.push((watch, Arc::clone(&link))),
            Found::Elsewhere => {}
            Found::Ended => return Err(link.unreachable("its process has ended".to_owned())),
        }
        let own: usize =
            shared.port.queues.iter().filter(|queue| queue.shared.is_none()).map(|queue| queue.options.count).sum();
        shared.port.expect(own)?;
        let places = 0..shared.port.queues.len();
        let pairs = places.map(|place| shared.make(place, &link)).collect::<Result<SmallVec<[Made; 1]>, _>>()?;
        let cell = shared.cells.take()?;
        let random =
            u32::from_ne_bytes(crate::random().map_err(|error| Error::system(NAME, "no random bytes", error))?);
        let number = pairs[0].pair.number();
        let mut directory = shared.directory.write();
        for made in &pairs {
            let inbound = Inbound { link: Arc::clone(&link), receives: Arc::clone(&made.receives) };
            directory.by_number.insert(made.pair.number(), Arc::new(inbound));
        }
        drop(directory);
        let handshake = Handshake::new(number, Instant::now(), shared.settings.peer_timeout, random);
        let rank = link.rank;
        let first_packet = random & BITS_24;
        self.pending.insert(rank, Pending { link, pairs, handshake, address, cell, first_packet, theirs: None });
        Ok(())
    }

    pub(super) fn hear(&mut self, rank: Rank, hello: &Hello) {
        if hello.closed {
            // Nothing can have come from it by a connection that it had not finished making.
            let link = match self.pending.remove(&rank) {
                Some(pending) => self.forget(pending),
                None => self.shared.link(rank),
            };
            self.shared.mailbox.post(|letters| letters.closed.push(link));
            return;
        }
        if let Some((ours, address)) = self.known.get(&rank).cloned() {
            if ours.knows != hello.number() {
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
        if pending.pairs.len() != hello.queues.len() {
            let (theirs, ours) = (hello.queues.len(), pending.pairs.len());
            return log::warn!("{NAME}: rank {rank} offers {theirs} queue pairs instead of {ours}: ignored");
        }
        pending.theirs = Some((hello.queues.clone(), hello.cell, hello.cell_key));
        let step = match pending.handshake.heard(hello.number(), hello.knows, hello.asks) {
            Ok(step) => step,
            Err(reason) => return log::warn!("{NAME}: what rank {rank} says is ignored: {reason}"),
        };
        if step.connect {
            let connected = pending.pairs.iter().zip(&hello.queues).try_for_each(|(made, theirs)| {
                let remote = self.shared.remote(theirs.number, hello, &pending.address);
                made.pair.connect(&remote, pending.first_packet)
            });
            if let Err(error) = connected {
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
        // Who is not answered goes another way in the end; that we are about to leave would be a lie.
        if self.shared.lost.load(Ordering::Relaxed) {
            return false;
        }
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
        let hello = Hello { asks: false, ..self.shared.hello(&pending) };
        let Some((queues, cell, key)) = pending.theirs else { return };
        if self.known.is_empty() {
            self.beat = Instant::now() + self.shared.settings.peer_timeout / 4;
        }
        self.known.insert(rank, (hello, pending.address));
        let lane = |(made, theirs): (Made, Queue)| {
            Lane::new(made.pair, made.receives, theirs.size as usize, theirs.window.into())
        };
        let lanes = pending.pairs.into_iter().zip(queues).map(lane).collect();
        let connection = Connection { lanes, cell: pending.cell, their_cell: (cell, key) };
        log::debug!("{NAME}: connected to rank {rank}, queue pair {}", connection.lanes[0].pair.number());
        let mut tx = pending.link.tx.lock();
        if !matches!(tx.state, State::Connecting) {
            // Given up here meanwhile: the peer, whose end may be in use, is to find nobody.
            if matches!(tx.state, State::Gone(..)) {
                for lane in &connection.lanes {
                    if let Err(error) = lane.pair.fail() {
                        log::debug!("{NAME}: the connection to peer {rank} cannot be stopped: {error}");
                    }
                }
            }
            // Or closed by a goodbye that came before we knew that we were connected.
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
    pub(super) fn give_up(&self, pending: Pending, error: Error) {
        let link = self.forget(pending);
        self.lose(&link, error);
    }

    fn forget(&self, pending: Pending) -> Arc<Link> {
        let mut directory = self.shared.directory.write();
        for made in &pending.pairs {
            directory.by_number.remove(&made.pair.number());
        }
        drop(directory);
        pending.link
    }

    /// This process ends: who is being connected to hears so, as often as makes it likely that one datagram arrives.
    pub(super) fn close(&mut self) {
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
            queues: SmallVec::new(),
            first_packet: 0,
            knows: 0,
            cell: 0,
            cell_key: 0,
            address: self.shared.address,
        };
        self.say(rank, &closed, address);
    }

    fn lose(&self, link: &Arc<Link>, error: Error) {
        self.shared.mailbox.post(|letters| letters.failures.push((Arc::clone(link), error)));
    }

    pub(super) fn say_pending(&mut self, rank: Rank) {
        let Some(pending) = self.pending.get(&rank) else { return };
        let (hello, address) = (self.shared.hello(pending), pending.address);
        self.say(rank, &hello, &address);
    }

    /// A datagram that is not sent is said again, as one that is lost.
    fn say(&mut self, to: Rank, hello: &Hello, address: &Address) {
        let sent = hello.encode(&self.shared.identity, to).and_then(|bytes| {
            let sent = self.datagrams.send(&self.shared.port, &self.shared.settings, address, &bytes);
            sent.map_err(|error| error.to_string())
        });
        if let Err(reason) = sent {
            log::debug!("{NAME}: cannot say hello to rank {to}: {reason}");
        }
    }
}

impl Shared {
    /// A queue pair for a peer, with the buffers of a receive queue.
    fn make(&self, place: usize, link: &Link) -> Result<Made, Error> {
        let queue = &self.port.queues[place];
        let options = QueuePairOptions {
            port: self.port.facts.number,
            pkey_index: self.settings.pkey_index,
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
                let taker = Taker::One(Arc::clone(&pair));
                Receives::new(&self.port.protection, taker, &self.devices, place, &queue.options)?
            }
        };
        Ok(Made { pair, receives })
    }

    /// What to say about a connection being made.
    fn hello(&self, pending: &Pending) -> Hello {
        let (cell, cell_key) = pending.cell.remote();
        let queue = |(made, queue): (&Made, &PortQueue)| Queue {
            number: made.pair.number(),
            size: queue.options.size as u32,
            window: queue.options.window as u32,
        };
        let queues = pending.pairs.iter().zip(&self.port.queues).map(queue).collect();
        Hello {
            asks: !pending.handshake.ready(),
            closed: false,
            queues,
            first_packet: pending.first_packet,
            knows: pending.handshake.knows(),
            cell,
            cell_key,
            address: self.address,
        }
    }

    /// The peer's end, as our queue pair is to know it.
    fn remote(&self, number: u32, hello: &Hello, address: &Address) -> Remote {
        Remote {
            number,
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
