//! Contexts of the program: known by their ids, entered for the length of a few calls, never created.
//!
//! A driver may reuse the handle of a context, but never its id. So everything that is kept for a context is keyed by
//! its id, and the handle is used only while the driver still reports that id for it. `cuCtxDestroy` and
//! `cudaDeviceReset` destroy a context with all of its objects, so those are forgotten without a driver call.

mod primary;

pub(crate) use primary::{Primaries, Primary};

use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::{ContextHandle, Driver, Entered, Event, Failure, FailureKind, Limits};
use crate::error::DeviceError;

/// A context of the program.
pub(crate) struct Context {
    pub(crate) driver: &'static dyn Driver,
    pub(crate) id: u64,
    handle: ContextHandle,
    gone: AtomicBool,
    /// A kernel has faulted, so the context does no more work.
    faulted: AtomicBool,
    /// The driver can query events in their own context only.
    asks_within: AtomicBool,
    limits: OnceLock<Limits>,
}

impl Context {
    /// A context that the driver has just returned for a pointer.
    pub(crate) fn new(driver: &'static dyn Driver, handle: ContextHandle, id: u64) -> Context {
        let (gone, faulted) = (AtomicBool::new(false), AtomicBool::new(false));
        let (asks_within, limits) = (AtomicBool::new(!driver.ids_are_unique()), OnceLock::new());
        Context { driver, id, handle, gone, faulted, asks_within, limits }
    }

    pub(crate) fn has_handle(&self, handle: ContextHandle) -> bool {
        self.handle == handle
    }

    /// Returns false if the context is known to be destroyed. Makes no driver call.
    pub(crate) fn seems_alive(&self) -> bool {
        !self.gone.load(Ordering::Relaxed)
    }

    /// Checks whether the context of this id still exists.
    pub(crate) fn alive(&self) -> bool {
        if !self.seems_alive() {
            return false;
        }
        let alive = self.driver.context_id(self.handle).is_ok_and(|id| id == self.id);
        if !alive {
            self.gone.store(true, Ordering::Relaxed);
        }
        alive
    }

    /// Checks whether the context still works: it exists, and no kernel is known to have faulted there.
    pub(crate) fn works(&self) -> bool {
        !self.faulted.load(Ordering::Relaxed) && self.alive()
    }

    /// Takes note of the end of a query of one of Cableway's own streams, which fails only if the context does.
    ///
    /// # Errors
    /// The context is destroyed, or a kernel has faulted there.
    pub(crate) fn check_query(&self, asked: Result<bool, Failure>) -> Result<(), Failure> {
        match asked {
            Err(failure) if failure.context_gone() => Err(self.note(failure)),
            // What the driver reports of a fault has many codes.
            Err(failure) if failure.kind == FailureKind::Other => {
                self.faulted.store(true, Ordering::Relaxed);
                Err(failure)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check_alive(&self) -> Result<(), Failure> {
        if self.alive() { Ok(()) } else { Err(Failure::CONTEXT_DESTROYED) }
    }

    /// Makes the context current on this thread, in a capture mode in which Cableway's calls cannot invalidate a
    /// capture.
    pub(crate) fn enter(&self) -> Result<Scope, Failure> {
        if !self.seems_alive() {
            return Err(Failure::CONTEXT_DESTROYED);
        }
        match self.driver.enter_alive(self.handle, self.id) {
            Ok(entered) => Ok(Scope { driver: self.driver, entered: Some(entered), _thread: PhantomData }),
            Err(failure) => {
                if failure.kind == FailureKind::ContextDestroyed {
                    self.gone.store(true, Ordering::Relaxed);
                }
                Err(failure)
            }
        }
    }

    /// Checks whether the work that an event follows is done, with any current context or none.
    ///
    /// According to the driver's reference `cuEventQuery` never fails because of the current context, unlike
    /// `cuStreamQuery` and `cuEventRecord`. The runtime's reference (`cudaEventQuery`) allows events of other devices.
    /// If a driver refuses nevertheless, later queries enter the context. That takes as long as a query of unfinished
    /// work.
    pub(crate) fn is_over(&self, event: &Event) -> Result<bool, Failure> {
        // Without ids, only entering a context shows that it is destroyed.
        if self.seems_alive() && !self.asks_within.load(Ordering::Relaxed) {
            match self.driver.is_done_anywhere(self.handle, self.id, event) {
                Ok(answer) => return Ok(answer),
                Err(Failure { kind: FailureKind::InvalidHandle, .. }) => {
                    self.asks_within.store(true, Ordering::Relaxed);
                }
                // The current context may have caused the failure. A failure of the event's own context repeats within
                // it.
                Err(_) => {}
            }
        }
        let _scope = self.enter()?;
        self.driver.is_done(event)
    }

    /// Returns the limits of the context's device, as the driver reports them. The context is current.
    pub(crate) fn limits(&self) -> Limits {
        *self.limits.get_or_init(|| {
            let limits = self.driver.current_device().and_then(|device| self.driver.limits(device));
            limits.unwrap_or_default()
        })
    }

    /// Records that the driver refused a call because the context is destroyed.
    pub(crate) fn note(&self, failure: Failure) -> Failure {
        if failure.context_gone() {
            // Drivers without ids report the end of a context in no other way.
            self.gone.store(true, Ordering::Relaxed);
        }
        failure
    }

    /// Makes an error of a failure in this context.
    pub(crate) fn error(&self, failure: Failure, object: impl Into<String>) -> DeviceError {
        self.driver.error(self.note(failure), object)
    }
}

/// Covers Cableway's driver calls, in a context that it may have made current, until it is dropped. It stays on its
/// thread.
pub(crate) struct Scope {
    driver: &'static dyn Driver,
    /// `None` only during the drop.
    entered: Option<Entered>,
    /// Dropping restores the state of this thread.
    _thread: PhantomData<*mut ()>,
}

impl Scope {
    /// Enters a context that the caller knows to be alive.
    fn enter(driver: &'static dyn Driver, handle: ContextHandle) -> Result<Scope, Failure> {
        Ok(Scope { driver, entered: Some(driver.enter(handle)?), _thread: PhantomData })
    }

    /// For calls that need no current context: the thread keeps its own, and captures are left alone.
    pub(crate) fn without_context(driver: &'static dyn Driver) -> Scope {
        Scope { driver, entered: Some(driver.enter_none()), _thread: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(entered) = self.entered.take() {
            self.driver.leave(entered);
        }
    }
}
