//! Contexts: known by their ids, entered for the length of a few calls, never created.
//!
//! The driver reuses context handles; ids it does not. So what we keep per context (streams, events) is keyed by id,
//! and a handle is used only while the driver says that it still has that id. What belonged to a context that is gone
//! (`cuCtxDestroy`, `cudaDeviceReset`) went with it, and is forgotten without a call.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute_enum as Attribute, CUevent, CUstreamCaptureMode_enum,
};
use parking_lot::{Mutex, RwLock};

use super::copier::Copier;
use super::copy::Operation;
use super::costs::Keeper;
use super::driver::Driver;
use super::info;
use super::kernels::Kernels;
use super::lists::ListMemory;
use super::mapped::Mapped;
use super::memo::Memo;
use super::status::Failure;
use super::stream::Streams;
use crate::costs::{Costs, DeviceCosts};
use crate::location::{DeviceIndex, Location, MemoryClass};

/// A handle of the driver's. The driver API may be called with it from any thread.
#[derive(Debug)]
pub(super) struct Handle<T>(pub(super) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Handle<T> {}

// SAFETY: the pointer is opaque to us, never dereferenced; the driver API is thread-safe.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// What parameters say of how copies are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) kernels: bool,
    /// How long a job may wait for room on its device.
    pub(super) patience: Duration,
    /// Average size of plain copies up to which a kernel makes them.
    pub(super) kernel_limit: usize,
    /// Whether a kernel stays for small copies, for how long with nothing to do, and for how long in any case.
    pub(super) copier: bool,
    pub(super) copier_idle: Duration,
    pub(super) copier_lease: Duration,
    /// How long the bytes of a small copy to the host are polled before the driver is asked.
    pub(super) landing: Duration,
    /// What a kernel takes longer to pack than a copy engine to copy the same.
    pub(super) pack_latency: Duration,
    /// Whether `kernel_limit` was set by hand, and so holds whatever was measured.
    pub(super) kernel_limit_set: bool,
    /// Bytes of device memory for lists of blocks.
    pub(super) list_memory: usize,
    /// Largest copies to the host, and to a device, that the CPU makes through a mapping.
    pub(super) mapped_read: usize,
    pub(super) mapped_write: usize,
}

/// A context and what we keep in it.
pub(crate) struct Context {
    pub(super) driver: &'static Driver,
    pub(super) id: u64,
    handle: Handle<cudarc::driver::sys::CUctx_st>,
    gone: AtomicBool,
    pub(super) streams: Streams,
    pub(super) kernels: Kernels,
    pub(super) copier: Copier,
    pub(super) lists: ListMemory,
    pub(super) mapped: Mapped,
    /// Operations that have begun to copy and are not over.
    pub(super) under_way: AtomicUsize,
    pub(super) settings: Settings,
    costs: Arc<Costs>,
    /// Its device, where costs are known by it.
    device: OnceLock<DeviceIndex>,
    /// Operations that are done, with their events, for the next ones.
    #[expect(clippy::vec_box, reason = "the boxes themselves are what is kept")]
    pub(super) idle: Mutex<Vec<Box<Operation>>>,
    max_pitch: OnceLock<usize>,
    /// The driver answers about events in their context only.
    asks_within: AtomicBool,
    /// The driver does not take copies of a direction by the batch.
    pub(super) batches_refused: [AtomicBool; 3],
    /// The moment of the last question to which its legacy default stream was idle.
    settled: AtomicU64,
    /// Ids of allocations that were found in it, each in the place that it chooses.
    allocations: [AtomicU64; ALLOCATIONS],
    /// By ids of contexts of the process, what `settled` is, for who asks with each message and has the id alone: to find the
    /// context takes a lock. A memo forgets, and two threads may leave the older answer in it. Then one question more is
    /// asked; `settled` itself does neither, so that who asks until it is answered comes to an end.
    all_settled: Arc<Memo>,
}

/// Of an address, which piece it is in: drivers map as much at a time.
const PIECE_SHIFT: u32 = 21;
/// How many pieces of the address space are known to have device memory.
const PIECES: usize = 64;

/// How many allocations a context is known by.
const ALLOCATIONS: usize = 16;

/// Questions that were put to legacy default streams so far, by which moments are told apart.
static QUESTIONS: AtomicU64 = AtomicU64::new(1);

/// This moment: before every question yet to be put.
pub(super) fn moment() -> u64 {
    QUESTIONS.load(Ordering::Acquire)
}

