//! Host memory registered with the driver, once a context is in use.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use slab::Slab;

use super::context::Context;
use super::status::Failure;
use crate::vendor::VendorRegistration;

/// The registration holds in every context of the process, and kernels reach the memory.
const FLAGS: c_uint =
    cudarc::driver::sys::CU_MEMHOSTREGISTER_PORTABLE | cudarc::driver::sys::CU_MEMHOSTREGISTER_DEVICEMAP;

/// The ranges that are, or are to be, registered.
#[derive(Default)]
pub(super) struct Registrations {
    /// Some range waits for [`settle`](Self::settle).
    waiting: AtomicBool,
    /// The id of the context that ranges are registered in; 0 before there is one.
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
    /// Registered by us in `home`.
    Registered,
    /// Registered by somebody else, whose it is to unregister; or refused, and copied from unregistered.
    Left,
}

impl Registrations {
    /// Queues a range.
    ///
    /// # Safety
    /// The range stays mapped until the registration is dropped.
    pub(super) unsafe fn add(self: &Arc<Self>, address: *mut u8, len: usize) -> Registration {
        let range = Range { address: address as usize, len, state: State::Waiting };
        let key = self.inner.lock().ranges.insert(range);
        self.waiting.store(true, Ordering::Release);
        Registration { all: self.clone(), key }
    }

    /// Registers what is not registered, now that `context` is in use. One registration holds for all contexts, but
    /// goes with the one that it was made in.
    #[inline]
    pub(super) fn settle(&self, context: &Arc<Context>) {
        if !self.waiting.load(Ordering::Acquire) && self.home.load(Ordering::Relaxed) == context.id {
            return;
        }
        self.settle_slowly(context);
    }

    /// Whether the driver has all of a range registered by us at present.
    pub(super) fn holds(&self, address: usize, len: usize) -> bool {
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
        unsafe { home.driver.cuMemHostRegister(address as *mut c_void, len, FLAGS) }
    });
    match registered {
        Ok(()) => State::Registered,
        Err(Failure { code: Failure::ALREADY_REGISTERED, .. }) => State::Left,
        Err(failure) => {
            cableway_base::warn_once(&format!("cuda/register/{}", failure.code), || {
                format!(
                    "{len} bytes of internal buffers cannot be registered with the CUDA driver ({}); copies from and \
                     to device memory will be slower",
                    home.driver.reason(failure)
                )
            });
            State::Left
        }
    }
}

/// One range; dropping it unregisters.
pub(super) struct Registration {
    all: Arc<Registrations>,
    key: usize,
}

impl VendorRegistration for Registration {
    fn registered(&self) -> bool {
        let inner = self.all.inner.lock();
        inner.home.as_ref().is_some_and(|home| home.alive())
            && inner.ranges.get(self.key).is_some_and(|range| range.state == State::Registered)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut inner = self.all.inner.lock();
        let Some(range) = inner.ranges.try_remove(self.key).filter(|range| range.state == State::Registered) else {
            return;
        };
        let Some(home) = &inner.home else { return };
        // A context that is gone has taken the registration with it.
        let Ok(_scope) = home.enter() else { return };
        // SAFETY: we registered it, in a context that still exists.
        match unsafe { home.driver.cuMemHostUnregister(range.address as *mut c_void) } {
            Ok(()) | Err(Failure { code: Failure::NOT_REGISTERED, .. }) => {}
            Err(failure) if failure.context_gone() => {}
            Err(failure) => log::warn!("unregistering {} bytes: {}", range.len, home.driver.reason(failure)),
        }
    }
}

/// Of a range that the parameter `device_register_host` says to leave alone.
pub(super) struct NotWanted;

impl VendorRegistration for NotWanted {
    fn registered(&self) -> bool {
        false
    }
}
