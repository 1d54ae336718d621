//! gdrcopy's library, `libgdrapi.so.2`, as its public header declares it: it pins and maps device memory.
//!
//! Stricter than the real one: it pins only memory with synchronous operations, which it requires of programs.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::Arc;

use parking_lot::Mutex;
use slab::Slab;

use crate::settings::Settings;
use crate::space::{Kind, Range, SPACE};
use crate::store::{Mapping, PAGE};

/// The granularity of the kernel module's pinning.
const GPU_PAGE: u64 = 64 << 10;

/// A pinned range. The memory stays allocated after it is freed, but as with the kernel module, it must not be accessed
/// then.
struct Pinned {
    range: Arc<Range>,
    mapping: Option<Mapping>,
}

static PINNED: Mutex<Slab<Pinned>> = Mutex::new(Slab::new());

const BAD: c_int = 22;

/// The fields that programs use.
#[repr(C)]
struct Info {
    va: u64,
    mapped_size: u64,
    page_size: u32,
    tm_cycles: u64,
    cycles_per_ms: u32,
    flags: u32,
    mapping_type: c_int,
}

#[unsafe(no_mangle)]
extern "C" fn gdr_open() -> *mut c_void {
    static STATE: u8 = 0;
    if Settings::get().direct.gdrdrv { (&raw const STATE).cast_mut().cast() } else { std::ptr::null_mut() }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_close(_state: *mut c_void) -> c_int {
    0
}

/// # Safety
/// `handle` is valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_pin_buffer(
    state: *mut c_void,
    address: c_ulong,
    len: usize,
    _token: u64,
    _space: u32,
    handle: *mut c_ulong,
) -> c_int {
    let range = SPACE.get().ok().and_then(|space| space.read().find(address as usize).cloned());
    let range = range
        .filter(|range| range.kind == Kind::Device && range.is_synchronous() && address as usize + len <= range.end());
    let (Some(range), false) = (range, state.is_null()) else { return BAD };
    let key = PINNED.lock().insert(Pinned { range, mapping: None });
    // SAFETY: the caller's promise.
    unsafe { handle.write(key as c_ulong) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn gdr_unpin_buffer(_state: *mut c_void, handle: c_ulong) -> c_int {
    match PINNED.lock().try_remove(handle as usize) {
        Some(Pinned { mapping: None, .. }) => 0,
        _ => BAD,
    }
}

/// # Safety
/// `info` is valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_get_info_v2(_state: *mut c_void, handle: c_ulong, info: *mut Info) -> c_int {
    let pinned = PINNED.lock();
    let Some(pinned) = pinned.get(handle as usize) else { return BAD };
    let (va, mapped_size) = (pinned.range.base as u64, pinned.range.len.next_multiple_of(PAGE) as u64);
    let mapped = u32::from(pinned.mapping.is_some());
    let found = Info {
        va,
        mapped_size,
        page_size: GPU_PAGE as u32,
        tm_cycles: 0,
        cycles_per_ms: 0,
        flags: mapped,
        mapping_type: 1,
    };
    // SAFETY: the caller's promise.
    unsafe { info.write(found) };
    0
}

/// # Safety
/// `place` is valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_map(_state: *mut c_void, handle: c_ulong, place: *mut *mut c_void, len: usize) -> c_int {
    let mut pinned = PINNED.lock();
    let Some(pinned) = pinned.get_mut(handle as usize).filter(|pinned| pinned.mapping.is_none()) else { return BAD };
    let mapping = pinned.range.backing.piece.as_ref().and_then(|piece| piece.mapped_again().ok());
    let Some(mapping) = mapping.filter(|mapping| len <= mapping.len()) else { return BAD };
    // SAFETY: the caller's promise.
    unsafe { place.write(mapping.address() as *mut c_void) };
    pinned.mapping = Some(mapping);
    0
}

#[unsafe(no_mangle)]
extern "C" fn gdr_unmap(_state: *mut c_void, handle: c_ulong, place: *mut c_void, _len: usize) -> c_int {
    let mut pinned = PINNED.lock();
    let Some(pinned) = pinned.get_mut(handle as usize) else { return BAD };
    match pinned.mapping.take() {
        Some(mapping) if mapping.address() == place as usize => 0,
        _ => BAD,
    }
}