impl Context {
    /// Whether the context of this id still exists.
    pub(super) fn alive(&self) -> bool {
        if self.gone.load(Ordering::Relaxed) {
            return false;
        }
        let alive = id_of(self.driver, self.handle.0).is_ok_and(|id| id == self.id);
        if !alive {
            self.gone.store(true, Ordering::Relaxed);
        }
        alive
    }

    /// What was measured of its device.
    pub(super) fn costs(&self) -> Option<&DeviceCosts> {
        self.costs.of(*self.device.get()?)
    }

    /// Whose context it is: from now on what is measured of that device decides.
    pub(super) fn known_as(&self, device: DeviceIndex) {
        let _ = self.device.set(device);
    }

    /// Whether what the legacy default stream held at a moment is known to be done.
    pub(super) fn settled_since(&self, moment: u64) -> bool {
        self.settled.load(Ordering::Acquire) > moment
    }

    /// Asks whether the legacy default stream has nothing left to do; none where a capture forbids to ask. The context
    /// is current.
    pub(super) fn is_settled(&self, driver: &Driver) -> Result<Option<bool>, Failure> {
        let question = QUESTIONS.fetch_add(1, Ordering::AcqRel) + 1;
        let idle = self.streams.legacy_is_idle(driver)?;
        if idle == Some(true) {
            let before = self.settled.fetch_max(question, Ordering::AcqRel);
            self.all_settled.set(self.id, [0, question.max(before)]);
        }
        Ok(idle)
    }

    /// Makes it this thread's current context, in a mode in which our calls cannot invalidate a capture.
    pub(super) fn enter(&self) -> Result<Scope, Failure> {
        self.check_alive()?;
        Scope::enter(self.driver, self.handle.0)
    }

    pub(super) fn check_alive(&self) -> Result<(), Failure> {
        match self.alive() {
            true => Ok(()),
            false => Err(Failure { call: "cuCtxGetId", code: Failure::CONTEXT_IS_DESTROYED }),
        }
    }

    /// Whether the work that an event follows is done, with any current context or none.
    ///
    /// The driver's reference has `cuEventQuery` answer that the current context is invalid in no case, unlike
    /// `cuStreamQuery` and `cuEventRecord`; and the runtime's (`cudaEventQuery`) may ask about another device's event.
    /// A driver that sees it otherwise is asked within the context from then on. To push and pop one takes as long as
    /// to ask about what is not done yet.
    pub(super) fn is_over(&self, event: CUevent) -> Result<bool, Failure> {
        // SAFETY: the caller's event, which is as alive as its context.
        let ask = |_scope| unsafe { self.driver.cuEventQuery(event) };
        // Where there are no ids, to enter a context is what shows that it is gone.
        if self.driver.version >= IDS_SINCE && !self.asks_within.load(Ordering::Relaxed) {
            self.check_alive()?;
            match ask(Scope::without_context(self.driver)) {
                Err(Failure { code: Failure::INVALID_CONTEXT | Failure::INVALID_HANDLE, .. }) => {
                    self.asks_within.store(true, Ordering::Relaxed);
                }
                answer @ (Ok(()) | Err(Failure { code: Failure::NOT_READY, .. })) => return over(answer),
                // Of the current context, perhaps: what is wrong with this one shows within it.
                Err(_) => {}
            }
        }
        over(self.enter().and_then(ask))
    }

    /// The longest distance between rows that its device copies in one call. The context is current.
    pub(super) fn max_pitch(&self) -> usize {
        *self.max_pitch.get_or_init(|| {
            let mut device: CUdevice = 0;
            // SAFETY: fills in the current context's device.
            let pitch = unsafe { self.driver.cuCtxGetDevice(&raw mut device) }
                .and_then(|()| info::attribute(self.driver, device, Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH));
            // Of a device that does not say, rows are copied one by one.
            pitch.ok().and_then(|pitch| usize::try_from(pitch).ok()).unwrap_or(0)
        })
    }

    /// Records that the driver refused something because the context is gone.
    pub(super) fn note(&self, failure: Failure) -> Failure {
        if failure.context_gone() {
            // Drivers before 12.0 have no ids, so that this is how we learn it.
            self.gone.store(true, Ordering::Relaxed);
        }
        failure
    }
}

