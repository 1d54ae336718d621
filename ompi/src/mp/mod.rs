//! Messages and puts by number, on the host and in the order of streams, for `libcableway_mp.so`: `shim/mp.h`.

mod access;
mod kernel;
mod order;
mod post;
mod window;
mod write;

use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

use cableway_common_cuda::{HostRegistration, MemoryClass, Vendor};
use cableway_pml::{DeviceRange, Engine, Stream, StreamMessage};

use crate::guard::guarded;
use crate::state;
use crate::streams;

unsafe extern "C" {
    fn shim_mp() -> *const c_void;
}

/// Returns the functions for `libcableway_mp.so`: `struct cableway_mp` of `shim/mp.h`. The library looks this symbol up.
#[unsafe(no_mangle)]
extern "C" fn cableway_mp() -> *const c_void {
    // SAFETY: it returns the address of a constant.
    unsafe { shim_mp() }
}

/// Where a call writes why it failed.
#[repr(C)]
#[derive(Clone, Copy)]
struct Why {
    text: *mut c_char,
    room: usize,
}

impl Why {
    /// Writes what failed. Returns 1.
    ///
    /// # Safety
    /// The text has this room.
    unsafe fn failed(self, what: &dyn std::fmt::Display) -> c_int {
        let text = what.to_string();
        let Some(most) = self.room.checked_sub(1) else { return 1 };
        // A zero within the text would end it.
        let bytes = text.bytes().filter(|&byte| byte != 0).take(most);
        let mut len = 0;
        for byte in bytes {
            // SAFETY: `len` is less than the room.
            unsafe { *self.text.add(len) = byte as c_char };
            len += 1;
        }
        // SAFETY: as above.
        unsafe { *self.text.add(len) = 0 };
        1
    }
}

/// Runs a call that may fail. After a panic anywhere in the engine nothing is called any more.
///
/// # Safety
/// As [`Why::failed`].
unsafe fn answer(why: Why, call: impl FnOnce() -> Result<(), String>) -> c_int {
    let result = guarded(None, || state::engine().is_some().then(call));
    match result {
        Some(Ok(())) => 0,
        // SAFETY: the caller's promise.
        Some(Err(error)) => unsafe { why.failed(&error) },
        // SAFETY: the caller's promise.
        None => unsafe { why.failed(&"the engine has ended, or failed as the log says") },
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// # Safety
/// `why` has `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_prepare(why: *mut c_char, room: usize) -> c_int {
    let call = || {
        let engine = state::engine().and_then(|engine| engine.handle()).ok_or("the engine has ended")?;
        streams::of(&engine).map(drop).map_err(text)
    };
    // SAFETY: the caller's promise.
    unsafe { answer(Why { text: why, room }, call) }
}

/// # Safety
/// `out` is valid, and `why` has `room` bytes. The program's stream exists until `cableway_stream_free`, and until every
/// call on it is done.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_stream_open(
    kind: c_int,
    handle: usize,
    out: *mut *mut Stream,
    why: *mut c_char,
    room: usize,
) -> c_int {
    let call = || {
        let engine = state::engine().and_then(|engine| engine.handle()).ok_or("the engine has ended")?;
        let vendor = if kind == 0 { Vendor::Nvidia } else { Vendor::Amd };
        let streams = streams::of(&engine).map_err(text)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { streams.stream(vendor, handle) }.map_err(text)?;
        // SAFETY: the caller's promise.
        unsafe { *out = Box::into_raw(Box::new(stream)) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { answer(Why { text: why, room }, call) }
}

/// How long [`settle`] waits at most. The default stream may wait for a stream that waits for a message.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits for the default stream's work on device memory, such as a `cudaMemset` that has returned: puts of peers and
/// messages that the host starts have no order with it. The driver completes later synchronous calls on the memory before
/// they return.
fn settle(engine: &Engine, address: *mut c_void, len: u64) {
    let Ok(bytes) = usize::try_from(len) else { return };
    let location = engine.devices().classify(address.cast(), bytes);
    let memory = DeviceRange { address: address.cast(), len: bytes, location };
    let until = Instant::now() + PATIENCE;
    // A destroyed context has nothing to do.
    while location.on_device() && matches!(engine.is_settled(&memory), Ok(false)) {
        if Instant::now() >= until {
            log::warn!(
                "the default stream is busy after {PATIENCE:?}: synchronise it before {len} bytes at {address:p} are \
                 registered, or peers' data may be overwritten"
            );
            return;
        }
        engine.progress();
    }
}

/// Makes host memory known to the drivers. Returns null for other memory.
///
/// # Safety
/// The memory stays mapped until [`cableway_mp_memory_release`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_memory_register(address: *mut c_void, len: u64) -> *mut HostRegistration {
    guarded(std::ptr::null_mut(), || {
        let (Some(engine), Ok(bytes)) = (state::engine(), usize::try_from(len)) else { return std::ptr::null_mut() };
        if engine.devices().classify(address.cast(), bytes).class != MemoryClass::Host {
            settle(engine, address, len);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        Box::into_raw(Box::new(unsafe { engine.devices().register_host(address.cast(), bytes) }))
    })
}

/// # Safety
/// `registration` is from [`cableway_mp_memory_register`], and released only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_memory_release(registration: *mut HostRegistration) {
    // SAFETY: the caller's promise.
    guarded((), || drop(unsafe { Box::from_raw(registration) }));
}

/// Returns whether the CPU can access memory.
#[unsafe(no_mangle)]
extern "C" fn cableway_mp_on_host(address: *const c_void, len: u64) -> bool {
    guarded(false, || {
        let (Some(engine), Ok(bytes)) = (state::engine(), usize::try_from(len)) else { return false };
        engine.devices().classify(address.cast(), bytes).class != MemoryClass::Device
    })
}

/// # Safety
/// `message` is from `cableway_mp_post`, and not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_is_over(message: *const StreamMessage) -> bool {
    // SAFETY: the caller's promise.
    guarded(true, || unsafe { &*message }.is_over())
}

/// Waits on the calling thread until a message is over.
///
/// # Safety
/// As [`cableway_mp_is_over`]; `why` has `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_wait(message: *const StreamMessage, why: *mut c_char, room: usize) -> c_int {
    // SAFETY: the caller's promise, twice.
    unsafe { answer(Why { text: why, room }, || (*message).wait().map(drop).map_err(text)) }
}
