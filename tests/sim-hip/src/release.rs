//! The release that the library plays.

use std::ffi::c_int;
use std::sync::OnceLock;

/// `HIP_VERSION` of the release.
pub(crate) fn version() -> c_int {
    static VERSION: OnceLock<c_int> = OnceLock::new();
    *VERSION.get_or_init(|| match std::env::var("SIM_HIP_VERSION").as_deref().map(str::trim) {
        Ok("5") => 50_731_921,
        Ok("7") => 70_051_831,
        _ => 60_241_134,
    })
}

pub(crate) fn major() -> c_int {
    version() / 10_000_000
}

/// The instruction set of the devices.
pub(crate) fn architecture() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| std::env::var("SIM_HIP_ARCH").unwrap_or_else(|_| "gfx90a".to_owned()))
}