impl Drop for Context {
    /// Gives back what we made in the context; nothing if it is gone, but what is the device's.
    fn drop(&mut self) {
        // SAFETY: a list in device memory keeps the context.
        unsafe { self.lists.unmap(self.driver) };
        let operations = std::mem::take(self.idle.get_mut());
        let Ok(_scope) = self.enter() else { return };
        for mut operation in operations {
            operation.destroy(self.driver);
        }
        self.copier.destroy(self.driver);
        self.lists.destroy(self.driver);
        self.kernels.destroy(self.driver);
        self.streams.destroy(self.driver);
    }
}

/// Whether work is over, as the driver answers.
fn over(answer: Result<(), Failure>) -> Result<bool, Failure> {
    match answer {
        Ok(()) => Ok(true),
        Err(Failure { code: Failure::NOT_READY, .. }) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// The first driver that tells ids of contexts.
const IDS_SINCE: c_int = 12_000;

/// The id of a context; 0 for `context` means the current one.
pub(super) fn id_of(driver: &Driver, context: CUcontext) -> Result<u64, Failure> {
    let mut id = 0;
    // SAFETY: the driver checks the handle and fills in the id.
    match unsafe { driver.cuCtxGetId(context, &raw mut id) } {
        Ok(()) => Ok(id),
        // Before 12.0 the handle must do.
        Err(Failure { code: Failure::MISSING, .. }) => Ok(context as u64),
        Err(failure) => Err(failure),
    }
}

/// Calls of ours, in a context made current for them or not, until dropped. Bound to its thread.
pub(super) struct Scope {
    driver: &'static Driver,
    pushed: bool,
    capture_mode: Option<c_int>,
    /// What it restores is the thread's.
    _thread: std::marker::PhantomData<*mut ()>,
}

impl Scope {
    /// Enters a context that the caller knows to be alive.
    pub(super) fn enter(driver: &'static Driver, handle: CUcontext) -> Result<Scope, Failure> {
        let mut scope = Scope::without_context(driver);
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: fills in the current context.
        unsafe { driver.cuCtxGetCurrent(&raw mut current) }?;
        if current != handle {
            // SAFETY: a handle of a live context, by the caller's word; the driver refuses others.
            unsafe { driver.cuCtxPushCurrent(handle) }?;
            scope.pushed = true;
        }
        Ok(scope)
    }

    /// For calls that need no current context: the thread keeps its own, and captures are left alone.
    pub(super) fn without_context(driver: &'static Driver) -> Scope {
        let mut scope = Scope { driver, pushed: false, capture_mode: None, _thread: std::marker::PhantomData };
        let mut mode = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED as c_int;
        // SAFETY: exchanges this thread's mode with `mode`. Missing before 10.1, where modes are unknown too.
        if unsafe { driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.is_ok() {
            scope.capture_mode = Some(mode);
        }
        scope
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped: CUcontext = std::ptr::null_mut();
            // SAFETY: pops what `enter` pushed: scopes of a thread end in the reverse order of their beginning.
            if let Err(failure) = unsafe { self.driver.cuCtxPopCurrent(&raw mut popped) } {
                log::debug!("leaving a context: {}", self.driver.reason(failure));
            }
        }
        if let Some(mut mode) = self.capture_mode {
            // SAFETY: gives the thread back its own mode. It cannot fail where the first exchange did not.
            let _ = unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}

/// The contexts that this process's buffers were seen in.
pub(crate) struct Contexts {
    pub(super) driver: &'static Driver,
    settings: Settings,
    keeper: Arc<Keeper>,
    known: RwLock<Vec<Arc<Context>>>,
    /// Primary contexts, as far as they were asked for; believed while they are alive.
    primaries: RwLock<HashMap<DeviceIndex, Arc<Context>>>,
    /// Pieces of the address space in which device memory was found, each in the place that it chooses.
    pieces: [AtomicU64; PIECES],
    /// Contexts and devices of device memory, by ids of allocations.
    located: Memo,
    /// The moments of the last questions to which legacy default streams were idle, by ids of contexts.
    settled: Arc<Memo>,
}

impl Contexts {
    pub(super) fn new(driver: &'static Driver, settings: Settings, keeper: Arc<Keeper>) -> Self {
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

    /// The context of this id, seen before.
    pub(super) fn by_id(&self, id: u64) -> Option<Arc<Context>> {
        self.known.read().iter().find(|context| context.id == id).cloned()
    }

    /// Whether what the legacy default stream of the context of this id held at a moment is known to be done.
    pub(super) fn settled_since(&self, id: u64, moment: u64) -> bool {
        match self.settled.get(id) {
            Some([_, settled]) => settled > moment,
            None => self.known.read().iter().any(|context| context.id == id && context.settled_since(moment)),
        }
    }

    /// The id of the context of this handle, which the caller has just got from the driver.
    pub(super) fn see(&self, handle: CUcontext) -> Result<u64, Failure> {
        let id = id_of(self.driver, handle)?;
        let seen = self.known.read().iter().any(|c| c.id == id && !c.gone.load(Ordering::Relaxed));
        if !seen {
            self.add(handle, id);
            if let Some(context) = self.by_id(id) {
                self.keeper.met(&context);
            }
        }
        Ok(id)
    }

    /// The same, of the context that the driver has just named for an allocation: one that was seen in it before is in no
    /// other, since ids of allocations are never used twice, and the driver need not tell the context from one that had
    /// this handle before.
    pub(super) fn see_allocation(&self, handle: CUcontext, buffer_id: u64) -> Result<u64, Failure> {
        let place = buffer_id as usize % ALLOCATIONS;
        let known = self.known.read();
        let in_it = |context: &&Arc<Context>| {
            context.handle.0 == handle
                && !context.gone.load(Ordering::Relaxed)
                && context.allocations[place].load(Ordering::Relaxed) == buffer_id
        };
        if let Some(context) = known.iter().find(in_it).filter(|_| buffer_id != 0) {
            return Ok(context.id);
        }
        drop(known);
        let id = self.see(handle)?;
        if let Some(context) = self.by_id(id) {
            context.allocations[place].store(buffer_id, Ordering::Relaxed);
        }
        Ok(id)
    }

    /// Whether device memory was found near an address before, so that an id may be all that has to be asked for.
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
    fn add(&self, handle: CUcontext, id: u64) {
        let mut known = self.known.write();
        // One handle, another id: the old context is gone, and everything in it. Of others that are gone, too, what we have
        // that outlives them is let go of: memory of lists, and what is mapped.
        known.retain(|context| (context.handle.0 != handle || context.id == id) && context.alive());
        if !known.iter().any(|context| context.id == id) {
            known.push(Arc::new(Context {
                driver: self.driver,
                id,
                handle: Handle(handle),
                gone: AtomicBool::new(false),
                streams: Streams::default(),
                kernels: Kernels::default(),
                copier: Copier::default(),
                lists: ListMemory::default(),
                mapped: Mapped::default(),
                under_way: AtomicUsize::new(0),
                settings: self.settings,
                costs: self.keeper.costs.clone(),
                device: OnceLock::new(),
                idle: Mutex::new(Vec::new()),
                max_pitch: OnceLock::new(),
                asks_within: AtomicBool::new(false),
                batches_refused: Default::default(),
                settled: AtomicU64::new(0),
                allocations: Default::default(),
                all_settled: self.settled.clone(),
            }));
        }
    }

    /// The primary context of a device if somebody has activated it. Never activates it.
    pub(super) fn active_primary(&self, index: DeviceIndex) -> Option<Arc<Context>> {
        let known = self.primaries.read().get(&index).cloned();
        match known {
            Some(context) if context.alive() => Some(context),
            _ => self.find_primary(index),
        }
    }

    #[cold]
    fn find_primary(&self, index: DeviceIndex) -> Option<Arc<Context>> {
        let device = info::handle(self.driver, index).ok()?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: fills in two integers.
        unsafe { self.driver.cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) }.ok()?;
        if active == 0 {
            return None;
        }
        let mut handle: CUcontext = std::ptr::null_mut();
        // SAFETY: the context is active, so that retaining it only counts; released below.
        unsafe { self.driver.cuDevicePrimaryCtxRetain(&raw mut handle, device) }.ok()?;
        let seen = self.see(handle);
        // SAFETY: gives back what was retained above; the application's own reference keeps the context.
        if let Err(failure) = unsafe { self.driver.cuDevicePrimaryCtxRelease(device) } {
            log::debug!("releasing the primary context of device {device}: {}", self.driver.reason(failure));
        }
        let context = self.by_id(seen.ok()?)?;
        self.primaries.write().insert(index, context.clone());
        Some(context)
    }

    /// The calling thread's current context, if it has one.
    pub(super) fn current(&self) -> Option<Arc<Context>> {
        let mut handle: CUcontext = std::ptr::null_mut();
        // SAFETY: fills in a handle.
        unsafe { self.driver.cuCtxGetCurrent(&raw mut handle) }.ok()?;
        if handle.is_null() {
            return None;
        }
        self.see(handle).ok().and_then(|id| self.by_id(id))
    }
}
