//! Each thread's current device and last error.

use std::cell::Cell;
use std::ffi::c_int;

use crate::context::{CONTEXTS, Context, Contexts, with_stack};
use crate::device;
use crate::driver::initialise;
use crate::error::{Error, Outcome};

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
    static LAST_ERROR: Cell<c_int> = const { Cell::new(0) };
}

/// Records the result of a call.
pub(crate) fn note(code: c_int) -> c_int {
    LAST_ERROR.set(code);
    code
}

pub(crate) fn take_error() -> c_int {
    LAST_ERROR.replace(0)
}

pub(crate) fn peek_error() -> c_int {
    LAST_ERROR.get()
}

/// Initialises the library, as every call does.
pub(crate) fn begin() -> Outcome {
    initialise()
}

pub(crate) fn device() -> Outcome<c_int> {
    begin()?;
    Ok(DEVICE.get())
}

pub(crate) fn set_device(ordinal: c_int) -> Outcome {
    begin()?;
    device::get(ordinal)?;
    DEVICE.set(ordinal);
    Ok(())
}

/// Makes the context of the thread's device current, for the calls below HIP. This activates the device.
pub(crate) fn enter() -> Outcome {
    let ordinal = device()?;
    let handle = Contexts::handle(ordinal as usize);
    let mut contexts = CONTEXTS.get()?.lock();
    let slot = contexts.primary(ordinal)?;
    if slot.live.is_none() {
        slot.live = Some(Context::begin(handle, ordinal)?);
        slot.retained = 1;
    }
    drop(contexts);
    with_stack(|stack| {
        stack.clear();
        stack.push(handle);
    })
}

pub(crate) fn is_active(ordinal: c_int) -> Outcome<bool> {
    begin()?;
    Ok(CONTEXTS.get()?.lock().primary(ordinal)?.live.is_some())
}

/// Converts the result of a function below HIP.
pub(crate) fn below(code: c_int) -> Outcome {
    if code == 0 { Ok(()) } else { Err(Error(code)) }
}
