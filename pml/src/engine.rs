//! The engine: what it is made of, and how it is driven.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use cableway_base::fork::Origin;
use cableway_base::{Counters, Parameters, Rank};
use cableway_btl::{Btl, Modex};
use cableway_common_cuda::{BouncePool, Devices};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::completion::Done;
use crate::copies::Copies;
use crate::error::Error;
use crate::links::{Links, Peer};
use crate::orders::Orders;
use crate::registry::Registry;
use crate::scratch::Scratches;
use crate::upcalls::Delivery;
use crate::wire::{BtlTag, Card};
use cableway_base::lock::{Lock, Locking, Shared};

/// What an engine is made of.
pub struct Config {
    /// Where addresses of processes are published and found.
    pub modex: Arc<dyn Modex>,
    /// Run-time parameters.
    pub parameters: Arc<Parameters>,
    /// The devices whose memory may be sent.
    pub devices: Devices,
    /// The transports, in any order.
    pub btls: Vec<Arc<dyn Btl>>,
}

/// The messaging engine of one process. Every method may be called from any thread, also from a completion hook,
/// unless it was made by [`new_serialized`](Self::new_serialized). It owns no thread: messages move while somebody
/// is in [`progress`](Self::progress) or in one of the calls that wait. A forked child's copy moves none (see `forked`).
///
/// # Locks
/// A lock per communicator guards what waits there to be matched, a lock per peer what is sent to it and the transfers
/// under way; a third kind the list of peers with work and the like, for a few instructions. No two are ever held at
/// once but the registry of communicators, shared, around a matching lock. Hooks are called with none.
pub struct Engine {
    pub(crate) modex: Arc<dyn Modex>,
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) devices: Devices,
    pub(crate) btls: Vec<BtlSlot>,
    pub(crate) locking: Locking,
    pub(crate) peers: Box<[OnceLock<Box<Peer>>]>,
    /// Processes of other jobs, numbered on from those of this one; there are none in most programs.
    pub(crate) strangers: OnceLock<Box<[OnceLock<Box<Peer>>]>>,
    /// Held while a peer is met, so that each is met once.
    pub(crate) meeting: Mutex<()>,
    pub(crate) next_link: AtomicU32,
    pub(crate) registry: Shared<Registry>,
    /// Peers with something in their queues.
    waiting: Lock<SmallVec<[Rank; 4]>>,
    waiting_len: AtomicUsize,
    pub(crate) copies: Copies,
    pub(crate) orders: Orders,
    /// What arrives in memory that cannot wait for a device does so here; small messages by the window.
    pub(crate) small_bounce: BouncePool,
    pub(crate) bounce: BouncePool,
    pub(crate) scratch: Scratches,
    pub(crate) counters: Counters,
    pub(crate) spin: u64,
    /// Held by the thread that sleeps on the transports.
    pub(crate) bed: Mutex<()>,
    /// Processes of this node outnumber its processors.
    pub(crate) crowded: bool,
    /// Credit is given back once so much of it has gathered.
    pub(crate) instalment: u64,
    /// How often `progress` was called; idle transports are polled in some of the calls only.
    turns: AtomicUsize,
    pub(crate) finalized: AtomicBool,
    /// The process that messages are moved in.
    pub(crate) origin: Origin,
    pub(crate) me: Weak<Engine>,
}

/// A transport, as the engine keeps it.
pub(crate) struct BtlSlot {
    pub(crate) btl: Arc<dyn Btl>,
    /// Where its address is published, with those of other modules of its name.
    pub(crate) key: String,
    /// How many links of it carry messages.
    pub(crate) links: AtomicUsize,
    /// Whether a peer uses it to reach this process, whatever this process uses.
    pub(crate) heard: AtomicBool,
}

impl BtlSlot {
    /// What stands for it in headers to and from a peer; none if it has no link there.
    pub(crate) fn tag(&self, peer: Rank) -> Option<BtlTag> {
        Some(BtlTag::of(self.btl.name(), self.btl.place(peer)?))
    }

    /// Nobody uses it yet.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.links.load(Ordering::Relaxed) == 0 && !self.heard.load(Ordering::Relaxed)
    }
}

/// A transport that nobody uses yet may still be found by a peer, so it is polled once in so many turns.
const IDLE_TURNS: usize = 64;

/// Size of a small bounce buffer, and how many there are for each large one.
const SMALL_BOUNCE: usize = 16 << 10;
const SMALL_BOUNCE_SHARE: usize = 16;

impl Engine {
    /// Publishes the transports' addresses (`btl.<name>`) and the engine's own card (`pml`). The host calls
    /// [`Modex::fence`] after this and before the first message; peers are connected at first use.
    ///
    /// # Errors
    /// The modex refused.
    pub fn new(config: Config) -> Result<Arc<Self>, Error> {
        Self::with_locking(config, Locking::REAL)
    }

