//! Contexts, and each thread's stack of current ones.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::{AfterInit, crash, fresh_id};
use crate::error::{Error, Outcome};
use crate::schedule::{QueueId, QueueKind, SCHEDULER};
use crate::settings::Settings;

/// The life of a context, from creation to destruction. The next context with the same handle is another value.
pub(crate) struct Context {
    pub(crate) handle: usize,
    /// Never reused, unlike the handle.
    pub(crate) id: u64,
    pub(crate) device: c_int,
    pub(crate) legacy_queue: QueueId,
}

/// The entry of a handle.
pub(crate) struct Slot {
    pub(crate) device: c_int,
    pub(crate) primary: bool,
    pub(crate) flags: c_uint,
    pub(crate) retained: u32,
    pub(crate) live: Option<Arc<Context>>,
}

/// All contexts that exist or existed. The first ones are the devices' primary contexts, whose handles stay. Other
/// handles are reused after the context is destroyed.
pub(crate) struct Contexts {
    pub(crate) slots: Vec<Slot>,
}

pub(crate) static CONTEXTS: AfterInit<Mutex<Contexts>> =
    AfterInit::new(|| Mutex::new(Contexts::new(Settings::get().visible.len())));

const HANDLE_BASE: usize = 0x5400_0000_0000;
const HANDLE_STEP: usize = 64;

impl Contexts {
    fn new(devices: usize) -> Self {
        let primary = |device| Slot { device: device as c_int, primary: true, flags: 0, retained: 0, live: None };
        Contexts { slots: (0..devices).map(primary).collect() }
    }

    pub(crate) fn handle(key: usize) -> usize {
        HANDLE_BASE + HANDLE_STEP * (key + 1)
    }

    /// Returns the index of a handle that was returned before, whether or not its context exists.
    pub(crate) fn slot(&mut self, handle: usize) -> &mut Slot {
        let offset = handle.wrapping_sub(HANDLE_BASE);
        let key = offset.is_multiple_of(HANDLE_STEP).then(|| (offset / HANDLE_STEP).wrapping_sub(1));
        match key.and_then(|key| self.slots.get_mut(key)) {
            Some(slot) => slot,
            None => crash("context", handle),
        }
    }

    pub(crate) fn get(&mut self, handle: usize) -> Outcome<Arc<Context>> {
        self.slot(handle).live.clone().ok_or(Error::CONTEXT_IS_DESTROYED)
    }

    pub(crate) fn primary(&mut self, device: c_int) -> Outcome<&mut Slot> {
        usize::try_from(device)
            .ok()
            .and_then(|key| self.slots.get_mut(key))
            .filter(|slot| slot.primary)
            .ok_or(Error::INVALID_DEVICE)
    }
}

/// The state of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextState {
    Alive,
    Destroyed,
    /// A primary context, or another context has its handle now.
    Replaced,
}

impl Context {
    pub(crate) fn begin(handle: usize, device: c_int) -> Outcome<Arc<Context>> {
        let id = fresh_id();
        let legacy_queue = SCHEDULER.get()?.open(id, QueueKind::Legacy);
        Ok(Arc::new(Context { handle, id, device, legacy_queue }))
    }

    pub(crate) fn state(&self) -> Outcome<ContextState> {
        let mut contexts = CONTEXTS.get()?.lock();
        Ok(match &contexts.slot(self.handle).live {
            Some(live) if live.id == self.id => ContextState::Alive,
            Some(_) => ContextState::Replaced,
            None => ContextState::Destroyed,
        })
    }

    pub(crate) fn is_primary(&self) -> Outcome<bool> {
        Ok(CONTEXTS.get()?.lock().slot(self.handle).primary)
    }
}

/// Fails if a kernel has faulted, in whichever context of the process.
pub(crate) fn check_faults() -> Outcome {
    SCHEDULER.get()?.check()
}

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Gives access to the calling thread's stack of contexts. An ending thread has none: the driver is deinitialized then.
pub(crate) fn with_stack<T>(body: impl FnOnce(&mut Vec<usize>) -> T) -> Outcome<T> {
    STACK.try_with(|stack| body(&mut stack.borrow_mut())).map_err(|_| Error::DEINITIALIZED)
}

/// Returns the handle of the calling thread's context.
pub(crate) fn top() -> Outcome<Option<usize>> {
    with_stack(|stack| stack.last().copied())
}

/// Returns the calling thread's context.
///
/// # Errors
/// There is none, it is destroyed, or a kernel has faulted.
pub(crate) fn current() -> Outcome<Arc<Context>> {
    let context = CONTEXTS.get()?.lock().get(top()?.ok_or(Error::INVALID_CONTEXT)?)?;
    check_faults()?;
    Ok(context)
}

/// Fails if the calling thread's context has been destroyed. Having no context is no error.
pub(crate) fn check_current() -> Outcome {
    match top()? {
        Some(handle) => CONTEXTS.get()?.lock().get(handle).map(drop),
        None => Ok(()),
    }
}
