//! The engine and its parts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use cableway_base::lock::{Locking, Shared};
use cableway_base::{Counters, Rank};
use cableway_btl::Mapping;
use cableway_common_cuda::{Devices, HostPool, ScratchPool};

use super::registry::Registry;
use super::services::{Attention, Service, Services, Temporary};
use super::tasks::{Task, Tasks};
use crate::core::{Config, Core};
use crate::error::Error;
use crate::protocol::{Protocols, Slot};

/// The messaging engine of one process. Every method may be called from any thread and from a completion hook, unless
/// [`new_serialized`](Self::new_serialized) created the engine. It owns no thread: messages move while a thread is in
/// [`progress`](Self::progress) or in one of the calls that wait.
///
/// # Locks
/// Each communicator has a lock for its matching state. Each peer has a lock for its links and transfers. A third kind
/// guards lists that all peers share: peers with work for a few instructions, copies of devices and scratch memory also
/// across calls of the driver. A thread may take one of the third kind while it holds a peer's, and a communicator's
/// while it holds the registry of communicators, shared. It holds no other two. Hooks run with no lock held.
pub struct Engine {
    pub(crate) protocols: Protocols,
    pub(crate) registry: Shared<Registry>,
    pub(crate) me: Weak<Engine>,
    /// The number of notices that have arrived.
    notices: AtomicU64,
    pub(super) tasks: Tasks,
    pub(super) services: Services,
    pub(super) temporary: Temporary,
}

impl Engine {
    /// Publishes the transports' addresses (`btl.<name>`) and the engine's own card (`pml`). The host calls
    /// [`Modex::fence`](cableway_btl::Modex::fence) after this and before the first message. Peers are connected at
    /// first use.
    ///
    /// # Errors
    /// The modex refused.
    pub fn new(config: Config) -> Result<Arc<Self>, Error> {
        Self::with_locking(config, Locking::REAL)
    }

    /// Creates an engine as [`new`](Self::new) does, for a host whose calls never overlap. Its locks are left out
    /// (`MPI_THREAD_SERIALIZED` and below).
    ///
    /// # Safety
    /// No two calls into the engine, or on its communicators, messages and attached buffers, are made at the same time;
    /// each happens before the next.
    ///
    /// # Errors
    /// As `new`.
    pub unsafe fn new_serialized(config: Config) -> Result<Arc<Self>, Error> {
        // SAFETY: the caller's promise.
        Self::with_locking(config, unsafe { Locking::elided() })
    }

