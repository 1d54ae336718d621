//! State that all peers of an engine share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use cableway_base::fork::Origin;
use cableway_base::gate::Spread;
use cableway_base::lock::{Lock, Locking};
use cableway_base::parameters::DeviceProtocols;
use cableway_base::{Counters, Parameters, Rank};
use cableway_btl::{Btl, Modex};
use cableway_common_cuda::{BounceBuffer, BouncePool, Devices, HostPool, ScratchPool, StreamQueries};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::error::Error;
use crate::wire::{BtlTag, Card};

/// What an engine is built from.
pub struct Config {
    /// Publishes and finds addresses of processes.
    pub modex: Arc<dyn Modex>,
    /// Run-time parameters.
    pub parameters: Arc<Parameters>,
    /// The devices whose memory may be sent.
    pub devices: Devices,
    /// The transports, in any order.
    pub btls: Vec<Arc<dyn Btl>>,
}

/// See the module.
pub(crate) struct Core {
    pub(crate) modex: Arc<dyn Modex>,
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) devices: Devices,
    pub(crate) btls: Vec<BtlSlot>,
    pub(crate) locking: Locking,
    pub(crate) next_link: AtomicU32,
    pub(crate) waiting: Waiting,
    pub(crate) orders: StreamQueries,
    /// Bounce buffers for payloads that must wait for a device in memory that cannot. Small messages come by the
    /// window.
    small_bounce: BouncePool,
    bounce: BouncePool,
    /// Host memory of any size for data in transit, and device memory.
    pub(crate) host_pool: HostPool,
    pub(crate) scratch_pool: ScratchPool,
    pub(crate) counters: Counters,
    /// One-sided operations that were loads and stores, from many threads at a time.
    pub(crate) direct_stores: Spread,
    /// Polls without an event before a waiting call yields its processor.
    pub(crate) spin: u64,
    /// Held by the thread that sleeps on the transports.
    pub(crate) sleeping: Mutex<()>,
    /// Whether processes of this node outnumber its processors.
    pub(crate) crowded: bool,
    /// Credit that gathers before it is returned.
    pub(crate) instalment: u64,
    /// Number of calls of progress. Only some of them poll idle transports.
    turns: AtomicUsize,
    finalized: AtomicBool,
    /// The process that owns the engine.
    origin: Origin,
}

/// A transport and the engine's state of it.
pub(crate) struct BtlSlot {
    pub(crate) btl: Arc<dyn Btl>,
    /// Index of its address among those published by modules of its name.
    pub(crate) key: String,
    /// Number of its links that carry messages.
    pub(crate) links: AtomicUsize,
    /// Whether a peer uses it to reach this process, regardless of what this process uses.
    pub(crate) heard: AtomicBool,
}

impl BtlSlot {
    /// Returns its tag in headers to and from a peer, or `None` without a link there.
    pub(crate) fn tag(&self, peer: Rank) -> Option<BtlTag> {
        Some(BtlTag::of(self.btl.name(), self.btl.place(peer)?))
    }

    /// Returns whether links of it carry messages.
    #[inline(always)]
    pub(crate) fn is_in_use(&self) -> bool {
        self.links.load(Ordering::Relaxed) != 0
    }

    /// Returns whether it is not in use yet.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_in_use() && !self.heard.load(Ordering::Relaxed)
    }
}

/// Peers with work for progress.
pub(crate) struct Waiting {
    ranks: Lock<SmallVec<[Rank; 4]>>,
    len: AtomicUsize,
}

impl Waiting {
    pub(crate) fn add(&self, rank: Rank) {
        self.ranks.lock().push(rank);
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn take(&self) -> SmallVec<[Rank; 4]> {
        let ranks = std::mem::take(&mut *self.ranks.lock());
        self.len.fetch_sub(ranks.len(), Ordering::Relaxed);
        ranks
    }
}

/// Turns between polls of a transport that is not in use. A peer may still find it.
const IDLE_TURNS: usize = 64;

/// Size of a small bounce buffer, and the number of them for each large one.
const SMALL_BOUNCE: usize = 16 << 10;
const SMALL_BOUNCE_SHARE: usize = 16;

impl Core {
    /// Publishes the transports' addresses (`btl.<name>`) and the engine's own card (`pml`).
    ///
    /// # Errors
    /// The modex refused.
    pub(crate) fn new(config: Config, locking: Locking) -> Result<Self, Error> {
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
        let crowded = modex.job().local_size as usize > cores();
        let small = SMALL_BOUNCE.min(parameters.device_chunk_size);
        let small_count = parameters.device_chunks.saturating_mul(SMALL_BOUNCE_SHARE);
        Ok(Core {
            btls: slots,
            locking,
            next_link: AtomicU32::new(0),
            waiting: Waiting { ranks: Lock::new(locking, SmallVec::new()), len: AtomicUsize::new(0) },
            orders: StreamQueries::new(locking),
            small_bounce: BouncePool::new(&devices, small, small_count),
            bounce: BouncePool::new(&devices, parameters.device_chunk_size, parameters.device_chunks),
            host_pool: HostPool::new(&devices, parameters.staging_limit),
            scratch_pool: ScratchPool::default(),
            counters: Counters::default(),
            direct_stores: Spread::default(),
            spin: if crowded { 0 } else { parameters.pml_spin as u64 },
            sleeping: Mutex::new(()),
            crowded,
            instalment: (window / 2).max(1),
            turns: AtomicUsize::new(0),
            finalized: AtomicBool::new(false),
            origin: Origin::here(),
            modex,
            parameters,
            devices,
        })
    }

    /// Takes a bounce buffer of at least `len` bytes. Returns `None` if none is free, or all are smaller.
    pub(crate) fn bounce_buffer(&self, len: usize) -> Option<BounceBuffer> {
        let pools = [&self.small_bounce, &self.bounce];
        pools.into_iter().filter(|pool| pool.chunk_size() >= len).find_map(BouncePool::take)
    }

    /// Counts a turn of progress. Returns whether it polls idle transports.
    #[inline]
    pub(super) fn next_turn(&self) -> bool {
        let turn = self.turns.load(Ordering::Relaxed).wrapping_add(1);
        // Not one atomic step: a lost count only shifts the polls of idle transports.
        self.turns.store(turn, Ordering::Relaxed);
        turn.is_multiple_of(IDLE_TURNS)
    }

    /// # Errors
    /// The engine was finalized, or this is a forked child's copy.
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

    /// Returns whether this is a copy in a forked child.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        !self.origin.is_here()
    }

    pub(crate) fn set_finalized(&self) {
        self.finalized.store(true, Ordering::Release);
    }

    /// Returns whether `device_protocols=copy` is set.
    pub(crate) fn copy_only(&self) -> bool {
        self.parameters.device_protocols == DeviceProtocols::Copy
    }
}

/// Returns the number of online processors, including those that this process may not use.
fn cores() -> usize {
    // SAFETY: the call only queries a number.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(online).unwrap_or(1)
}
