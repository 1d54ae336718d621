//! The names of the transports that reach a process.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::guard::guarded;
use crate::state;

/// # Safety
/// `names` is valid for writes of `room` pointers.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_transports(rank: u32, names: *mut *const c_char, room: usize) -> usize {
    guarded(0, || {
        let Some(found) = state::engine().and_then(|engine| engine.transports(rank).ok()) else { return 0 };
        for (index, name) in found.iter().take(room).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *names.add(index) = interned(name) };
        }
        found.len()
    })
}

/// Returns the name as a C string that is never freed. There is one for each transport.
fn interned(name: &'static str) -> *const c_char {
    static NAMES: LazyLock<Mutex<BTreeMap<&'static str, CString>>> = LazyLock::new(Mutex::default);
    NAMES.lock().entry(name).or_insert_with(|| CString::new(name).unwrap_or_default()).as_ptr()
}
