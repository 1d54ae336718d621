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
    lengths: *const i64,
    blocks: usize,
    lower_bound: i64,
    extent: i64,
) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        // A type without data has no arrays.
        if blocks == 0 {
            return create_layout(&[], &[], lower_bound, extent);
        }
        // SAFETY: the caller's promise.
        let (offsets, lengths) =
            unsafe { (std::slice::from_raw_parts(offsets, blocks), std::slice::from_raw_parts(lengths, blocks)) };
        create_layout(offsets, lengths, lower_bound, extent)
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
