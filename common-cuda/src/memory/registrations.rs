//! Host memory registered with the driver, once a context is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use slab::Slab;

use crate::context::Context;
use crate::driver::{Failure, FailureKind};

/// The ranges that are registered, or wait for the first context.
#[derive(Default)]
pub(crate) struct Registrations {
    /// True if some range waits for [`settle`](Self::settle).
    waiting: AtomicBool,
    /// The id of the context that ranges are registered in; 0 before there is a context.
    home: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    home: Option<Arc<Context>>,
    ranges: Slab<Range>,
}

struct Range {
    address: usize,
    len: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// Cableway registered the range in `home`.
    Registered,
    /// Another owner registered it and will unregister it, or the driver refused. Copies use unregistered memory.
    Left,
}

impl Registrations {
    /// Queues a range.
    ///
    /// # Safety
    /// The range stays mapped until the registration is dropped.
    unsafe fn add(self: &Arc<Self>, address: *mut u8, len: usize) -> Registered {
        let range = Range { address: address.expose_provenance(), len, state: State::Waiting };
        let key = self.inner.lock().ranges.insert(range);
        self.waiting.store(true, Ordering::Release);
        Registered { all: self.clone(), key }
    }

    /// Registers all waiting ranges, now that `context` is in use. A registration is valid in all contexts, but ends
    /// with the context in which it was made.
    #[inline]
    pub(crate) fn settle(&self, context: &Arc<Context>) {
        if !self.waiting.load(Ordering::Acquire) && self.home.load(Ordering::Relaxed) == context.id {
            return;
        }
        self.settle_slowly(context);
    }

    /// Checks whether Cableway has registered the whole range with the driver.
    pub(crate) fn holds(&self, address: usize, len: usize) -> bool {
        let inner = self.inner.lock();
        let holds = |range: &Range| {
            range.state == State::Registered
                && address
                    .checked_sub(range.address)
                    .is_some_and(|skipped| skipped.checked_add(len).is_some_and(|end| end <= range.len))
        };
        inner.ranges.iter().any(|(_, range)| holds(range)) && inner.home.as_ref().is_some_and(|home| home.alive())
    }

    #[cold]
    fn settle_slowly(&self, context: &Arc<Context>) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let home = match &inner.home {
            Some(home) if home.alive() => home.clone(),
            _ => {
                for (_, range) in &mut inner.ranges {
                    range.state = State::Waiting;
                }
                self.home.store(context.id, Ordering::Relaxed);
                inner.home.insert(context.clone()).clone()
            }
        };
        for (_, range) in inner.ranges.iter_mut().filter(|(_, range)| range.state == State::Waiting) {
            range.state = register(&home, range.address, range.len);
        }
        self.waiting.store(false, Ordering::Release);
    }
}

fn register(home: &Context, address: usize, len: usize) -> State {
    let registered = home.enter().and_then(|_scope| {
        // SAFETY: the range is mapped until it is unregistered, by the promise made to `register_host`.
        unsafe { home.driver.register_host(std::ptr::with_exposed_provenance_mut(address), len) }
    });
    match registered {
        Ok(()) => State::Registered,
        Err(Failure { kind: FailureKind::AlreadyRegistered, .. }) => State::Left,
        Err(failure) => {
            cableway_base::warn_once(&format!("register/{}", failure.code), || {
                format!(
                    "{len} bytes of internal buffers cannot be registered with the device driver ({}); copies from and \
                     to device memory will be slower",
                    home.driver.reason(failure)
                )
            });
            State::Left
        }
    }
}

/// Registers host memory, in a process that may have devices.
#[derive(Clone, Default)]
pub(crate) struct Registrar(Vec<Arc<Registrations>>);

impl Registrar {
    /// Creates the registrar for the vendors of these registrations.
    pub(crate) fn new(vendors: Vec<Arc<Registrations>>) -> Registrar {
        Registrar(vendors)
    }

    /// As [`Devices::register_host`](crate::Devices::register_host).
    ///
    /// # Safety
    /// The range stays mapped until the registration is dropped.
    pub(crate) unsafe fn register(&self, address: *mut u8, len: usize) -> HostRegistration {
        if len == 0 {
            return HostRegistration { ranges: Vec::new() };
        }
        // SAFETY: the caller's promise.
        HostRegistration { ranges: self.0.iter().map(|vendor| unsafe { vendor.add(address, len) }).collect() }
    }
}

/// A host range that is registered with the driver as soon as a device is in use, and again if the context of the
/// registration is destroyed. Dropping it unregisters the range; no copy from or to the range may be under way then.
///
/// If the driver refuses, copies use unregistered memory, which is slower. There is one warning.
#[must_use = "dropping it unregisters the range"]
pub struct HostRegistration {
    /// One registration for each vendor.
    ranges: Vec<Registered>,
}

impl HostRegistration {
    /// Checks whether Cableway has registered the range with the driver.
    pub fn registered(&self) -> bool {
        self.ranges.iter().any(Registered::is_registered)
    }
}

impl std::fmt::Debug for HostRegistration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostRegistration").field("registered", &self.registered()).finish()
    }
}

/// One range registered with one vendor's driver. Dropping it unregisters the range.
struct Registered {
    all: Arc<Registrations>,
    key: usize,
}

impl Registered {
    fn is_registered(&self) -> bool {
        let inner = self.all.inner.lock();
        inner.home.as_ref().is_some_and(|home| home.alive())
            && inner.ranges.get(self.key).is_some_and(|range| range.state == State::Registered)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut inner = self.all.inner.lock();
        let Some(range) = inner.ranges.try_remove(self.key).filter(|range| range.state == State::Registered) else {
            return;
        };
        let Some(home) = &inner.home else { return };
        // A destroyed context has released the registration.
        let Ok(_scope) = home.enter() else { return };
        // SAFETY: we registered it, in a context that still exists.
        match unsafe { home.driver.unregister_host(std::ptr::with_exposed_provenance_mut(range.address)) } {
            Ok(()) | Err(Failure { kind: FailureKind::NotRegistered, .. }) => {}
            Err(failure) if failure.context_gone() => {}
            Err(failure) => log::warn!("unregistering {} bytes: {}", range.len, home.driver.reason(failure)),
        }
    }
}
