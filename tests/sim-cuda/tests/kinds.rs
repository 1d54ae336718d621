//! Memory of pools and of virtual memory management.

mod common;

use common::{Session, device_count, pattern};

fn attribute(which: i32, address: u64) -> (i32, u64) {
    let mut value = 0_u64;
    (cu!(cuPointerGetAttribute(&raw mut value, which, address)), value)
}

const CONTEXT: i32 = 1;
const MEMORY_TYPE: i32 = 2;
const BUFFER_ID: i32 = 7;
const IS_LEGACY_IPC_CAPABLE: i32 = 10;
const RANGE_START: i32 = 11;
const HANDLE_TYPES: i32 = 14;
const MEMPOOL: i32 = 17;

/// `CUmemPoolProps` of device 0.
#[repr(C)]
struct PoolProperties {
    kind: i32,
    handle_types: i32,
    location: [i32; 2],
    security: usize,
    max_size: usize,
    reserved: [u8; 56],
}

fn pool(handle_types: i32) -> usize {
    let location = [1, 0];
    let properties = PoolProperties { kind: 1, handle_types, location, security: 0, max_size: 0, reserved: [0; 56] };
    let mut pool = 0_usize;
    ok!(cuMemPoolCreate(&raw mut pool, &raw const properties));
    pool
}

#[test]
fn pool_memory_belongs_to_no_context() {
    let session = Session::begin();
    let stream = session.stream(1);
    let (mut address, mut default) = (0_u64, 0_usize);
    ok!(cuDeviceGetDefaultMemPool(&raw mut default, 0));
    ok!(cuMemAllocAsync(&raw mut address, 100_000_usize, stream));
    assert_eq!(attribute(CONTEXT, address), (0, 0));
    assert_eq!(attribute(MEMORY_TYPE, address), (0, 2));
    assert_eq!(attribute(MEMPOOL, address), (0, default as u64));
    assert_eq!(attribute(IS_LEGACY_IPC_CAPABLE, address), (0, 0));
    assert_eq!(attribute(HANDLE_TYPES, address), (0, 0));
    ok!(cuStreamSynchronize(stream));
    let bytes = pattern(100_000, 6);
    session.write(address, &bytes);
    assert!(session.read(address, 100_000) == bytes);
    let mut handle = [0_u64; 8];
    assert_eq!(cu!(cuIpcGetMemHandle(handle.as_mut_ptr(), address)), 1);
    assert_eq!(cu!(cuMemPoolExportPointer(handle.as_mut_ptr(), address)), 1);
    ok!(cuMemFreeAsync(address, stream));
    assert_eq!(attribute(MEMORY_TYPE, address).0, 1, "forgotten at once");
    assert_eq!(cu!(cuMemFreeAsync(address, stream)), 1);
    ok!(cuStreamDestroy_v2(stream));
}

#[test]
fn pool_allocations_have_numbers_of_their_own() {
    let session = Session::begin();
    let (stream, pool) = (session.stream(1), pool(1));
    let mut seen = std::collections::HashSet::new();
    for _ in 0..10 {
        let mut pair = [0_u64; 2];
        for address in &mut pair {
            ok!(cuMemAllocFromPoolAsync(address as *mut u64, 1000_usize, pool, stream));
            assert!(seen.insert(attribute(BUFFER_ID, *address).1));
            assert_eq!(attribute(HANDLE_TYPES, *address), (0, 1));
        }
        for address in pair {
            ok!(cuMemFreeAsync(address, stream));
        }
        ok!(cuStreamSynchronize(stream));
    }
    ok!(cuMemPoolDestroy(pool));
    let mut default = 0_usize;
    ok!(cuDeviceGetDefaultMemPool(&raw mut default, 0));
    assert_eq!(cu!(cuMemPoolDestroy(default)), 1);
    ok!(cuStreamDestroy_v2(stream));
}

/// `CUmemAllocationProp` of device 0.
#[repr(C)]
struct Properties {
    kind: i32,
    handle_types: i32,
    location: [i32; 2],
    metadata: usize,
    flags: u64,
}

const MIB: usize = 1 << 20;

