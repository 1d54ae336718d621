//! Calls that create, destroy and select contexts: `cuCtx*`, `cuDevicePrimaryCtx*`.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use crate::abi::{Out, driver_api};
use crate::context::{CONTEXTS, Context, Contexts, Slot, current, top, with_stack};
use crate::driver::check_initialised;
use crate::error::{Error, Outcome};
use crate::ipc::IMPORTS;
use crate::schedule::SCHEDULER;
use crate::space::SPACE;
use crate::{capture, device, stream};

/// Returns the context of a handle; null means the current one.
fn named(handle: usize) -> Outcome<Arc<Context>> {
    if handle == 0 { current() } else { CONTEXTS.get()?.lock().get(handle) }
}

/// Returns the device of a handle's context, which may be destroyed; null means the current one.
fn device_of(handle: usize) -> Outcome<c_int> {
    check_initialised()?;
    let handle = if handle == 0 { top()?.ok_or(Error::INVALID_CONTEXT)? } else { handle };
    Ok(CONTEXTS.get()?.lock().slot(handle).device)
}

/// Makes a context current that existed once. The driver accepts it even if it is destroyed.
fn push(handle: usize) -> Outcome {
    check_initialised()?;
    if handle == 0 {
        return Err(Error::INVALID_VALUE);
    }
    CONTEXTS.get()?.lock().slot(handle);
    with_stack(|stack| stack.push(handle))
}

fn create(device: c_int, flags: c_uint) -> Outcome<usize> {
    device::get(device)?;
    let mut contexts = CONTEXTS.get()?.lock();
    let free = contexts.slots.iter().position(|slot| !slot.primary && slot.live.is_none());
    let key = free.unwrap_or(contexts.slots.len());
    let handle = Contexts::handle(key);
    let live = Some(Context::begin(handle, device)?);
    let slot = Slot { device, primary: false, flags, retained: 0, live };
    match contexts.slots.get_mut(key) {
        Some(place) => *place = slot,
        None => contexts.slots.push(slot),
    }
    drop(contexts);
    push(handle)?;
    Ok(handle)
}

/// Destroys everything that belongs to a context. The caller has removed it from the table and released the lock.
fn end(context: &Context) -> Outcome {
    SCHEDULER.get()?.drop_context(context.id);
    IMPORTS.get()?.lock().forget_context(context.id);
    let ranges = SPACE.get()?.write().remove_of_context(context.id);
    drop(ranges);
    Ok(())
}

fn synchronize(context: &Context) -> Outcome {
    capture::context_wait(context.id)?;
    stream::synchronize_context(context)
}

/// Destroys a primary context if `ends` returns true for its slot.
fn end_primary(device: c_int, ends: impl FnOnce(&mut Slot) -> Outcome<bool>) -> Outcome {
    let mut contexts = CONTEXTS.get()?.lock();
    let slot = contexts.primary(device)?;
    if !ends(slot)? {
        return Ok(());
    }
    let ended = slot.live.take();
    drop(contexts);
    if let Some(context) = ended {
        end(&context)?;
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
    // References to the retained contexts must still be released.
    end_primary(device, |_| Ok(true))
}

fn set_primary_flags(device: c_int, flags: c_uint) -> Outcome {
    CONTEXTS.get()?.lock().primary(device)?.flags = flags;
    Ok(())
}

driver_api! {
    7000 cuDevicePrimaryCtxRetain: fn cuDevicePrimaryCtxRetain(context: Out<usize>, device: c_int) {
        if context.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let mut contexts = CONTEXTS.get()?.lock();
        let slot = contexts.primary(device)?;
        let handle = Contexts::handle(device as usize);
        if slot.live.is_none() {
            slot.live = Some(Context::begin(handle, device)?);
        }
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
        let mut contexts = CONTEXTS.get()?.lock();
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
        check_initialised()?;
        if context == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let mut contexts = CONTEXTS.get()?.lock();
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
        end(&ended)
    }

    4000 cuCtxPushCurrent: fn cuCtxPushCurrent_v2(context: usize) {
        push(context)
    }

    4000 cuCtxPopCurrent: fn cuCtxPopCurrent_v2(context: Out<usize>) {
        check_initialised()?;
        let popped = with_stack(Vec::pop)?.ok_or(Error::INVALID_CONTEXT)?;
        context.set_if_asked(popped);
        Ok(())
    }

    4000 cuCtxSetCurrent: fn cuCtxSetCurrent(context: usize) {
        check_initialised()?;
        if context != 0 {
            CONTEXTS.get()?.lock().slot(context);
        }
        with_stack(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        })
    }

    4000 cuCtxGetCurrent: fn cuCtxGetCurrent(context: Out<usize>) {
        check_initialised()?;
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
        flags.set(CONTEXTS.get()?.lock().slot(context.handle).flags)
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
