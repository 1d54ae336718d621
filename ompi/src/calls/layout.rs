//! Creates the layouts of derived datatypes, and packs buffers.

use std::ffi::{c_int, c_void};

use crate::boundary::{BufferDescription, Code};
use crate::buffer::{Blocks, create_layout, free_layout, known_layout, pack};
use crate::guard::guarded;
use crate::state;

/// `struct cableway_type_blocks`
#[repr(C)]
struct BlocksDescription {
    offsets: *const i64,
    lengths: *const i64,
    count: usize,
    lower_bound: i64,
    extent: i64,
}

/// Returns a layout that is kept for a type with this description. Returns null if there is none.
///
/// # Safety
/// `description` holds `words` entries, at least one.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_layout_known(description: *const i64, words: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    guarded(std::ptr::null_mut(), || known_layout(unsafe { std::slice::from_raw_parts(description, words) }))
}

/// Creates a layout, and keeps it for types with this description unless that is empty.
///
/// # Safety
/// The arrays of `blocks` hold `count` entries, and `description` holds `words`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_layout_create(
    blocks: *const BlocksDescription,
    description: *const i64,
    words: usize,
) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let &BlocksDescription { offsets, lengths, count, lower_bound, extent } = unsafe { &*blocks };
        // A type without data has no arrays.
        let (offsets, lengths): (&[i64], &[i64]) = match count {
            0 => (&[], &[]),
            // SAFETY: the caller's promise.
            _ => unsafe { (std::slice::from_raw_parts(offsets, count), std::slice::from_raw_parts(lengths, count)) },
        };
        // SAFETY: the caller's promise.
        let description = unsafe { std::slice::from_raw_parts(description, words) };
        create_layout(&Blocks { offsets, lengths, lower_bound, extent }, description)
    })
}

/// # Safety
/// `layout` is from [`cableway_layout_create`] or [`cableway_layout_known`], and freed only once.
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
