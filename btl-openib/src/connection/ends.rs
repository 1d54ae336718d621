//! What every way of making connections does: a queue pair at this end, a link that is connected or lost, and a look
//! after peers that have nothing to say.

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
use crate::receives::{Receives, Taker};
use crate::shared::Shared;
use crate::verbs::{QueuePair, QueuePairOptions};
use crate::work::Lane;
use cableway_btl::process::{Found, Watch};

pub(super) struct Ends {
    pub(super) shared: Arc<Shared>,
    /// Peers on this node that have not ended.
    watched: Vec<(Watch, Arc<Link>)>,
    /// When to look after silent peers; none before there is one.
    beat: Option<Instant>,
}

/// This end of a connection that is being made.
pub(super) struct End {
    pub(super) link: Arc<Link>,
    /// One for each receive queue.
    pub(super) pairs: SmallVec<[Made; 1]>,
    pub(super) credits: CreditCounter,
}

/// A queue pair, and the buffers in which messages arrive by it.
pub(super) struct Made {
    // Gone before its buffers.
    pub(super) pair: Arc<QueuePair>,
    receives: Arc<Receives>,
}

impl Ends {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Ends { shared: Arc::clone(shared), watched: Vec::new(), beat: None }
    }

    /// Makes this end of a connection, to a peer at `address` if that is known.
    ///
    /// # Errors
    /// The peer has ended, or device or system refuse.
    pub(super) fn begin(&mut self, link: &Arc<Link>, address: Option<&Address>) -> Result<End, Error> {
        let shared = &self.shared;
        let watch = match address.map(|address| address.process.find(&shared.address.process)) {
            Some(Found::Alive(watch)) => Some(watch),
            Some(Found::Elsewhere) | None => None,
            Some(Found::Ended) => return Err(link.unreachable("its process has ended".to_owned())),
        };
        let own_buffers = shared.port.own_buffers();
        shared.port.expect(own_buffers)?;
        let places = 0..shared.port.queues.len();
        let pairs = places.map(|place| shared.make(place, link)).collect::<Result<SmallVec<[Made; 1]>, _>>();
        let made = pairs.and_then(|pairs| Ok((pairs, shared.credit_counters.take()?)));
        let (pairs, credits) = made.inspect_err(|_| shared.port.expect_less(own_buffers))?;
        // A connection may be tried again.
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
        Ok(End { link: Arc::clone(link), pairs, credits })
    }

    /// Both ends are connected.
    pub(super) fn establish(&mut self, link: &Arc<Link>, connection: Connection) {
        self.expect_beats();
        self.shared.establish(link, connection);
    }

    /// There is a peer to look after.
    pub(super) fn expect_beats(&mut self) {
        self.beat.get_or_insert_with(|| Instant::now() + self.shared.settings.peer_timeout / 4);
    }

    /// A connection is not to be.
    pub(super) fn give_up(&self, end: End, error: Error) {
        let link = self.forget(end);
        self.lose(&link, error);
    }

    pub(super) fn forget(&self, end: End) -> Arc<Link> {
        self.release(&end);
        end.link
    }

    /// It is not to be connected any more.
    pub(super) fn release(&self, end: &End) {
        self.unlist(end);
        self.shared.port.expect_less(self.shared.port.own_buffers());
    }

    /// What its queue pairs report from here on is nobody's.
    pub(super) fn unlist(&self, end: &End) {
        let mut directory = self.shared.directory.write();
        for made in &end.pairs {
            directory.by_number.remove(&made.pair.number());
        }
    }

    /// Nobody asks the thread for it again, nor a peer, from here on; progress says so.
    pub(super) fn lose(&self, link: &Arc<Link>, error: Error) {
        link.tx.lock().give_up(&self.shared, link, error);
    }

    /// Each becomes readable when a peer ends.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watched.iter().map(|(watch, _)| watch.as_fd())
    }

    /// Takes the peers that have ended, at the places in [`watched`](Self::watched) that hold true.
    pub(super) fn take_ended(&mut self, ended: &[bool]) -> Vec<Arc<Link>> {
        let places = (0..self.watched.len()).rev().filter(|&place| ended.get(place).is_some_and(|&ended| ended));
        places.collect::<Vec<_>>().into_iter().map(|place| self.watched.swap_remove(place).1).collect()
    }

    /// Has the device find out from time to time whether silent peers are there still; returns when next.
    pub(super) fn look_after(&mut self, now: Instant) -> Option<Instant> {
        let beat = self.beat?;
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
        self.beat = Some(now + self.shared.settings.peer_timeout / 4);
        self.beat
    }
}

