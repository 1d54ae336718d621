//! The driver's attributes of each kind of pointer.

mod common;

use common::Session;

const CONTEXT: i32 = 1;
const MEMORY_TYPE: i32 = 2;
const DEVICE_POINTER: i32 = 3;
const HOST_POINTER: i32 = 4;
const SYNC_MEMOPS: i32 = 6;
const BUFFER_ID: i32 = 7;
const IS_MANAGED: i32 = 8;
const DEVICE_ORDINAL: i32 = 9;
const IS_LEGACY_IPC_CAPABLE: i32 = 10;
const RANGE_START: i32 = 11;
const RANGE_SIZE: i32 = 12;
const MAPPED: i32 = 13;

fn attribute(which: i32, address: usize) -> (i32, u64) {
    let mut value = 0_u64;
    (cu!(cuPointerGetAttribute(&raw mut value, which, address)), value)
}

fn attributes<const N: usize>(which: [i32; N], address: usize) -> [u64; N] {
    let mut values = [0xEEEE_EEEE_EEEE_EEEE_u64; N];
    let places: Vec<*mut u64> = values.iter_mut().map(|value| value as *mut u64).collect();
    ok!(cuPointerGetAttributes(N as u32, which.as_ptr(), places.as_ptr(), address));
    values
}

/// Returns the appearance of an `int` in a word that held the pattern before.
fn int(value: u32) -> u64 {
    0xEEEE_EEEE_0000_0000 | u64::from(value)
}

#[test]
fn attributes_of_device_memory_have_its_context_and_range() {
    let session = Session::begin();
    let base = session.alloc(5000) as usize;
    let at = base + 100;
    assert_eq!(attribute(CONTEXT, at), (0, session.context as u64));
    assert_eq!(attribute(MEMORY_TYPE, at), (0, 2));
    assert_eq!(attribute(DEVICE_POINTER, at), (0, at as u64));
    assert_eq!(attribute(HOST_POINTER, at).0, 1);
    assert_eq!(attribute(IS_MANAGED, at), (0, 0));
    assert_eq!(attribute(DEVICE_ORDINAL, at), (0, 0));
    assert_eq!(attribute(IS_LEGACY_IPC_CAPABLE, at), (0, 1));
    assert_eq!(attribute(RANGE_START, at), (0, base as u64));
    assert_eq!(attribute(RANGE_SIZE, at), (0, 5000));
    assert_eq!(attribute(MAPPED, at), (0, 1));
    let (mut start, mut len) = (0_usize, 0_usize);
    ok!(cuMemGetAddressRange_v2(&raw mut start, &raw mut len, at));
    assert_eq!((start, len), (base, 5000));
    ok!(cuMemFree_v2(base));
    assert_eq!(attribute(MEMORY_TYPE, at).0, 1);
}

#[test]
fn only_pinned_host_memory_has_attributes() {
    let session = Session::begin();
    let pinned = session.pinned(5000).as_mut_ptr() as usize;
    assert_eq!(attribute(MEMORY_TYPE, pinned + 1), (0, 1));
    assert_eq!(attribute(HOST_POINTER, pinned + 1), (0, pinned as u64 + 1));
    assert_eq!(attribute(CONTEXT, pinned), (0, session.context as u64));
    assert_eq!(attribute(IS_LEGACY_IPC_CAPABLE, pinned), (0, 0));
    ok!(cuMemFreeHost(pinned));

    let pageable = vec![0_u8; 1 << 16];
    let at = pageable.as_ptr() as usize;
    assert_eq!(attribute(MEMORY_TYPE, at).0, 1);
    let which = [MEMORY_TYPE, IS_MANAGED, BUFFER_ID, HOST_POINTER, DEVICE_ORDINAL, RANGE_SIZE];
    let untouched = 0xEEEE_EEEE_EEEE_EEEE;
    let no_device = -2_i32 as u32;
    assert_eq!(attributes(which, at), [int(0), int(0), 0, at as u64, int(no_device), untouched]);
    let mut start = 0_usize;
    assert_eq!(cu!(cuMemGetAddressRange_v2(&raw mut start, std::ptr::null_mut::<usize>(), at)), 500);
}

#[test]
fn managed_memory_has_host_and_device_addresses() {
    let session = Session::begin();
    let mut base = 0_usize;
    ok!(cuMemAllocManaged(&raw mut base, 4096_usize, 1_u32));
    assert_eq!(attribute(MEMORY_TYPE, base), (0, 2));
    assert_eq!(attribute(IS_MANAGED, base), (0, 1));
    assert_eq!(attribute(HOST_POINTER, base), (0, base as u64));
    // SAFETY: managed memory may be touched by the host while no device uses it.
    unsafe { (base as *mut u8).write(7) };
    assert_eq!(session.read(base as u64, 1), [7]);
    ok!(cuMemFree_v2(base));
}

#[test]
fn booleans_are_stored_as_ints() {
    let session = Session::begin();
    let base = session.alloc(64) as usize;
    assert_eq!(attributes([IS_MANAGED, MAPPED, SYNC_MEMOPS], base), [int(0), int(1), int(0)]);
    ok!(cuMemFree_v2(base));
}

#[test]
fn buffer_ids_are_never_reused() {
    let session = Session::begin();
    let mut ids = std::collections::HashSet::new();
    let mut addresses = std::collections::HashSet::new();
    for _ in 0..20 {
        let base = session.alloc(4 << 20);
        let (result, id) = attribute(BUFFER_ID, base as usize);
        assert_eq!(result, 0);
        assert!(ids.insert(id), "the number of an earlier allocation");
        addresses.insert(base);
        ok!(cuMemFree_v2(base));
    }
    assert!(addresses.len() < 20, "addresses are reused");
}

#[test]
fn sync_memops_can_be_set() {
    let session = Session::begin();
    let base = session.alloc(64) as usize;
    let one = 1_u32;
    ok!(cuPointerSetAttribute(&raw const one, SYNC_MEMOPS, base));
    assert_eq!(attribute(SYNC_MEMOPS, base), (0, 1));
    let pageable = [0_u8; 64];
    assert_eq!(cu!(cuPointerSetAttribute(&raw const one, SYNC_MEMOPS, pageable.as_ptr())), 1);
    assert_eq!(cu!(cuPointerSetAttribute(&raw const one, MEMORY_TYPE, base)), 1);
    ok!(cuMemFree_v2(base));
}