fn create(handle_types: i32) -> usize {
    let properties = Properties { kind: 1, handle_types, location: [1, 0], metadata: 0, flags: 0 };
    let mut handle = 0_usize;
    ok!(cuMemCreate(&raw mut handle, 2 * MIB, &raw const properties, 0_u64));
    handle
}

fn allow(address: u64, len: usize) {
    let access = [1_i32, 0, 3];
    ok!(cuMemSetAccess(address, len, access.as_ptr(), 1_usize));
}

#[test]
fn mapped_memory_needs_access_and_spans_mappings() {
    let session = Session::begin();
    let mut base = 0_u64;
    ok!(cuMemAddressReserve(&raw mut base, 4 * MIB, 0_usize, 0_u64, 0_u64));
    let (first, second) = (create(0), create(0));
    ok!(cuMemMap(base, 2 * MIB, 0_usize, first, 0_u64));
    assert_eq!(cu!(cuMemMap(base, 2 * MIB, 0_usize, first, 0_u64)), 1, "mapped already");
    ok!(cuMemMap(base + 2 * MIB as u64, 2 * MIB, 0_usize, second, 0_u64));
    let mut byte = 0_u8;
    assert_eq!(cu!(cuMemcpyDtoH_v2(&raw mut byte, base, 1_usize)), 1, "no access yet");
    allow(base, 4 * MIB);
    let bytes = pattern(3 * MIB, 2);
    let middle = base + MIB as u64 / 2;
    session.write(middle, &bytes);
    assert!(session.read(middle, 3 * MIB) == bytes);
    assert_eq!(attribute(CONTEXT, base), (0, 0));
    assert_eq!(attribute(RANGE_START, base + 3 * MIB as u64), (0, base), "the reservation");
    assert_ne!(attribute(BUFFER_ID, base), attribute(BUFFER_ID, base + 2 * MIB as u64));
    let mut start = 0_u64;
    ok!(cuMemGetAddressRange_v2(&raw mut start, std::ptr::null_mut::<usize>(), base + 3 * MIB as u64));
    assert_eq!(start, base + 2 * MIB as u64, "the mapping");

    let mut handle = 0_usize;
    ok!(cuMemRetainAllocationHandle(&raw mut handle, base + 100));
    assert_eq!(handle, first);
    ok!(cuMemRelease(handle));
    ok!(cuMemRelease(first));
    ok!(cuMemRelease(second));
    assert!(session.read(middle, 3 * MIB) == bytes, "mapped memory outlives its handles");
    assert_eq!(cu!(cuMemAddressFree(base, 4 * MIB)), 1, "mapped");
    assert_eq!(cu!(cuMemUnmap(base, MIB)), 1, "a part");
    ok!(cuMemUnmap(base, 4 * MIB));
    assert_eq!(attribute(MEMORY_TYPE, base).0, 1);
    ok!(cuMemAddressFree(base, 4 * MIB));
}

#[test]
fn only_exportable_memory_is_exported() {
    let session = Session::begin();
    let mut descriptor = -1_i32;
    let private = create(0);
    assert_eq!(cu!(cuMemExportToShareableHandle(&raw mut descriptor, private, 1, 0_u64)), 1);
    let (shared, mut again) = (create(1), 0_usize);
    ok!(cuMemExportToShareableHandle(&raw mut descriptor, shared, 1, 0_u64));
    ok!(cuMemImportFromShareableHandle(&raw mut again, descriptor as usize, 1));
    assert_ne!(again, shared);
    // The same memory at two addresses.
    let mut bases = [0_u64; 2];
    for (base, handle) in bases.iter_mut().zip([shared, again]) {
        ok!(cuMemAddressReserve(base as *mut u64, 2 * MIB, 0_usize, 0_u64, 0_u64));
        ok!(cuMemMap(*base, 2 * MIB, 0_usize, handle, 0_u64));
        allow(*base, 2 * MIB);
    }
    session.write(bases[0], &[1, 2, 3]);
    assert_eq!(session.read(bases[1], 3), [1, 2, 3]);
    assert_eq!(cu!(cuMemRetainAllocationHandle(&raw mut again, session.alloc(100))), 1);
}

