//! The version of the library.

use std::ffi::{CStr, c_char, c_int};

const TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("a version has no null byte"),
};

/// Returns the version as text that is never freed.
#[unsafe(no_mangle)]
extern "C" fn cableway_version() -> *const c_char {
    TEXT.as_ptr()
}

/// Returns the version as a number: 10000 times the major, 100 times the minor, and the patch.
#[unsafe(no_mangle)]
extern "C" fn cableway_version_number() -> c_int {
    NUMBER
}

pub(crate) const NUMBER: c_int = 10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(text: &str) -> c_int {
    match c_int::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("a version has numbers"),
    }
}
