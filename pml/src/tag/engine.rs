//! The engine: what it is made of.

use std::sync::{Arc, Weak};

use cableway_base::lock::{Locking, Shared};
use cableway_base::{Counters, Rank};
use cableway_common_cuda::Devices;

use super::registry::Registry;
use crate::core::{Config, Core};
use crate::error::Error;
use crate::protocol::{Protocols, Slot};

/// The messaging engine of one process. Every method may be called from any thread, also from a completion hook,
/// unless it was made by [`new_serialized`](Self::new_serialized). It owns no thread: messages move while somebody
/// is in [`progress`](Self::progress) or in one of the calls that wait.
///
/// # Locks
/// A lock per communicator guards what waits there to be matched, a lock per peer what is sent to it and the transfers
/// under way; a third kind the list of peers with work and the like, for a few instructions. No two are ever held at
/// once but the registry of communicators, shared, around a matching lock. Hooks are called with none.
pub struct Engine {
    pub(crate) protocols: Protocols,
    pub(crate) registry: Shared<Registry>,
    pub(crate) me: Weak<Engine>,
}

impl Engine {
    /// Publishes the transports' addresses (`btl.<name>`) and the engine's own card (`pml`). The host calls
    /// [`Modex::fence`](cableway_btl::Modex::fence) after this and before the first message; peers are connected at first
    /// use.
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
        let protocols = Protocols::new(config, locking)?;
        let registry = Shared::new(locking, Registry::default());
        Ok(Arc::new_cyclic(|me| Engine { protocols, registry, me: me.clone() }))
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Core {
        &self.protocols.core
    }

    /// A peer that was met before.
    #[inline]
    pub(crate) fn known(&self, rank: Rank) -> Option<&Slot> {
        self.protocols.peers.known(rank)
    }

    /// A peer; met now if it was not before.
    #[inline]
    pub(crate) fn peer(&self, rank: Rank) -> Result<&Slot, Error> {
        self.protocols.peers.get(&self.protocols.core, rank)
    }

    /// The devices whose memory this engine sends, for what a host does with such memory by itself.
    #[inline(always)]
    pub fn devices(&self) -> &Devices {
        &self.core().devices
    }

    /// What the engine did so far. May be called from any thread, also on an engine whose calls never overlap otherwise:
    /// it takes no lock.
    pub fn counters(&self) -> Counters {
        let counters = &self.core().counters;
        let (made, hits) = self.devices().mappings().take();
        counters.ipc_mappings.add(made);
        counters.ipc_hits.add(hits);
        let sum = counters.snapshot();
        self.protocols.peers.met().for_each(|slot| slot.peer.counters.add_to(&sum));
        sum
    }
}
