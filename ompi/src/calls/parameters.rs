//! The parameter table, for whoever registers it with the host.

use std::ffi::{CStr, c_char, c_int};

use crate::boundary::{Code, guarded};
use crate::state;

/// # Safety
/// Two valid strings.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_set_parameter(name: *const c_char, value: *const c_char) -> c_int {
    guarded(Code::Internal.refused(), || {
        state::start_log();
        // SAFETY: the caller's promise.
        let (name, value) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(value)) };
        match state::set_parameter(&name.to_string_lossy(), &value.to_string_lossy()) {
            Ok(()) => 0,
            Err(error) => {
                log::error!("{error}");
                Code::BadArgument.refused()
            }
        }
    })
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
    guarded(false, || {
        let Some([row_name, row_value, row_help]) = state::rows().get(index) else { return false };
        // SAFETY: the caller's promise.
        unsafe {
            *name = row_name.as_ptr();
            *value = row_value.as_ptr();
            *help = row_help.as_ptr();
        }
        true
    })
}
