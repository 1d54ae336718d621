//! Contexts: `cuCtx*`, `cuDevicePrimaryCtx*`.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use crate::abi::{Out, driver_api};
use crate::capture;
use crate::driver::{Driver, crash, driver, fresh_id};
use crate::error::{Error, Outcome};
use crate::schedule::{QueueId, QueueKind};
use crate::stream;

/// A context's life from creation to destruction. The next life of the same handle is another value.
pub(crate) struct Context {
    pub(crate) handle: usize,
    /// Never reused, unlike the handle.
    pub(crate) id: u64,
    pub(crate) device: c_int,
    pub(crate) legacy_queue: QueueId,
}

struct Slot {
    device: c_int,
    primary: bool,
    flags: c_uint,
    retained: u32,
    live: Option<Arc<Context>>,
}

/// All contexts there are and were. The first ones are the devices' primary contexts, whose handles stay; the handle of
/// another one is reused once it is destroyed.
pub(crate) struct Contexts {
    slots: Vec<Slot>,
}

const HANDLE_BASE: usize = 0x5400_0000_0000;
const HANDLE_STEP: usize = 64;

impl Contexts {
    pub(crate) fn new(devices: usize) -> Self {
        let primary = |device| Slot { device: device as c_int, primary: true, flags: 0, retained: 0, live: None };
        Contexts { slots: (0..devices).map(primary).collect() }
    }

    fn handle(key: usize) -> usize {
        HANDLE_BASE + HANDLE_STEP * (key + 1)
    }

    /// The place of a handle that was given out, whether or not its context is still there.
    fn slot(&mut self, handle: usize) -> &mut Slot {
        let offset = handle.wrapping_sub(HANDLE_BASE);
        let key = offset.is_multiple_of(HANDLE_STEP).then(|| (offset / HANDLE_STEP).wrapping_sub(1));
        match key.and_then(|key| self.slots.get_mut(key)) {
            Some(slot) => slot,
            None => crash("context", handle),
        }
    }

    fn get(&mut self, handle: usize) -> Outcome<Arc<Context>> {
        self.slot(handle).live.clone().ok_or(Error::CONTEXT_IS_DESTROYED)
    }

    fn primary(&mut self, device: c_int) -> Outcome<&mut Slot> {
        usize::try_from(device)
            .ok()
            .and_then(|key| self.slots.get_mut(key))
            .filter(|slot| slot.primary)
            .ok_or(Error::INVALID_DEVICE)
    }
}

/// What became of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Alive,
    Destroyed,
    /// A primary context, or its handle names another context now.
    Replaced,
}

impl Context {
    fn begin(driver: &Driver, handle: usize, device: c_int) -> Arc<Context> {
        let id = fresh_id();
        let legacy_queue = driver.scheduler.open(id, QueueKind::Legacy);
        Arc::new(Context { handle, id, device, legacy_queue })
    }

    pub(crate) fn fate(&self) -> Outcome<Fate> {
        let mut contexts = driver()?.contexts.lock();
        Ok(match &contexts.slot(self.handle).live {
            Some(live) if live.id == self.id => Fate::Alive,
            Some(_) => Fate::Replaced,
            None => Fate::Destroyed,
        })
    }

    pub(crate) fn is_primary(&self) -> Outcome<bool> {
        Ok(driver()?.contexts.lock().slot(self.handle).primary)
    }

    /// Ends everything that belongs to it. The caller has taken it out of the table, with the lock released since.
    fn end(&self, driver: &Driver) {
        driver.scheduler.drop_context(self.id);
        driver.imports.lock().forget_context(self.id);
        let ranges = driver.space.write().remove_of_context(self.id);
        drop(ranges);
    }
}

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's stack of contexts. A thread that ends has none any more, nor has a process that exits: the driver
/// is gone then.
fn with_stack<T>(body: impl FnOnce(&mut Vec<usize>) -> T) -> Outcome<T> {
    STACK.try_with(|stack| body(&mut stack.borrow_mut())).map_err(|_| Error::DEINITIALIZED)
}

fn top() -> Outcome<Option<usize>> {
    with_stack(|stack| stack.last().copied())
}

