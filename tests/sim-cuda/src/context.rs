//! Contexts: `cuCtx*`, `cuDevicePrimaryCtx*`.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use slab::Slab;

use crate::abi::{Out, driver_api};
use crate::driver::{Driver, driver, fresh_id};
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
    primary: bool,
    flags: c_uint,
    retained: u32,
    live: Option<Arc<Context>>,
}

/// All contexts. The first ones are the devices' primary contexts, whose handles stay.
pub(crate) struct Contexts {
    slots: Slab<Slot>,
}

const HANDLE_BASE: usize = 0x5200_0000_0000;
const HANDLE_STEP: usize = 64;

impl Contexts {
    pub(crate) fn new(devices: usize) -> Self {
        let primary = || Slot { primary: true, flags: 0, retained: 0, live: None };
        Contexts { slots: (0..devices).map(|device| (device, primary())).collect() }
    }

    fn handle(key: usize) -> usize {
        HANDLE_BASE + HANDLE_STEP * (key + 1)
    }

    fn key(&self, handle: usize) -> Option<usize> {
        let offset = handle.checked_sub(HANDLE_BASE)?;
        let key = (offset % HANDLE_STEP == 0).then_some(offset / HANDLE_STEP)?.checked_sub(1)?;
        self.slots.contains(key).then_some(key)
    }

    fn get(&self, handle: usize) -> Outcome<Arc<Context>> {
        let key = self.key(handle).ok_or(Error::INVALID_CONTEXT)?;
        self.slots[key].live.clone().ok_or(Error::CONTEXT_IS_DESTROYED)
    }

    fn primary(&mut self, device: c_int) -> Outcome<&mut Slot> {
        usize::try_from(device)
            .ok()
            .and_then(|key| self.slots.get_mut(key))
            .filter(|slot| slot.primary)
            .ok_or(Error::INVALID_DEVICE)
    }
}

impl Context {
    fn begin(driver: &Driver, handle: usize, device: c_int) -> Arc<Context> {
        let id = fresh_id();
        let legacy_queue = driver.scheduler.open(id, QueueKind::Legacy);
        Arc::new(Context { handle, id, device, legacy_queue })
    }

    /// Whether it has not been destroyed.
    pub(crate) fn is_alive(&self) -> bool {
        driver().is_ok_and(|driver| driver.contexts.lock().get(self.handle).is_ok_and(|live| live.id == self.id))
    }

    /// An error if it has been destroyed.
    pub(crate) fn check(&self) -> Outcome {
        if self.is_alive() { Ok(()) } else { Err(Error::CONTEXT_IS_DESTROYED) }
    }

    /// Ends everything that belongs to it. The caller has taken it out of the table, with the lock released since.
    fn end(&self, driver: &Driver) {
        driver.scheduler.drop_context(self.id);
        let ranges = driver.space.write().remove_of_context(self.id);
        drop(ranges);
    }
}

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn top() -> Option<usize> {
    STACK.with_borrow(|stack| stack.last().copied())
}

/// The calling thread's context.
pub(crate) fn current() -> Outcome<Arc<Context>> {
    let driver = driver()?;
    driver.contexts.lock().get(top().ok_or(Error::INVALID_CONTEXT)?)
}

/// The context that a handle names; null is the current one.
fn named(handle: usize) -> Outcome<Arc<Context>> {
    if handle == 0 { current() } else { driver()?.contexts.lock().get(handle) }
}

fn push(handle: usize) -> Outcome {
    driver()?.contexts.lock().get(handle)?;
    STACK.with_borrow_mut(|stack| stack.push(handle));
    Ok(())
}

fn create(device: c_int, flags: c_uint) -> Outcome<usize> {
    let driver = driver()?;
    driver.device(device)?;
    let mut contexts = driver.contexts.lock();
    let entry = contexts.slots.vacant_entry();
    let handle = Contexts::handle(entry.key());
    let live = Some(Context::begin(driver, handle, device));
    entry.insert(Slot { primary: false, flags, retained: 0, live });
    drop(contexts);
    push(handle)?;
    Ok(handle)
}

/// Ends a primary context as soon as `ends` says so of its slot.
fn end_primary(device: c_int, ends: impl FnOnce(&mut u32) -> Outcome<bool>) -> Outcome {
    let driver = driver()?;
    let mut contexts = driver.contexts.lock();
    let slot = contexts.primary(device)?;
    if !ends(&mut slot.retained)? {
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
    end_primary(device, |retained| {
        *retained = retained.checked_sub(1).ok_or(Error::INVALID_CONTEXT)?;
        Ok(*retained == 0)
    })
}

fn reset_primary(device: c_int) -> Outcome {
    end_primary(device, |retained| {
        *retained = 0;
        Ok(true)
    })
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

    13000 cuCtxCreate: fn cuCtxCreate_v4(context: Out<usize>, _parameters: *const c_void, flags: c_uint, device: c_int) {
        context.set(create(device, flags)?)
    }

    4000 cuCtxDestroy: fn cuCtxDestroy_v2(context: usize) {
        let driver = driver()?;
        let mut contexts = driver.contexts.lock();
        let key = contexts.key(context).ok_or(Error::INVALID_CONTEXT)?;
        if contexts.slots[key].primary {
            return Err(Error::INVALID_CONTEXT);
        }
        let ended = contexts.slots.remove(key).live;
        drop(contexts);
        STACK.with_borrow_mut(|stack| {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        });
        if let Some(context) = ended {
            context.end(driver);
        }
        Ok(())
    }

    4000 cuCtxPushCurrent: fn cuCtxPushCurrent_v2(context: usize) {
        push(context)
    }

    4000 cuCtxPopCurrent: fn cuCtxPopCurrent_v2(context: Out<usize>) {
        driver()?;
        let popped = STACK.with_borrow_mut(Vec::pop).ok_or(Error::INVALID_CONTEXT)?;
        context.set_if_asked(popped);
        Ok(())
    }

    4000 cuCtxSetCurrent: fn cuCtxSetCurrent(context: usize) {
        let driver = driver()?;
        if context != 0 {
            driver.contexts.lock().get(context)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    }

    4000 cuCtxGetCurrent: fn cuCtxGetCurrent(context: Out<usize>) {
        driver()?;
        context.set(top().unwrap_or(0))
    }

    2000 cuCtxGetDevice: fn cuCtxGetDevice(device: Out<c_int>) {
        device.set(current()?.device)
    }

    13000 cuCtxGetDevice: fn cuCtxGetDevice_v2(device: Out<c_int>, context: usize) {
        device.set(named(context)?.device)
    }

    12000 cuCtxGetId: fn cuCtxGetId(context: usize, id: Out<u64>) {
        id.set(named(context)?.id)
    }

    7000 cuCtxGetFlags: fn cuCtxGetFlags(flags: Out<c_uint>) {
        let context = current()?;
        let contexts = driver()?.contexts.lock();
        let slot = contexts.key(context.handle).and_then(|key| contexts.slots.get(key));
        flags.set(slot.ok_or(Error::INVALID_CONTEXT)?.flags)
    }

    3020 cuCtxGetApiVersion: fn cuCtxGetApiVersion(context: usize, version: Out<c_uint>) {
        named(context)?;
        version.set(3020)
    }

    2000 cuCtxSynchronize: fn cuCtxSynchronize() {
        let context = current()?;
        stream::synchronize_context(&context)
    }

    4000 cuCtxEnablePeerAccess: fn cuCtxEnablePeerAccess(peer: usize, _flags: c_uint) {
        if named(peer)?.device == current()?.device {
            return Err(Error::INVALID_DEVICE);
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