    fn with_locking(config: Config, locking: Locking) -> Result<Arc<Self>, Error> {
        let protocols = Protocols::new(config, locking)?;
        let registry = Shared::new(locking, Registry::default());
        Ok(Arc::new_cyclic(|me| Engine {
            protocols,
            registry,
            me: me.clone(),
            notices: AtomicU64::new(0),
            tasks: Tasks::default(),
            services: Services::default(),
            temporary: Temporary::default(),
        }))
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Core {
        &self.protocols.core
    }

    /// Returns a peer that is connected already.
    #[inline]
    pub(crate) fn known(&self, rank: Rank) -> Option<&Slot> {
        self.protocols.peers.known(rank)
    }

    /// Returns a peer, and connects it first if necessary.
    #[inline]
    pub(crate) fn peer(&self, rank: Rank) -> Result<&Slot, Error> {
        self.protocols.peers.get(&self.protocols.core, rank)
    }

    /// Returns the engine as a counted reference, for what keeps it alive.
    pub fn handle(&self) -> Option<Arc<Engine>> {
        self.me.upgrade()
    }

    /// Returns the engine as a reference that was not counted.
    ///
    /// # Safety
    /// The value is not dropped, and not used after this borrow of the engine.
    pub(crate) unsafe fn uncounted(&self) -> Arc<Engine> {
        // SAFETY: every engine is made in an `Arc`, to which `me` leads. This borrow keeps it.
        unsafe { Arc::from_raw(self.me.as_ptr()) }
    }

    /// Adds work that is polled until it has ended. While there is some, waiting calls do not sleep.
    ///
    /// A task is polled by one thread at a time, with no lock held. It may add tasks.
    pub fn add_task(&self, task: Arc<dyn Task>) {
        self.tasks.add(task);
    }

    /// Returns what has the services polled.
    pub(crate) fn attention(&self) -> &Arc<Attention> {
        self.services.attention()
    }

    /// Has all services polled soon. The arrival of a message that no receive expected does the same.
    pub fn poll_services(&self) {
        self.services.attention().raise();
    }

    /// Adds a service, which lives as long as the engine.
    pub fn add_service(&self, service: Arc<dyn Service>) {
        self.services.add(service);
    }

    /// Adds a service, which is polled from now on until it is removed.
    pub(crate) fn add_temporary_service(&self, service: Arc<dyn Service>) {
        self.temporary.add(service);
    }

    /// Removes such a service. Another thread may still be polling it.
    pub(crate) fn remove_temporary_service(&self, service: &Arc<dyn Service>) {
        self.temporary.remove(service);
    }

    /// Counts a collective operation, and the bytes of scratch memory that it uses.
    pub fn count_collective(&self, scratch: u64) {
        self.core().counters.collectives.increment();
        self.core().counters.collective_scratch.add(scratch);
    }

    /// Counts a collective operation that exchanges its data through slots.
    pub fn count_one_shot(&self) {
        self.core().counters.collective_one_shots.increment();
    }

    /// Counts a kernel of such an operation for which data was late.
    pub fn count_late_kernel(&self) {
        self.core().counters.collective_late_kernels.increment();
    }

    /// Counts a collective operation in which one kernel copies all blocks.
    pub fn count_moves(&self) {
        self.core().counters.collective_moves.increment();
    }

    /// Counts a call on host copies of device memory.
    pub fn count_call_on_host_copies(&self) {
        self.core().counters.calls_on_host_copies.increment();
    }

    /// Counts allocations of host memory for such copies.
    pub fn count_host_copy_allocations(&self, allocations: u64) {
        self.core().counters.host_copy_allocations.add(allocations);
    }

    /// Returns the number of messages with the tag [`NOTICE`](crate::NOTICE) that have arrived. After it has grown,
    /// [`improbe`](Self::improbe) finds the new ones. It may grow without a notice.
    #[inline]
    pub fn notices(&self) -> u64 {
        self.notices.load(Ordering::Acquire)
    }

    /// Counts a notice, which can be received now.
    pub(super) fn note_notice(&self) {
        self.notices.fetch_add(1, Ordering::Release);
    }

    /// Returns the devices whose memory this engine sends, for a host that uses such memory directly.
    #[inline(always)]
    pub fn devices(&self) -> &Devices {
        &self.core().devices
    }

    /// Returns the pool of host memory for data in transit, for a host that needs such memory, too.
    pub fn host_pool(&self) -> &HostPool {
        &self.core().host_pool
    }

    /// Returns the pool of device memory for data in transit, for a host that needs such memory, too.
    pub fn scratch_pool(&self) -> &ScratchPool {
        &self.core().scratch_pool
    }

    /// Allocates `len` bytes of zeros that processes of this node can map. Returns `None` if no transport in use shares
    /// memory.
    ///
    /// # Errors
    /// The engine was finalized, or the system refused.
    pub fn allocate_shared(&self, len: usize) -> Result<Option<Mapping>, Error> {
        self.core().check_open()?;
        for slot in &self.core().btls {
            if let Some(mapping) = slot.btl.allocate(len)? {
                return Ok(Some(mapping));
            }
        }
        Ok(None)
    }

    /// Returns whether memory lies in an allocation of [`allocate_shared`](Self::allocate_shared).
    pub(crate) fn is_mappable(&self, address: *const u8, len: usize) -> bool {
        self.core().btls.iter().any(|slot| slot.btl.is_mappable(address, len))
    }

    /// Returns the engine's counters. May be called from any thread, also on an engine whose calls never overlap
    /// otherwise: it takes no lock.
    pub fn counters(&self) -> Counters {
        let counters = &self.core().counters;
        let (made, hits) = self.devices().mappings().take();
        counters.ipc_mappings.add(made);
        counters.ipc_hits.add(hits);
        let sum = counters.snapshot();
        sum.one_sided_direct.add(self.core().direct_stores.get());
        self.protocols.peers.met().for_each(|slot| slot.peer.counters.add_to(&sum));
        sum
    }
}