/// The calling thread's context.
pub(crate) fn current() -> Outcome<Arc<Context>> {
    let driver = driver()?;
    driver.contexts.lock().get(top()?.ok_or(Error::INVALID_CONTEXT)?)
}

/// An error if the calling thread's context has been destroyed; having none is no error.
pub(crate) fn check_current() -> Outcome {
    match top()? {
        Some(handle) => driver()?.contexts.lock().get(handle).map(drop),
        None => Ok(()),
    }
}

/// The context that a handle names; null is the current one.
fn named(handle: usize) -> Outcome<Arc<Context>> {
    if handle == 0 { current() } else { driver()?.contexts.lock().get(handle) }
}

/// The device of the context that a handle names, which may be gone; null is the current one.
fn device_of(handle: usize) -> Outcome<c_int> {
    let driver = driver()?;
    let handle = if handle == 0 { top()?.ok_or(Error::INVALID_CONTEXT)? } else { handle };
    Ok(driver.contexts.lock().slot(handle).device)
}

/// Makes a context current that was given out once; the driver does not mind that it is gone.
fn push(handle: usize) -> Outcome {
    let driver = driver()?;
    if handle == 0 {
        return Err(Error::INVALID_VALUE);
    }
    driver.contexts.lock().slot(handle);
    with_stack(|stack| stack.push(handle))
}

fn create(device: c_int, flags: c_uint) -> Outcome<usize> {
    let driver = driver()?;
    driver.device(device)?;
    let mut contexts = driver.contexts.lock();
    let free = contexts.slots.iter().position(|slot| !slot.primary && slot.live.is_none());
    let key = free.unwrap_or(contexts.slots.len());
    let handle = Contexts::handle(key);
    let live = Some(Context::begin(driver, handle, device));
    let slot = Slot { device, primary: false, flags, retained: 0, live };
    match contexts.slots.get_mut(key) {
        Some(place) => *place = slot,
        None => contexts.slots.push(slot),
    }
    drop(contexts);
    push(handle)?;
    Ok(handle)
}

fn synchronize(context: &Context) -> Outcome {
    capture::context_wait(context.id)?;
    stream::synchronize_context(context)
}

/// Ends a primary context as soon as `ends` says so of its slot.
fn end_primary(device: c_int, ends: impl FnOnce(&mut Slot) -> Outcome<bool>) -> Outcome {
    let driver = driver()?;
    let mut contexts = driver.contexts.lock();
    let slot = contexts.primary(device)?;
    if !ends(slot)? {
        return Ok(());
    }
    let ended = slot.live.take();
    drop(contexts);
    if let Some(context) = ended {
        context.end(driver);
    }
    Ok(())
}

fn release_primary(device: c_int) -> Outcome {
    end_primary(device, |slot| {
        slot.retained = slot.retained.checked_sub(1).ok_or(Error::INVALID_CONTEXT)?;
        if slot.retained == 0 {
            slot.flags = 0;
        }
        Ok(slot.retained == 0)
    })
}

fn reset_primary(device: c_int) -> Outcome {
    // Whoever retained it still has to release it.
    end_primary(device, |_| Ok(true))
}

fn set_primary_flags(device: c_int, flags: c_uint) -> Outcome {
    let driver = driver()?;
    driver.contexts.lock().primary(device)?.flags = flags;
    Ok(())
}