#[test]
fn mappings_get_new_ids_and_keep_their_memory() {
    let session = Session::begin();
    let (mut base, mut other) = (0_u64, 0_u64);
    for address in [&mut base, &mut other] {
        ok!(cuMemAddressReserve(address as *mut u64, 2 * MIB, 0_usize, 0_u64, 0_u64));
    }
    let mut numbers = std::collections::HashSet::new();
    let mut last = 0_usize;
    for round in 1..=5 {
        let (handle, mut descriptor) = (create(1), -1_i32);
        ok!(cuMemMap(base, 2 * MIB, 0_usize, handle, 0_u64));
        allow(base, 2 * MIB);
        assert!(numbers.insert(attribute(BUFFER_ID, base).1), "the number of an earlier mapping at the same address");
        session.write(base, &[round; 100]);
        ok!(cuMemExportToShareableHandle(&raw mut descriptor, handle, 1, 0_u64));
        ok!(cuMemUnmap(base, 2 * MIB));
        ok!(cuMemRelease(handle));
        // First only the descriptor keeps the memory, then only the imported handle.
        ok!(cuMemImportFromShareableHandle(&raw mut last, descriptor as usize, 1));
        // SAFETY: made above, for this test alone.
        assert_eq!(unsafe { libc::close(descriptor) }, 0);
        ok!(cuMemMap(other, 2 * MIB, 0_usize, last, 0_u64));
        ok!(cuMemRelease(last));
        allow(other, 2 * MIB);
        assert_eq!(session.read(other, 100), [round; 100]);
        assert_eq!(cu!(cuMemMap(base, 4 * MIB, 0_usize, create(1), 0_u64)), 1, "more than there is");
        ok!(cuMemUnmap(other, 2 * MIB));
    }
    for address in [base, other] {
        ok!(cuMemAddressFree(address, 2 * MIB));
    }
}

#[test]
fn copies_to_another_device_need_its_owners_permission() {
    if device_count() < 2 {
        eprintln!("skipped copies_to_another_device_need_its_owners_permission: there is one device");
        return;
    }
    const LEN: usize = 2 << 20;
    let session = Session::begin();
    let bytes = pattern(LEN, 3);
    let source = session.alloc(LEN);
    session.write(source, &bytes);
    let (mut pool, mut pooled, mut handle, mut mapped) = (0_usize, 0_u64, 0_usize, 0_u64);
    ok!(cuDeviceGetDefaultMemPool(&raw mut pool, 1));
    ok!(cuMemAllocFromPoolAsync(&raw mut pooled, LEN, pool, 0_usize));
    // `CUmemAllocationProp` of device 1, and two `CUmemAccessDesc`.
    let properties = [1_u32, 0, 1, 1, 0, 0, 0, 0];
    let (owner, other) = ([1_u32, 1, 3], [1_u32, 0, 3]);
    ok!(cuMemCreate(&raw mut handle, LEN, properties.as_ptr(), 0_u64));
    ok!(cuMemAddressReserve(&raw mut mapped, LEN, 0_usize, 0_u64, 0_u64));
    ok!(cuMemMap(mapped, LEN, 0_usize, handle, 0_u64));
    ok!(cuMemSetAccess(mapped, LEN, owner.as_ptr(), 1_usize));
    let (mut of_pool, mut of_mapping) = (9_u32, 9_u64);
    let location = [1_u32, 0];
    ok!(cuMemPoolGetAccess(&raw mut of_pool, pool, location.as_ptr()));
    ok!(cuMemGetAccess(&raw mut of_mapping, location.as_ptr(), mapped));
    assert_eq!((of_pool, of_mapping), (0, 0));
    for target in [pooled, mapped] {
        assert_eq!(cu!(cuMemcpyDtoD_v2(target, source, LEN)), 1);
        assert_eq!(cu!(cuMemcpyAsync(target, source, LEN, 0_usize)), 1);
    }
    ok!(cuMemPoolSetAccess(pool, other.as_ptr(), 1_usize));
    ok!(cuMemSetAccess(mapped, LEN, other.as_ptr(), 1_usize));
    for target in [pooled, mapped] {
        ok!(cuMemcpyDtoD_v2(target, source, LEN));
        ok!(cuCtxSynchronize());
        assert!(session.read(target, LEN) == bytes);
    }
}