impl End {
    /// The number of its first queue pair, by which peers know it.
    pub(super) fn number(&self) -> u32 {
        self.pairs[0].pair.number()
    }

    /// What the device may use for as long as it may connect this end, in the order in which it may go.
    pub(super) fn keep(&self) -> impl Send + use<> {
        self.pairs.iter().map(|made| (Arc::clone(&made.pair), Arc::clone(&made.receives))).collect::<Vec<_>>()
    }

    /// Connected to the peer's: of each of its queues, the size of a buffer and how many messages may wait there.
    pub(super) fn connected(self, queues: impl Iterator<Item = (u32, u32)>, their_credits: (u64, u32)) -> Connection {
        let lane = |(made, (size, window)): (Made, (u32, u32))| {
            Lane::new(made.pair, made.receives, size as usize, window.into())
        };
        Connection {
            lanes: self.pairs.into_iter().zip(queues).map(lane).collect(),
            credits: self.credits,
            their_credits,
        }
    }
}

impl Shared {
    /// A queue pair for a peer, with the buffers of a receive queue.
    fn make(&self, place: usize, link: &Link) -> Result<Made, Error> {
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
                let taker = Taker::One(Arc::clone(&pair));
                Receives::new(&self.port.protection, taker, &self.devices, place, &queue.options)?
            }
        };
        Ok(Made { pair, receives })
    }

    /// The queue pairs of a connection that is not to be are nobody's.
    pub(super) fn unlist(&self, connection: &Connection) {
        let mut directory = self.directory.write();
        for lane in &connection.lanes {
            directory.by_number.remove(&lane.pair.number());
        }
        drop(directory);
        self.port.expect_less(self.port.own_buffers());
    }

    /// A peer asks for a connection, which the link to it is waiting for from here on, if it can be had.
    ///
    /// # Errors
    /// It cannot: the peer is to be told why.
    pub(super) fn admit_request(&self, link: &Link) -> Result<(), Refusal> {
        let mut tx = link.tx.lock();
        let finalizing = self.finalizing.load(Ordering::Acquire);
        if matches!(tx.state, State::Idle) && !tx.closing && !finalizing {
            tx.state = State::Connecting;
        }
        match tx.state {
            State::Connecting => Ok(()),
            // Who hears that this process has left takes nothing from it any more, whatever carries it.
            State::Gone(_, None) if tx.unmade && !finalizing => Err(Refusal::Unable),
            _ => Err(Refusal::Closed),
        }
    }

    /// The two ends are connected, as far as this one has to know.
    pub(crate) fn establish(&self, link: &Link, connection: Connection) {
        log::debug!("{NAME}: connected to rank {}, queue pair {}", link.rank, connection.lanes[0].pair.number());
        let mut tx = link.tx.lock();
        if !matches!(tx.state, State::Connecting) {
            // Given up here meanwhile: the peer, whose end may be in use, is to find nobody.
            if matches!(tx.state, State::Gone(..)) {
                for lane in &connection.lanes {
                    if let Err(error) = lane.pair.fail() {
                        log::debug!("{NAME}: the connection to peer {} cannot be stopped: {error}", link.rank);
                    }
                }
            }
            // Or closed by a goodbye that came before we knew that we were connected.
            if let State::Gone(_, kept) | State::Left { kept } = &mut tx.state {
                *kept = Some(connection);
            } else {
                self.unlist(&connection);
            }
            return;
        }
        tx.state = State::Connected(connection);
        // Who asked sends first.
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

    /// The peer, whose question was agreed to, has sent first.
    #[cold]
    pub(crate) fn welcome(&self, link: &Link) {
        let accepted = link.control.lock().as_mut().and_then(|control| control.accepted.take());
        if let Some(connection) = accepted {
            self.establish(link, connection);
        }
    }
}