driver_api! {
    7000 cuDevicePrimaryCtxRetain: fn cuDevicePrimaryCtxRetain(context: Out<usize>, device: c_int) {
        if context.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let driver = driver()?;
        let mut contexts = driver.contexts.lock();
        let slot = contexts.primary(device)?;
        let handle = Contexts::handle(device as usize);
        slot.live.get_or_insert_with(|| Context::begin(driver, handle, device));
        slot.retained += 1;
        context.set(handle)
    }

    7000 cuDevicePrimaryCtxRelease: fn cuDevicePrimaryCtxRelease(device: c_int) {
        release_primary(device)
    }

    11000 cuDevicePrimaryCtxRelease: fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        release_primary(device)
    }

    7000 cuDevicePrimaryCtxReset: fn cuDevicePrimaryCtxReset(device: c_int) {
        reset_primary(device)
    }

    11000 cuDevicePrimaryCtxReset: fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        reset_primary(device)
    }

    7000 cuDevicePrimaryCtxSetFlags: fn cuDevicePrimaryCtxSetFlags(device: c_int, flags: c_uint) {
        set_primary_flags(device, flags)
    }

    11000 cuDevicePrimaryCtxSetFlags: fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {
        set_primary_flags(device, flags)
    }

    7000 cuDevicePrimaryCtxGetState: fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let driver = driver()?;
        let mut contexts = driver.contexts.lock();
        let slot = contexts.primary(device)?;
        flags.set(slot.flags)?;
        active.set(c_int::from(slot.live.is_some()))
    }

    3020 cuCtxCreate: fn cuCtxCreate_v2(context: Out<usize>, flags: c_uint, device: c_int) {
        context.set(create(device, flags)?)
    }

    11040 cuCtxCreate: fn cuCtxCreate_v3(context: Out<usize>, _affinity: *const c_void, _count: c_int, flags: c_uint, device: c_int) {
        context.set(create(device, flags)?)
    }

    12050 cuCtxCreate: fn cuCtxCreate_v4(context: Out<usize>, _parameters: *const c_void, flags: c_uint, device: c_int) {
        context.set(create(device, flags)?)
    }

    4000 cuCtxDestroy: fn cuCtxDestroy_v2(context: usize) {
        let driver = driver()?;
        if context == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let mut contexts = driver.contexts.lock();
        let slot = contexts.slot(context);
        if slot.primary {
            return Err(Error::INVALID_CONTEXT);
        }
        let ended = slot.live.take().ok_or(Error::CONTEXT_IS_DESTROYED)?;
        drop(contexts);
        with_stack(|stack| {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        })?;
        ended.end(driver);
        Ok(())
    }

    4000 cuCtxPushCurrent: fn cuCtxPushCurrent_v2(context: usize) {
        push(context)
    }

    4000 cuCtxPopCurrent: fn cuCtxPopCurrent_v2(context: Out<usize>) {
        driver()?;
        let popped = with_stack(Vec::pop)?.ok_or(Error::INVALID_CONTEXT)?;
        context.set_if_asked(popped);
        Ok(())
    }

    4000 cuCtxSetCurrent: fn cuCtxSetCurrent(context: usize) {
        let driver = driver()?;
        if context != 0 {
            driver.contexts.lock().slot(context);
        }
        with_stack(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        })
    }

    4000 cuCtxGetCurrent: fn cuCtxGetCurrent(context: Out<usize>) {
        driver()?;
        context.set(top()?.unwrap_or(0))
    }

    2000 cuCtxGetDevice: fn cuCtxGetDevice(device: Out<c_int>) {
        device.set(device_of(0)?)
    }

    13000 cuCtxGetDevice: fn cuCtxGetDevice_v2(device: Out<c_int>, context: usize) {
        device.set(device_of(context)?)
    }

    12000 cuCtxGetId: fn cuCtxGetId(context: usize, id: Out<u64>) {
        id.set(named(context)?.id)
    }

    7000 cuCtxGetFlags: fn cuCtxGetFlags(flags: Out<c_uint>) {
        let context = current()?;
        flags.set(driver()?.contexts.lock().slot(context.handle).flags)
    }

    3020 cuCtxGetApiVersion: fn cuCtxGetApiVersion(context: usize, version: Out<c_uint>) {
        named(context)?;
        version.set(3020)
    }

    2000 cuCtxSynchronize: fn cuCtxSynchronize() {
        synchronize(&*current()?)
    }

    13000 cuCtxSynchronize: fn cuCtxSynchronize_v2(context: usize) {
        synchronize(&*named(context)?)
    }

    4000 cuCtxEnablePeerAccess: fn cuCtxEnablePeerAccess(peer: usize, _flags: c_uint) {
        if named(peer)?.device == current()?.device {
            return Err(Error::PEER_ACCESS_UNSUPPORTED);
        }
        Ok(())
    }

    4000 cuCtxDisablePeerAccess: fn cuCtxDisablePeerAccess(peer: usize) {
        named(peer)?;
        current()?;
        Ok(())
    }

    5050 cuCtxGetStreamPriorityRange: fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        current()?;
        least.set_if_asked(0);
        greatest.set_if_asked(stream::GREATEST_PRIORITY);
        Ok(())
    }
}
