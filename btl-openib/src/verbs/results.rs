//! The return values of verbs.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

/// Verbs return 0, the error itself, or -1 with the error in `errno`.
pub(super) fn answer(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}

pub(super) fn made<T>(raw: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}
