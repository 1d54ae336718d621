//! The contexts that this process's buffers were seen in.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::context::Context;
use crate::copies::{CopyQueue, Workspace};
use crate::driver::{ContextHandle, Driver, Failure};
use crate::location::{DeviceIndex, Location, MemoryClass};
use crate::measure::Keeper;
use crate::memo::Memo;
use crate::order::Settled;
use crate::settings::Settings;

/// Of an address, which piece it is in: drivers map as much at a time.
const PIECE_SHIFT: u32 = 21;
/// The number of pieces of the address space that are known to have device memory.
const PIECES: usize = 64;
/// The number of allocations by which a context is known.
const ALLOCATIONS: usize = 16;

/// All of them, with what is known of device memory.
pub(crate) struct Contexts {
    pub(super) driver: &'static dyn Driver,
    settings: Settings,
    keeper: Arc<Keeper>,
    known: RwLock<Vec<Known>>,
    /// Primary contexts, as far as they were asked for; believed while they are alive.
    primaries: RwLock<HashMap<DeviceIndex, Arc<CopyQueue>>>,
    /// Pieces of the address space in which device memory was found, each in the place that it chooses.
    pieces: [AtomicU64; PIECES],
    /// Contexts and devices of device memory, by ids of allocations.
    located: Memo,
    settled: Arc<Settled>,
}

/// A context that was seen.
struct Known {
    queue: Arc<CopyQueue>,
    /// Ids of allocations that were found in it, each in the place that it chooses.
    allocations: [AtomicU64; ALLOCATIONS],
}

impl Known {
    fn context(&self) -> &Context {
        &self.queue.workspace.context
    }
}

impl Contexts {
    pub(super) fn new(driver: &'static dyn Driver, settings: Settings, keeper: Arc<Keeper>) -> Self {
        Contexts {
            driver,
            settings,
            keeper,
            known: RwLock::default(),
            primaries: RwLock::default(),
            pieces: [const { AtomicU64::new(0) }; PIECES],
            located: Memo::default(),
            settled: Arc::default(),
        }
    }

    /// When default streams were found idle.
    pub(super) fn settled(&self) -> &Settled {
        &self.settled
    }

    /// The context to work in on memory that was found at `at`.
    pub(super) fn of(&self, at: &Location) -> Option<Arc<CopyQueue>> {
        match (at.context, at.device) {
            (0, None) => self.current(),
            (0, Some(device)) => self.active_primary(device).or_else(|| self.current()),
            // Found by other `Devices`, it is one of these all the same.
            (id, device) => {
                let is_it = |found: &Arc<CopyQueue>| found.workspace.context.id == id;
                let primary = || device.and_then(|device| self.active_primary(device)).filter(is_it);
                self.by_id(id).or_else(primary).or_else(|| self.current().filter(is_it))
            }
        }
    }

    /// The context of this id, seen before.
    pub(super) fn by_id(&self, id: u64) -> Option<Arc<CopyQueue>> {
        self.known.read().iter().find(|known| known.context().id == id).map(|known| known.queue.clone())
    }

    /// The id of the context of this handle, which the caller has just got from the driver.
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

    /// The same, of the context that the driver has just named for an allocation: one that was seen in it before is in no
    /// other, since ids of allocations are never used twice, and the driver need not tell the context from one that had
    /// this handle before.
    pub(super) fn see_allocation(&self, handle: ContextHandle, buffer_id: u64) -> Result<u64, Failure> {
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

    /// Checks whether device memory was found near an address before. Then the query of an id may suffice.
    pub(super) fn is_near_known(&self, address: *const u8) -> bool {
        let piece = address as u64 >> PIECE_SHIFT;
        self.pieces[piece as usize % PIECES].load(Ordering::Relaxed) == piece
    }

    /// Device memory of the allocation that has this id now, if that was found before: ids are never used twice, so
    /// that all else is as it was.
    pub(super) fn locate(&self, buffer_id: u64) -> Option<Location> {
        let [device, context] = self.located.get(buffer_id)?;
        let device = Some(DeviceIndex(device as u32));
        Some(Location { class: MemoryClass::Device, device, context, buffer_id })
    }

    /// Remembers what [`locate`](Self::locate) answers, of device memory at an address.
    pub(super) fn remember(&self, address: *const u8, location: &Location) {
        let &Location { device: Some(device), context, buffer_id, .. } = location else { return };
        if buffer_id != 0 {
            self.located.set(buffer_id, [device.0.into(), context]);
            let piece = address as u64 >> PIECE_SHIFT;
            self.pieces[piece as usize % PIECES].store(piece, Ordering::Relaxed);
        }
    }

    #[cold]
    fn add(&self, handle: ContextHandle, id: u64) {
        let mut known = self.known.write();
        // One handle, another id: the old context is gone, and everything in it. Of others that are gone, too, what we have
        // that outlives them is released: memory of lists, and mappings.
        known.retain(|known| {
            let context = known.context();
            (!context.has_handle(handle) || context.id == id) && context.alive()
        });
        if !known.iter().any(|known| known.context().id == id) {
            let context = Arc::new(Context::new(self.driver, handle, id));
            let workspace = Workspace::new(context, self.settled.clone(), self.settings, self.keeper.costs.clone());
            known.push(Known { queue: Arc::new(CopyQueue::new(workspace)), allocations: Default::default() });
        }
    }

    /// The primary context of a device if somebody has activated it. Never activates it.
    pub(super) fn active_primary(&self, device: DeviceIndex) -> Option<Arc<CopyQueue>> {
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

    /// The calling thread's current context, if it has one.
    pub(super) fn current(&self) -> Option<Arc<CopyQueue>> {
        let handle = self.driver.current_context().ok()??;
        self.by_id(self.see(handle).ok()?)
    }
}
