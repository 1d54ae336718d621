//! The parameter table and the counters, which the shim registers with Open MPI.

use std::ffi::{CStr, c_char, c_int};

use cableway_base::Counters;
use cableway_pml::Communicator;

use crate::boundary::Code;
use crate::guard::guarded_read;
use crate::state;

/// # Safety
/// `name` and `value` are valid strings; `reason` is valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_set_parameter(
    name: *const c_char,
    value: *const c_char,
    reason: *mut *const c_char,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    unsafe { *reason = c"an internal error".as_ptr() };
    guarded_read(Code::Internal.negative(), || {
        // SAFETY: as above.
        let (name, value) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(value)) };
        match state::set_parameter(&name.to_string_lossy(), &value.to_string_lossy()) {
            Ok(()) => 0,
            Err(error) => {
                // SAFETY: as above.
                unsafe { *reason = state::leak_c_string(&error.to_string()) };
                Code::BadArgument.negative()
            }
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cableway_set_verbosity(verbosity: c_int) {
    guarded_read((), || state::start_log(verbosity));
}

/// # Safety
/// The out-pointers are valid; what they are set to lives as long as the process.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_parameter_row(
    index: usize,
    name: *mut *const c_char,
    value: *mut *const c_char,
    help: *mut *const c_char,
) -> bool {
    guarded_read(false, || {
        let Some([row_name, row_value, row_help]) = state::parameter_rows().get(index) else { return false };
        // SAFETY: the caller's promise.
        unsafe {
            *name = row_name.as_ptr();
            *value = row_value.as_ptr();
            *help = row_help.as_ptr();
        }
        true
    })
}

/// # Safety
/// The out-pointers are valid; what they are set to lives as long as the process.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_counter_row(index: usize, name: *mut *const c_char, help: *mut *const c_char) -> bool {
    guarded_read(false, || {
        let rows = Counters::default().rows();
        let Some(&(row_name, row_help, _)) = rows.get(index) else { return false };
        // SAFETY: the caller's promise.
        unsafe {
            *name = state::leak_c_string(row_name);
            *help = state::leak_c_string(row_help);
        }
        true
    })
}

#[unsafe(no_mangle)]
extern "C" fn cableway_counter_value(index: usize) -> u64 {
    let value = || Some(state::engine()?.counters().rows().get(index)?.2);
    guarded_read(0, || value().unwrap_or(0))
}

/// # Safety
/// The communicator is live; `posted` and `unexpected` are valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_queue_lengths(communicator: *const Communicator, posted: *mut u32, unexpected: *mut u32) {
    guarded_read((), || {
        // SAFETY: the caller's promise.
        let lengths = unsafe { &*communicator }.queue_lengths();
        // SAFETY: as above.
        unsafe { (*posted, *unexpected) = (lengths.posted as u32, lengths.unexpected as u32) };
    });
}
