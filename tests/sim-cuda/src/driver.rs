//! The state of the driver in this process.
//!
//! Locks, in the order in which they may be taken together: contexts, streams and events, the address space, the
//! scheduler. Nothing waits for work with any of them held.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::capture::Graph;
use crate::context::Contexts;
use crate::device::Device;
use crate::error::{Error, Outcome};
use crate::event::Event;
use crate::ipc::Imports;
use crate::kernels::{Function, Module};
use crate::pool::{DevicePools, Pool};
use crate::schedule::Scheduler;
use crate::settings::Settings;
use crate::space::AddressSpace;
use crate::stream::Stream;
use crate::vmm::Physicals;

pub(crate) struct Driver {
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Mutex<Contexts>,
    pub(crate) streams: Mutex<Handles<Stream>>,
    pub(crate) events: Mutex<Handles<Event>>,
    pub(crate) graphs: Mutex<Handles<Graph>>,
    pub(crate) modules: Mutex<Handles<Module>>,
    pub(crate) functions: Mutex<Handles<Function>>,
    pub(crate) pools: Mutex<Handles<Pool>>,
    pub(crate) device_pools: Vec<DevicePools>,
    pub(crate) physicals: Mutex<Physicals>,
    pub(crate) imports: Mutex<Imports>,
    pub(crate) space: RwLock<AddressSpace>,
    pub(crate) scheduler: Scheduler,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The driver, once `cuInit` has been called.
pub(crate) fn driver() -> Outcome<&'static Driver> {
    DRIVER.get().ok_or(Error::NOT_INITIALIZED)
}

pub(crate) fn initialise() -> Outcome {
    let settings = Settings::get();
    if settings.visible.is_empty() {
        return Err(Error::NO_DEVICE);
    }
    // As the driver does, for a list that names one twice.
    if settings.visible.iter().enumerate().any(|(index, device)| settings.visible[..index].contains(device)) {
        return Err(Error::INVALID_DEVICE);
    }
    DRIVER.get_or_init(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
        let devices: Vec<Device> = settings.visible.iter().copied().map(Device::new).collect();
        let mut pools = Handles::new(0x5300_0000_0000);
        let device_pools = (0..devices.len()).map(|device| DevicePools::create(&mut pools, device)).collect();
        Driver {
            contexts: Mutex::new(Contexts::new(devices.len())),
            streams: Mutex::new(Handles::new(0x5000_0000_0000)),
            events: Mutex::new(Handles::new(0x5100_0000_0000)),
            graphs: Mutex::new(Handles::new(0x5200_0000_0000)),
            modules: Mutex::new(Handles::new(0x5400_0000_0000)),
            functions: Mutex::new(Handles::new(0x5500_0000_0000)),
            pools: Mutex::new(pools),
            device_pools,
            physicals: Mutex::default(),
            imports: Mutex::default(),
            space: RwLock::default(),
            scheduler: Scheduler::new(settings.delay, settings.seed),
            devices,
        }
    });
    Ok(())
}

extern "C" fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process is a child, made by fork alone, of one that initialised the driver.
pub(crate) fn is_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// A number never given out before in this process.
pub(crate) fn fresh_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// A number that no other process has, as good as surely.
pub(crate) fn random_id() -> u64 {
    // The standard library's hasher keys are random, and the simplest source of randomness that it has.
    RandomState::new().hash_one(std::process::id())
}

/// Ends the process where a real driver was seen to dereference a dangling handle.
pub(crate) fn crash(object: &str, handle: usize) -> ! {
    eprintln!("sim-cuda: {object} {handle:#x} does not exist (any longer); a real driver crashes here");
    std::process::abort()
}

/// Objects known to the caller by opaque handles, which are reused as soon as they are free.
pub(crate) struct Handles<T> {
    base: usize,
    objects: slab::Slab<Arc<T>>,
}

/// Bytes between two handles: they look like addresses of objects.
const HANDLE_STEP: usize = 64;

impl<T> Handles<T> {
    /// `base` differs between kinds of object, so that a handle of the wrong kind is no handle.
    pub(crate) fn new(base: usize) -> Self {
        Handles { base, objects: slab::Slab::new() }
    }

    pub(crate) fn insert(&mut self, object: Arc<T>) -> usize {
        self.base + HANDLE_STEP * (self.objects.insert(object) + 1)
    }

    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.key(handle).and_then(|key| self.objects.get(key)).cloned()
    }

    pub(crate) fn remove(&mut self, handle: usize) -> Option<Arc<T>> {
        self.key(handle).and_then(|key| self.objects.try_remove(key))
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    fn key(&self, handle: usize) -> Option<usize> {
        let offset = handle.checked_sub(self.base)?;
        offset.is_multiple_of(HANDLE_STEP).then_some(offset / HANDLE_STEP)?.checked_sub(1)
    }
}