    /// As [`new`](Self::new), for a host whose calls never overlap: locks are left out (`MPI_THREAD_SERIALIZED` and
    /// below).
    ///
    /// # Safety
    /// No two calls into the engine, or on its communicators, messages and attached buffers, are ever made at the same
    /// time; each happens before the next.
    ///
    /// # Errors
    /// As `new`.
    pub unsafe fn new_serialized(config: Config) -> Result<Arc<Self>, Error> {
        // SAFETY: the caller's promise.
        Self::with_locking(config, unsafe { Locking::elided() })
    }

    fn with_locking(config: Config, locking: Locking) -> Result<Arc<Self>, Error> {
        let Config { modex, parameters, devices, btls } = config;
        let window = parameters.pml_unexpected_limit as u64;
        modex.put(Card::KEY, &Card { window }.to_bytes())?;
        let mut slots = Vec::with_capacity(btls.len());
        for btl in btls {
            let key = format!("btl.{}", btl.name());
            if slots.iter().all(|slot: &BtlSlot| slot.key != key) {
                modex.put(&key, &btl.card())?;
            }
            slots.push(BtlSlot { btl, key, links: AtomicUsize::new(0), heard: AtomicBool::new(false) });
        }
        let size = modex.job().size as usize;
        let crowded = modex.job().local_size as usize > crate::wait::cores();
        let spin = if crowded { 0 } else { parameters.pml_spin as u64 };
        let small = SMALL_BOUNCE.min(parameters.device_chunk_size);
        let small_bounce =
            BouncePool::new(&devices, small, parameters.device_chunks.saturating_mul(SMALL_BOUNCE_SHARE));
        let bounce = BouncePool::new(&devices, parameters.device_chunk_size, parameters.device_chunks);
        let batch_size = parameters.device_batch_size;
        let scratch = Scratches::new(parameters.device_scratch_size);
        Ok(Arc::new_cyclic(|me| Engine {
            modex,
            parameters,
            devices,
            btls: slots,
            locking,
            peers: (0..size).map(|_| OnceLock::new()).collect(),
            strangers: OnceLock::new(),
            meeting: Mutex::new(()),
            next_link: AtomicU32::new(0),
            registry: Shared::new(locking, Registry::default()),
            waiting: Lock::new(locking, SmallVec::new()),
            waiting_len: AtomicUsize::new(0),
            copies: Copies::new(locking, batch_size),
            orders: Orders::new(locking),
            small_bounce,
            bounce,
            scratch,
            counters: Counters::default(),
            spin,
            bed: Mutex::new(()),
            crowded,
            instalment: (window / 2).max(1),
            turns: AtomicUsize::new(0),
            finalized: AtomicBool::new(false),
            origin: Origin::here(),
            me: me.clone(),
        }))
    }

    /// The devices whose memory this engine sends, for what a host does with such memory by itself.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// What the engine did so far. May be called from any thread, also on an engine whose calls never overlap otherwise:
    /// it takes no lock.
    pub fn counters(&self) -> Counters {
        let (made, hits) = self.devices.mappings().take();
        self.counters.ipc_mappings.add(made);
        self.counters.ipc_hits.add(hits);
        let sum = self.counters.snapshot();
        self.met().for_each(|peer| peer.counters.add_to(&sum));
        sum
    }

    /// Every peer that was met.
    pub(crate) fn met(&self) -> impl Iterator<Item = &Peer> {
        self.peers
            .iter()
            .chain(self.strangers.get().into_iter().flatten())
            .filter_map(|place| place.get())
            .map(|peer| &**peer)
    }

    /// Moves messages; returns how many events there were. Never blocks.
    #[inline]
    pub fn progress(&self) -> usize {
        let turn = self.turns.load(Ordering::Relaxed).wrapping_add(1);
        // Relaxed and not one step: a lost count only shifts when idle transports are looked at.
        self.turns.store(turn, Ordering::Relaxed);
        self.progress_those(|slot| !slot.is_idle() || turn.is_multiple_of(IDLE_TURNS))
    }

    /// As [`progress`](Self::progress), of those transports, too, that nobody uses yet.
    pub(crate) fn progress_all(&self) -> usize {
        self.progress_those(|_| true)
    }

    #[inline(always)]
    fn progress_those(&self, which: impl Fn(&BtlSlot) -> bool) -> usize {
        let mut events = 0;
        if self.is_forked() {
            return events;
        }
        for (index, slot) in self.btls.iter().enumerate() {
            if !which(slot) {
                continue;
            }
            let mut delivery = Delivery { engine: self, btl: index, done: RefCell::new(Done::gathering()) };
            events += slot.btl.progress(&delivery);
            delivery.done.get_mut().run_now();
        }
        if self.waiting_len.load(Ordering::Relaxed) != 0 {
            events += self.retry();
        }
        if !self.copies.is_empty() {
            events += self.poll_copies();
        }
        if events == 0 && !self.orders.is_empty() {
            self.look_at_orders();
        }
        events
    }

    /// Whether there is something to do that no transport tells of.
    pub(crate) fn has_work(&self) -> bool {
        self.waiting_len.load(Ordering::Relaxed) != 0 || !self.copies.is_empty() || !self.orders.is_empty()
    }

