//! Creates the layouts of derived datatypes, and packs buffers.

use std::ffi::{c_int, c_void};

use crate::boundary::{BufferDescription, Code};
use crate::buffer::{create_layout, free_layout, pack};
use crate::guard::guarded;
use crate::state;

/// # Safety
/// Both arrays hold `blocks` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_layout_create(
    offsets: *const i64,
    lengths: *const u64,
    blocks: usize,
    lower_bound: i64,
    extent: i64,
) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        let pairs: Vec<(i64, u64)> = (0..blocks)
            // SAFETY: the caller's promise.
            .map(|index| unsafe { (*offsets.add(index), *lengths.add(index)) })
            .collect();
        create_layout(&pairs, lower_bound, extent)
    })
}

/// # Safety
/// `layout` is from [`cableway_layout_create`], and freed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_layout_free(layout: *mut c_void) {
    // SAFETY: the caller's promise.
    guarded((), || unsafe { free_layout(layout) });
}

/// # Safety
/// The buffer is valid for reads, and `to` for writes of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_pack(from: *const BufferDescription, to: *mut u8, len: u64) -> c_int {
    guarded(Code::Internal as c_int, || {
        let Some(engine) = state::engine() else { return Code::Internal as c_int };
        // SAFETY: the caller's promise.
        match unsafe { pack(&*from, engine.devices(), to, len) } {
            Ok(()) => Code::Ok as c_int,
            Err(error) => {
                log::warn!("cannot pack {len} bytes: {error}");
                Code::Device as c_int
            }
        }
    })
}
