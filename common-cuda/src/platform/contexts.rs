//! The contexts of this process's buffers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::pieces::Pieces;
use crate::context::{Context, Scope};
use crate::copies::{CopyQueue, Workspace};
use crate::driver::{ContextHandle, Driver, Failure, Stream};
use crate::location::{DeviceIndex, Location, MemoryClass};
use crate::measure::Keeper;
use crate::memo::Memo;
use crate::order::Moment;
use crate::settings::Settings;

/// The number of remembered allocations of a context.
const ALLOCATIONS: usize = 16;

/// All contexts, and what is known about device memory.
pub(crate) struct Contexts {
    pub(crate) driver: &'static dyn Driver,
    settings: Settings,
    keeper: Arc<Keeper>,
    known: RwLock<Vec<Known>>,
    /// Primary contexts that were queried. They are valid while they exist.
    primaries: RwLock<HashMap<DeviceIndex, Arc<CopyQueue>>>,
    /// Pieces of the address space with device memory.
    pieces: Pieces,
    /// Contexts and devices of device memory, by ids of allocations.
    located: Memo,
    /// The first bytes and lengths of these allocations, by their ids. The length is 0 if the driver does not tell.
    extents: Memo,
    settled: Arc<Memo>,
    /// The moments since when the driver completes synchronous calls on allocations before they return, by ids of
    /// allocations. [`NEVER`] if the driver does not.
    synchronised: Memo,
}

/// Stands for no moment.
const NEVER: u64 = u64::MAX;

/// A context that was used.
struct Known {
    queue: Arc<CopyQueue>,
    /// Ids of allocations in the context. An id selects its slot.
    allocations: [AtomicU64; ALLOCATIONS],
}

impl Known {
    fn context(&self) -> &Context {
        &self.queue.workspace.context
    }
}

impl Contexts {
    pub(crate) fn new(driver: &'static dyn Driver, settings: Settings, keeper: Arc<Keeper>) -> Self {
        Contexts {
            driver,
            settings,
            keeper,
            known: RwLock::default(),
            primaries: RwLock::default(),
            pieces: Pieces::default(),
            located: Memo::default(),
            extents: Memo::default(),
            settled: Arc::default(),
            synchronised: Memo::default(),
        }
    }

    /// When default streams were found idle.
    pub(crate) fn settled(&self) -> &Memo {
        &self.settled
    }

    /// Returns the context to use for memory that was found at `at`.
    pub(crate) fn of(&self, at: &Location) -> Option<Arc<CopyQueue>> {
        match (at.context, at.device) {
            (0, None) => self.current(),
            (0, Some(device)) => self.active_primary(device).or_else(|| self.current()),
            // Another `Devices` found the location. The context is one of these nevertheless.
            (id, device) => {
                let is_it = |found: &Arc<CopyQueue>| found.workspace.context.id == id;
                let primary = || device.and_then(|device| self.active_primary(device)).filter(is_it);
                self.by_id(id).or_else(primary).or_else(|| self.current().filter(is_it))
            }
        }
    }

    /// Returns the context of this id, if it was used before.
    pub(crate) fn by_id(&self, id: u64) -> Option<Arc<CopyQueue>> {
        self.known.read().iter().find(|known| known.context().id == id).map(|known| known.queue.clone())
    }

    /// Returns the id of the context of this handle, which the driver has just returned to the caller.
    fn see(&self, handle: ContextHandle) -> Result<u64, Failure> {
        let id = self.driver.context_id(handle)?;
        let seen = self.known.read().iter().any(|known| known.context().id == id && known.context().seems_alive());
        if !seen {
            self.add(handle, id);
            if let Some(queue) = self.by_id(id) {
                self.keeper.met(&queue);
            }
        }
        Ok(id)
    }

    /// Does the same for the context that the driver has just returned for an allocation. If an allocation was found in
    /// a context before, it is in no other context, since ids of allocations are never reused. So the driver need not
    /// distinguish the context from an earlier one with the same handle.
    pub(crate) fn see_allocation(&self, handle: ContextHandle, buffer_id: u64) -> Result<u64, Failure> {
        let place = buffer_id as usize % ALLOCATIONS;
        let known = self.known.read();
        let in_it = |known: &&Known| {
            let context = known.context();
            context.has_handle(handle)
                && context.seems_alive()
                && known.allocations[place].load(Ordering::Relaxed) == buffer_id
        };
        if let Some(known) = known.iter().find(in_it).filter(|_| buffer_id != 0) {
            return Ok(known.context().id);
        }
        drop(known);
        let id = self.see(handle)?;
        if let Some(known) = self.known.read().iter().find(|known| known.context().id == id) {
            known.allocations[place].store(buffer_id, Ordering::Relaxed);
        }
        Ok(id)
    }

    /// Checks whether device memory was found near an address before. Then querying an id may suffice.
    pub(crate) fn is_near_known(&self, address: *const u8) -> bool {
        self.pieces.contain(address)
    }

    /// Returns the location of the allocation with this id, if it was found before. Ids are never reused, so the rest
    /// is unchanged.
    pub(crate) fn locate(&self, buffer_id: u64) -> Option<Location> {
        let [device, context] = self.located.get(buffer_id)?;
        let device = Some(DeviceIndex(device as u32));
        Some(Location { class: MemoryClass::Device, device, context, buffer_id })
    }

    /// Does what [`locate`](Self::locate) does, if nothing more is to be found out about the allocation.
    pub(crate) fn locate_settled(&self, buffer_id: u64) -> Option<Location> {
        self.locate(buffer_id).filter(|_| self.has_synchronised(buffer_id))
    }