    /// Runs `act` with the peer's links, then sees to what it left behind: queued work, a broken link.
    #[inline]
    pub(crate) fn with_links<R>(
        &self,
        peer: &Peer,
        done: &mut Done,
        act: impl FnOnce(&mut Links, &mut Done) -> R,
    ) -> R {
        let mut links = peer.links.lock();
        let result = act(&mut links, done);
        if links.queues.has_gathered && !done.gathers {
            links.flush_control();
        }
        let broken = self.note_work(peer, &mut links);
        drop(links);
        if let Some((btl, error)) = broken {
            self.link_broke(peer, btl, error, done);
        }
        result
    }

    /// Lists the peer if its queues hold something. What is answered must be given to `link_broke` without the lock.
    #[inline]
    pub(crate) fn note_work(&self, peer: &Peer, links: &mut Links) -> Option<(usize, cableway_btl::Error)> {
        let idle = links.queues.is_empty()
            && links.offers.is_empty()
            && links.failover.is_none()
            && !links.invitations.are_pending();
        if !idle && !links.listed {
            links.listed = true;
            self.waiting.lock().push(peer.rank);
            self.waiting_len.fetch_add(1, Ordering::Relaxed);
        }
        links.broken.take()
    }

    /// Tries what busy links left over.
    #[cold]
    fn retry(&self) -> usize {
        let ranks = std::mem::take(&mut *self.waiting.lock());
        self.waiting_len.fetch_sub(ranks.len(), Ordering::Relaxed);
        let mut events = 0;
        let mut done = Done::default();
        for peer in ranks.into_iter().filter_map(|rank| self.known_peer(rank)) {
            events += self.with_links(peer, &mut done, |links, done| {
                links.listed = false;
                self.pump(peer, links, done)
            });
        }
        done.run();
        events
    }

    /// Sends what waits for the peer's links, as far as they take it; returns how much they took.
    pub(crate) fn pump(&self, peer: &Peer, links: &mut Links, done: &mut Done) -> usize {
        if peer.gone().is_some() {
            links.queues.clear();
            return 0;
        }
        let resent = if links.failover.is_some() { self.advance_failover(peer, links) } else { 0 };
        let gathered = links.queues.has_gathered;
        links.send_gathered();
        let resent = resent + usize::from(gathered && links.queues.control.is_empty());
        let before = links.queues.control.len() + links.queues.starts.len();
        if !links.flush_control() {
            return resent + before - links.queues.control.len() - links.queues.starts.len();
        }
        self.retry_starts(peer, links, done);
        let moved = before - (links.queues.control.len() + links.queues.starts.len()).min(before);
        resent
            + moved
            + self.pump_streams(peer, links, done)
            + self.pump_puts(peer, links, done)
            + self.pump_invitations(peer, links, done)
            + self.watch_offers(peer, links)
            + self.pump_gets(peer, links, done)
    }

    /// Lets what was sent before leave, then tells peers that this process ends in good order. Waits at most `limit`;
    /// returns whether all left. Afterwards every operation answers [`Error::Finalized`].
    pub fn finalize(&self, limit: Duration) -> bool {
        if self.is_forked() {
            return true;
        }
        let end = Instant::now() + limit;
        self.finalized.store(true, Ordering::Release);
        // A thread that calls the driver must not while the process ends.
        self.devices.stop_measuring();
        let mut flushed = vec![false; self.btls.len()];
        loop {
            self.progress();
            if self.is_quiet() {
                // What stands by may have to take over from what has something to deliver.
                let in_use = |slot: &BtlSlot| slot.links.load(Ordering::Relaxed) != 0;
                let waits = self.btls.iter().zip(&flushed).any(|(slot, flushed)| in_use(slot) && !flushed);
                for (slot, flushed) in self.btls.iter().zip(&mut flushed) {
                    if in_use(slot) || !waits {
                        *flushed = *flushed || slot.btl.finalize();
                    }
                }
                if flushed.iter().all(|&flushed| flushed) {
                    return true;
                }
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Lets what was sent before leave, and stays as it is. Waits at most `limit`; returns whether all left.
    pub fn drain(&self, limit: Duration) -> bool {
        if self.is_forked() {
            return true;
        }
        let end = Instant::now() + limit;
        loop {
            self.progress();
            if self.is_quiet() {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Whether nothing waits to be sent.
    fn is_quiet(&self) -> bool {
        self.copies.is_empty()
            && self.met().all(|peer| {
                let links = peer.links.lock();
                let idle = links.queues.is_empty() && links.operations.is_empty() && links.failover.is_none();
                peer.gone().is_some() || idle
            })
    }

    /// # Errors
    /// The engine was finalized, or is a forked child's copy.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match self.is_open() {
            true => Ok(()),
            false if self.is_forked() => Err(Error::Forked),
            false => Err(Error::Finalized),
        }
    }

    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        !self.finalized.load(Ordering::Relaxed) && !self.is_forked()
    }
}
