//! Initialisation of the driver in this process, ids and handles. Each module owns its part of the state.
//!
//! Locks, in the order in which they may be taken together: contexts, streams and events, the address space, the
//! scheduler. No thread waits for work while it holds any of them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use crate::error::{Error, Outcome};
use crate::settings::Settings;

static INITIALISED: OnceLock<()> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// State that exists only after `cuInit`.
pub(crate) struct AfterInit<T>(LazyLock<T>);

impl<T> AfterInit<T> {
    pub(crate) const fn new(create: fn() -> T) -> AfterInit<T> {
        AfterInit(LazyLock::new(create))
    }

    /// Creates the state on the first call.
    ///
    /// # Errors
    /// `cuInit` has not been called.
    pub(crate) fn get(&'static self) -> Outcome<&'static T> {
        check_initialised()?;
        Ok(&self.0)
    }
}

/// Fails unless `cuInit` was called.
pub(crate) fn check_initialised() -> Outcome {
    INITIALISED.get().copied().ok_or(Error::NOT_INITIALIZED)
}

pub(crate) fn initialise() -> Outcome {
    let settings = Settings::get();
    if settings.visible.is_empty() {
        return Err(Error::NO_DEVICE);
    }
    // The driver refuses a list that names a device twice.
    if settings.visible.iter().enumerate().any(|(index, device)| settings.visible[..index].contains(device)) {
        return Err(Error::INVALID_DEVICE);
    }
    INITIALISED.get_or_init(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
    });
    Ok(())
}

extern "C" fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Checks whether this process was forked from one that initialised the driver, without executing another program.
pub(crate) fn is_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Returns a number that was never returned before in this process.
pub(crate) fn fresh_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Returns a number that is unique among all processes with very high probability.
pub(crate) fn random_id() -> u64 {
    // The standard library's hasher keys are random, and its simplest source of randomness.
    RandomState::new().hash_one(std::process::id())
}

/// Ends the process where a real driver would dereference a dangling handle.
pub(crate) fn crash(object: &str, handle: usize) -> ! {
    eprintln!("sim-cuda: {object} {handle:#x} does not exist (any longer); a real driver crashes here");
    std::process::abort()
}

/// Objects with opaque handles, which are reused as soon as they are free.
pub(crate) struct Handles<T> {
    base: usize,
    objects: slab::Slab<Arc<T>>,
}

/// Bytes between two handles: they look like addresses of objects.
const HANDLE_STEP: usize = 64;

impl<T> Handles<T> {
    /// `base` differs between kinds of objects, so that a handle of the wrong kind is invalid.
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