    /// Checks whether all of `len` bytes at an address lie in the allocation of this id. Returns `None` if that is not known.
    /// Asks the driver once for an allocation whose location does not change.
    pub(crate) fn contains(&self, buffer_id: u64, address: usize, len: usize) -> Option<bool> {
        let [base, bytes] = self.extents.get(buffer_id).or_else(|| {
            self.located.get(buffer_id)?;
            let (base, bytes) = self.driver.extent(address as u64).unwrap_or((0, 0));
            self.extents.set(buffer_id, [base, bytes as u64]);
            Some([base, bytes as u64])
        })?;
        let room = (bytes as usize).checked_sub(len);
        (bytes != 0).then(|| room.is_some_and(|room| address.wrapping_sub(base as usize) <= room))
    }

    /// Remembers the result of [`locate`](Self::locate) for device memory at an address.
    pub(crate) fn remember(&self, address: *const u8, location: &Location) {
        let &Location { device: Some(device), context, buffer_id, .. } = location else { return };
        if buffer_id != 0 {
            self.located.set(buffer_id, [device.0.into(), context]);
            self.pieces.add(address);
        }
    }

    /// Returns the moment since when the driver completes synchronous calls on an allocation before they return, if it
    /// does.
    #[inline]
    pub(crate) fn synchronised(&self, buffer_id: u64) -> Option<Moment> {
        self.synchronised.get(buffer_id).map(|[since, _]| since).filter(|since| *since != NEVER).map(Moment::of)
    }

    /// Notes an allocation of Cableway: the program makes no calls on it.
    pub(crate) fn note_own(&self, buffer_id: u64) {
        if self.settings.synchronises {
            self.synchronised.set(buffer_id, [Moment::START.number(), 0]);
        }
    }

    /// Checks whether [`synchronise`](Self::synchronise) is done for an allocation, or not wanted.
    #[inline]
    pub(super) fn has_synchronised(&self, buffer_id: u64) -> bool {
        !self.settings.synchronises || self.synchronised.get(buffer_id).is_some()
    }

    /// Makes the driver complete synchronous calls on the allocation at an address before they return, and remembers
    /// whether it does. `already` says whether it does so by now; `None` if it cannot.
    pub(super) fn synchronise(&self, address: *const u8, location: &Location, already: Option<bool>) {
        if location.buffer_id != 0 && !self.has_synchronised(location.buffer_id) {
            let since = match self.try_synchronise(address as u64, location, already) {
                Ok(Some(since)) => since.number(),
                // Nothing is known yet. The next operation tries again.
                Ok(None) => return,
                Err(_) => NEVER,
            };
            self.synchronised.set(location.buffer_id, [since, 0]);
        }
    }

    /// Returns `None` if a capture forbids it at present. Fails if the driver refuses it.
    fn try_synchronise(
        &self,
        address: u64,
        location: &Location,
        already: Option<bool>,
    ) -> Result<Option<Moment>, Failure> {
        let already = already.ok_or(Failure::missing("synchronise_operations"))?;
        let Some(queue) = self.of(location) else { return Ok(None) };
        let Workspace { context, default_stream, .. } = &queue.workspace;
        let _scope = context.enter()?;
        // The memo has forgotten the allocation, or the program has done it.
        if already && let Some(last) = default_stream.last_mark() {
            return Ok(Some(last));
        }
        self.driver.synchronise_operations(address)?;
        // The driver has waited for earlier synchronous calls on the allocation (H200, driver 580). Other drivers may not, so
        // a mark tells when they are over. But the default stream waits for blocking streams of the program. While one
        // of them may wait for a message, the mark might never be passed, and would hold up the other blocking streams.
        match self.keeper.gate.is_held() {
            true => Ok(Some(Moment::START)),
            false => default_stream.mark(),
        }
    }

    #[cold]
    fn add(&self, handle: ContextHandle, id: u64) {
        let mut known = self.known.write();
        // The handle has another id: the old context and all of its objects are gone. Release what Cableway has for
        // destroyed contexts: memory of lists, and mappings.
        known.retain(|known| {
            let context = known.context();
            (!context.has_handle(handle) || context.id == id) && context.alive()
        });
        if !known.iter().any(|known| known.context().id == id) {
            let context = Arc::new(Context::new(self.driver, handle, id));
            let Keeper { costs, gate, .. } = &*self.keeper;
            let workspace = Workspace::new(context, self.settled.clone(), self.settings, costs.clone(), gate);
            known.push(Known { queue: Arc::new(CopyQueue::new(workspace)), allocations: Default::default() });
        }
    }

    /// Returns the primary context of a device if it is active. Never activates it.
    pub(crate) fn active_primary(&self, device: DeviceIndex) -> Option<Arc<CopyQueue>> {
        let known = self.primaries.read().get(&device).cloned();
        match known {
            Some(queue) if queue.workspace.context.alive() => Some(queue),
            _ => self.find_primary(device),
        }
    }

    #[cold]
    fn find_primary(&self, device: DeviceIndex) -> Option<Arc<CopyQueue>> {
        let handle = self.driver.active_primary(device).ok()??;
        let queue = self.by_id(self.see(handle).ok()?)?;
        self.primaries.write().insert(device, queue.clone());
        Some(queue)
    }

    /// Returns the context of a stream of the program.
    pub(crate) fn of_stream(&self, stream: &Stream) -> Result<Arc<CopyQueue>, Failure> {
        let handle = {
            let _scope = Scope::without_context(self.driver);
            self.driver.context_of(stream)?
        };
        self.by_id(self.see(handle)?).ok_or(Failure::CONTEXT_DESTROYED)
    }

    /// Returns the calling thread's current context, if it has one.
    pub(crate) fn current(&self) -> Option<Arc<CopyQueue>> {
        let handle = self.driver.current_context().ok()??;
        self.by_id(self.see(handle).ok()?)
    }
}
