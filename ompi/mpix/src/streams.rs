//! Streams, and communicators with streams.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::Handle;
use crate::absent::fail;
use crate::component::component;

/// # Safety
/// As MPI asks of the program, here and below: handles are of Open MPI, and pointers null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIX_Info_set_hex(info: Handle, key: *const c_char, value: *const c_void, size: c_int) -> c_int {
    match component() {
        // SAFETY: the caller's promise.
        Some(component) => unsafe { (component.info_set_hex)(info, key, value, size) },
        None => fail(c"MPIX_Info_set_hex", null_mut()),
    }
}

/// # Safety
/// As [`MPIX_Info_set_hex`]. The stream of the device exists until the stream is freed, and until everything that was
/// enqueued is done.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIX_Stream_create(info: Handle, stream: *mut Handle) -> c_int {
    match component() {
        // SAFETY: the caller's promise.
        Some(component) => unsafe { (component.stream_create)(info, stream) },
        None => fail(c"MPIX_Stream_create", null_mut()),
    }
}

/// # Safety
/// As [`MPIX_Info_set_hex`].
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIX_Stream_free(stream: *mut Handle) -> c_int {
    match component() {
        // SAFETY: the caller's promise.
        Some(component) => unsafe { (component.stream_free)(stream) },
        None => fail(c"MPIX_Stream_free", null_mut()),
    }
}

/// # Safety
/// As [`MPIX_Info_set_hex`].
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIX_Stream_comm_create(communicator: Handle, stream: Handle, out: *mut Handle) -> c_int {
    let call = c"MPIX_Stream_comm_create";
    match component() {
        // SAFETY: the caller's promise; the array has one entry.
        Some(component) => unsafe {
            (component.communicator_create)(call.as_ptr(), communicator, 1, &raw const stream, out)
        },
        None => fail(call, communicator),
    }
}

/// # Safety
/// As [`MPIX_Info_set_hex`]. The array has `count` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIX_Stream_comm_create_multiplex(
    communicator: Handle,
    count: c_int,
    streams: *const Handle,
    out: *mut Handle,
) -> c_int {
    let call = c"MPIX_Stream_comm_create_multiplex";
    match component() {
        // SAFETY: the caller's promise.
        Some(component) => unsafe { (component.communicator_create)(call.as_ptr(), communicator, count, streams, out) },
        None => fail(call, communicator),
    }
}

/// # Safety
/// As [`MPIX_Info_set_hex`].
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIX_Comm_get_stream(communicator: Handle, index: c_int, stream: *mut Handle) -> c_int {
    match component() {
        // SAFETY: the caller's promise.
        Some(component) => unsafe { (component.communicator_stream)(communicator, index, stream) },
        None => fail(c"MPIX_Comm_get_stream", communicator),
    }
}
