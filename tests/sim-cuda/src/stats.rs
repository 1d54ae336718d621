//! Counts of calls for tests: exported functions, and a file written at exit.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::fmt::Write;

use crate::driver::is_forked_child;
use crate::event::EVENTS;
use crate::procaddress::rows;
use crate::settings::Settings;
use crate::space::SPACE;
use crate::stream::STREAMS;

/// Returns the calls of each function, all versions together.
fn counts() -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for row in rows() {
        *counts.entry(row.name).or_default() += row.call.count();
    }
    counts
}

/// # Safety
/// `name` is null or a terminated string.
#[cfg_attr(not(sim_hip), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "named beside the driver's own functions")]
pub(crate) unsafe extern "C" fn simCudaCallCount(name: *const c_char) -> i64 {
    let counts = counts();
    if name.is_null() {
        return counts.values().sum::<u64>() as i64;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().ok().and_then(|name| counts.get(name)).map_or(-1, |count| *count as i64)
}

#[cfg_attr(not(sim_hip), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "named beside the driver's own functions")]
pub(crate) extern "C" fn simCudaLiveBytes() -> u64 {
    SPACE.get().map_or(0, |space| space.read().live_bytes())
}

#[cfg_attr(not(sim_hip), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "named beside the driver's own functions")]
pub(crate) extern "C" fn simCudaLiveEvents() -> u64 {
    EVENTS.get().map_or(0, |events| events.lock().len() as u64)
}

#[cfg_attr(not(sim_hip), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "named beside the driver's own functions")]
pub(crate) extern "C" fn simCudaLiveStreams() -> u64 {
    STREAMS.get().map_or(0, |streams| streams.lock().len() as u64)
}

/// The loader calls it when the process exits. The library stays loaded until then.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = write_file;

extern "C" fn write_file() {
    let Some(path) = crate::settings::variable("STATS").and_then(|_| Settings::get().stats.as_ref()) else { return };
    if is_forked_child() {
        return;
    }
    let mut counts = counts();
    counts.retain(|_, count| *count > 0);
    // This also runs in an executable that links the rlib and never called any of these functions.
    if counts.is_empty() {
        return;
    }
    let mut text = String::new();
    for (name, count) in counts {
        let _ = writeln!(text, "{name} {count}");
    }
    // A failure at exit cannot be reported.
    let _ = std::fs::write(path, text);
}
