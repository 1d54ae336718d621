//! What a call of the program returns.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cableway_ompi_find::say;

/// `MP_SUCCESS`
pub(crate) const SUCCESS: c_int = 0;
/// `MP_FAILURE`
pub(crate) const FAILURE: c_int = 1;

/// Runs a call. Writes why it failed.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<(), String>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(error)) => {
            say(&format!("libcableway_mp: {name}: {error}"));
            FAILURE
        }
        Err(_) => FAILURE,
    }
}

/// Returns what the program's pointer points to.
///
/// # Safety
/// The pointer is null, or valid and not aliased during the call.
pub(crate) unsafe fn given<'p, T>(pointer: *mut T, name: &str) -> Result<&'p mut T, String> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| format!("{name} is NULL"))
}

/// Returns an array of the program.
///
/// # Safety
/// The array has `count` entries, or the pointer is null.
pub(crate) unsafe fn array<'p, T>(pointer: *mut T, count: u32, name: &str) -> Result<&'p mut [T], String> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(format!("{name} is NULL, but its count is {count}")),
        // SAFETY: the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count as usize) }),
    }
}

/// Returns a length that is not negative.
pub(crate) fn length(size: c_int, name: &str) -> Result<u64, String> {
    u64::try_from(size).map_err(|_| format!("{name} is {size}: it must not be negative"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_answer_with_libmps_codes_and_survive_panics() {
        assert_eq!(call("mp_wait", || Ok(())), SUCCESS);
        assert_eq!(call("mp_wait", || Err("why".to_owned())), FAILURE);
        assert_eq!(call("mp_wait", || panic!("within a call")), FAILURE);
    }

    #[test]
    fn arguments_of_the_program_are_checked() {
        // SAFETY: null pointers.
        unsafe {
            assert!(given(std::ptr::null_mut::<u8>(), "req").is_err_and(|error| error == "req is NULL"));
            assert!(array(std::ptr::null_mut::<u8>(), 0, "reqs").is_ok_and(|all| all.is_empty()));
            assert!(array(std::ptr::null_mut::<u8>(), 2, "reqs").is_err());
        }
        assert!(length(-1, "size").is_err_and(|error| error.contains("-1")));
        assert_eq!(length(7, "size"), Ok(7));
    }
}
