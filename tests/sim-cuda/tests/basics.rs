//! Behaviour of the simulated driver and of a real one: devices, copies, streams, events, host memory.

mod common;

use common::{Session, device_count, pattern};

#[test]
fn devices_have_names_and_identities() {
    let count = device_count();
    assert!(count >= 1);
    let mut seen = Vec::new();
    for device in 0..count {
        let (mut uuid, mut name, mut bus, mut total) = ([0_u8; 16], [0_u8; 64], [0_u8; 32], 0_usize);
        ok!(cuDeviceGetUuid_v2(&raw mut uuid, device));
        ok!(cuDeviceGetName(name.as_mut_ptr(), 64, device));
        ok!(cuDeviceGetPCIBusId(bus.as_mut_ptr(), 32, device));
        ok!(cuDeviceTotalMem_v2(&raw mut total, device));
        assert!(total > 0 && name[0] != 0 && bus[4] == b':');
        let mut by_bus = -1_i32;
        ok!(cuDeviceGetByPCIBusId(&raw mut by_bus, bus.as_ptr()));
        assert_eq!(by_bus, device);
        seen.push(uuid);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len() as i32, count);
    let mut device = 0_i32;
    assert_eq!(cu!(cuDeviceGet(&raw mut device, count)), 101);
}

#[test]
fn bytes_are_copied_to_the_device_and_back() {
    let session = Session::begin();
    for len in [1_usize, 3, 4, 4095, 65_536, (3 << 20) + 5] {
        let address = session.alloc(len);
        let bytes = pattern(len, 1);
        session.write(address, &bytes);
        assert!(session.read(address, len) == bytes, "{len} bytes");
        ok!(cuMemFree_v2(address));
    }
    assert_eq!(cu!(cuMemFree_v2(0x1000_u64)), 1);
}

#[test]
fn copies_outside_of_allocations_are_refused() {
    let session = Session::begin();
    let address = session.alloc(100);
    let mut host = vec![0_u8; 8 << 20];
    assert_eq!(cu!(cuMemcpyDtoH_v2(host.as_mut_ptr(), address, 4_usize << 20)), 1);
    assert_eq!(cu!(cuMemcpyHtoD_v2(host.as_mut_ptr(), host.as_ptr(), 8_usize)), 1, "to pageable memory");
    assert_eq!(cu!(cuMemcpyHtoD_v2(address, std::ptr::null::<u8>(), 8_usize)), 1);
    ok!(cuMemcpyHtoD_v2(0_u64, std::ptr::null::<u8>(), 0_usize));
    let mut out = 0_u64;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut out, 0_usize)), 1);
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut out, usize::MAX)), 2);
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut out, 1_usize << 46)), 2);
    ok!(cuMemFree_v2(address));
}

#[test]
fn streams_and_events_order_copies() {
    let session = Session::begin();
    let len = 1 << 20;
    let (first, second) = (session.alloc(len), session.alloc(len));
    let (host, back) = (session.pinned(len), session.pinned(len));
    let bytes = pattern(len, 9);
    host.copy_from_slice(&bytes);
    let (up, across, down) = (session.stream(1), session.stream(1), session.stream(1));
    let (after_up, after_across) = (session.event(), session.event());
    ok!(cuMemcpyHtoDAsync_v2(first, host.as_ptr(), len, up));
    ok!(cuEventRecord(after_up, up));
    ok!(cuStreamWaitEvent(across, after_up, 0_u32));
    ok!(cuMemcpyDtoDAsync_v2(second, first, len, across));
    ok!(cuEventRecord(after_across, across));
    ok!(cuStreamWaitEvent(down, after_across, 0_u32));
    ok!(cuMemcpyDtoHAsync_v2(back.as_mut_ptr(), second, len, down));
    while cu!(cuStreamQuery(down)) == 600 {}
    ok!(cuEventQuery(after_across));
    assert!(back == &bytes[..]);
    for stream in [up, across, down] {
        ok!(cuStreamDestroy_v2(stream));
    }
    for event in [after_up, after_across] {
        ok!(cuEventDestroy_v2(event));
    }
    ok!(cuMemFreeHost(host.as_mut_ptr()));
    ok!(cuMemFreeHost(back.as_mut_ptr()));
    ok!(cuMemFree_v2(first));
    ok!(cuMemFree_v2(second));
}

/// `CUDA_MEMCPY2D` with device memory on both sides.
#[repr(C)]
struct Copy2d {
    src_offset: [usize; 2],
    src_type: u32,
    src_host: usize,
    src_device: u64,
    src_array: usize,
    src_pitch: usize,
    dst_offset: [usize; 2],
    dst_type: u32,
    dst_host: usize,
    dst_device: u64,
    dst_array: usize,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

#[test]
fn rows_are_copied_at_their_pitch() {
    let session = Session::begin();
    let (src, dst) = (session.alloc(64 * 1000), session.alloc(24 * 1000));
    let bytes = pattern(64 * 1000, 5);
    session.write(src, &bytes);
    let mut copy = Copy2d {
        src_offset: [8, 0],
        src_type: 2,
        src_host: 0,
        src_device: src,
        src_array: 0,
        src_pitch: 64,
        dst_offset: [0, 0],
        dst_type: 2,
        dst_host: 0,
        dst_device: dst,
        dst_array: 0,
        dst_pitch: 24,
        width: 24,
        height: 1000,
    };
    ok!(cuMemcpy2D_v2(&raw const copy));
    let landed = session.read(dst, 24 * 1000);
    for row in 0..1000 {
        assert_eq!(landed[24 * row..24 * row + 24], bytes[64 * row + 8..64 * row + 32]);
    }
    copy.src_pitch = 16;
    assert_eq!(cu!(cuMemcpy2D_v2(&raw const copy)), 1, "a pitch below the width");
    (copy.src_pitch, copy.height) = (64, 1 << 20);
    assert_eq!(cu!(cuMemcpy2D_v2(&raw const copy)), 1, "rows beyond the allocation");
    ok!(cuMemFree_v2(src));
    ok!(cuMemFree_v2(dst));
}

#[test]
fn a_batch_copies_everything_or_reports_the_error() {
    let session = Session::begin();
    let (src, dst, stream) = (session.alloc(1 << 16), session.alloc(1 << 16), session.stream(1));
    let bytes = pattern(1 << 16, 3);
    session.write(src, &bytes);
    let offsets = [0_u64, 5000, 9999];
    let (dsts, srcs) = (offsets.map(|offset| dst + offset), offsets.map(|offset| src + offset));
    let sizes = [4096_usize, 1, 777];
    let (attributes, first) = ([[1_i32, 0, 0, 0, 0, 0]], [0_usize]);
    let batch = |count: usize, sizes: &[usize; 3], stream: usize| {
        cu!(cuMemcpyBatchAsync_v2(
            dsts.as_ptr(),
            srcs.as_ptr(),
            sizes.as_ptr(),
            count,
            attributes.as_ptr(),
            first.as_ptr(),
            1_usize,
            stream
        ))
    };
    assert_eq!(batch(3, &sizes, stream), 0);
    ok!(cuStreamSynchronize(stream));
    let landed = session.read(dst, 1 << 16);
    for (offset, size) in offsets.into_iter().zip(sizes) {
        let range = offset as usize..offset as usize + size;
        assert_eq!(landed[range.clone()], bytes[range]);
    }
    assert_eq!(batch(3, &sizes, 0), 1, "the legacy default stream");
    assert_eq!(batch(0, &sizes, stream), 1);
    assert_eq!(batch(3, &[1, 0, 1], stream), 1, "an empty copy");
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuMemFree_v2(src));
    ok!(cuMemFree_v2(dst));
}

#[test]
fn host_memory_is_registered_once() {
    let session = Session::begin();
    let len = 1 << 16;
    let memory = vec![1_u8; len + 8192];
    let base = memory.as_ptr() as usize;
    ok!(cuMemHostRegister_v2(base, len, 1_u32));
    assert_eq!(cu!(cuMemHostRegister_v2(base, len, 1_u32)), 712);
    assert_eq!(cu!(cuMemHostRegister_v2(base + 4096, len, 1_u32)), 712);
    assert_eq!(cu!(cuMemHostUnregister(base + 4096)), 1, "not where it begins");
    let mut device = 0_usize;
    ok!(cuMemHostGetDevicePointer_v2(&raw mut device, base + 10, 0_u32));
    assert_eq!(device, base + 10);
    let address = session.alloc(2 * len);
    assert_eq!(cu!(cuMemcpyHtoD_v2(address, base, len + 4096)), 1, "half of it is not registered");
    ok!(cuMemHostUnregister(base));
    assert_eq!(cu!(cuMemHostUnregister(base)), 713);
    assert_eq!(cu!(cuMemHostRegister_v2(address, len, 1_u32)), 1, "device memory");
    assert_eq!(cu!(cuMemHostRegister_v2(0x10000_usize, 4096_usize, 1_u32)), 1, "not mapped");
    assert_eq!(cu!(cuMemFreeHost(base)), 1);
    ok!(cuMemFree_v2(address));
}

#[test]
fn stream_memory_operations_read_and_write_words() {
    let session = Session::begin();
    let stream = session.stream(1);
    let words = session.pinned(64);
    words.fill(0);
    let at = words.as_mut_ptr();
    let device = session.alloc(64);
    ok!(cuStreamWaitValue32_v2(stream, at, 5_u32, 0_u32));
    ok!(cuStreamWriteValue64_v2(stream, device, 0x0102_0304_0506_0708_u64, 0_u32));
    assert_eq!(cu!(cuStreamQuery(stream)), 600, "it waits");
    // SAFETY: pinned memory of this test, which the stream reads as a word.
    unsafe { std::sync::atomic::AtomicU32::from_ptr(at.cast()) }.store(6, std::sync::atomic::Ordering::Release);
    ok!(cuStreamSynchronize(stream));
    assert_eq!(session.read(device, 8), 0x0102_0304_0506_0708_u64.to_ne_bytes());
    assert_eq!(cu!(cuStreamWriteValue32_v2(stream, device + 2, 1_u32, 0_u32)), 1);
    let operations: [[u64; 6]; 3] = [
        [5, device + 8, 0x1112_1314_1516_1718, 0, 0, 0],
        [2, device + 16, 0x2122_2324, 0, 0, 0],
        [2, at as u64, 7, 0, 0, 0],
    ];
    ok!(cuStreamBatchMemOp_v2(stream, 3_u32, operations.as_ptr(), 0_u32));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(session.read(device + 8, 8), 0x1112_1314_1516_1718_u64.to_ne_bytes());
    assert_eq!(session.read(device + 16, 8), 0x2122_2324_u64.to_ne_bytes(), "four bytes");
    // SAFETY: as above.
    let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(at.cast()) };
    assert_eq!(word.load(std::sync::atomic::Ordering::Acquire), 7);
    let unaligned = [[5, device + 4, 0, 0, 0, 0]];
    assert_eq!(cu!(cuStreamBatchMemOp_v2(stream, 1_u32, unaligned.as_ptr(), 0_u32)), 1);
    assert_eq!(cu!(cuStreamBatchMemOp_v2(stream, 0_u32, operations.as_ptr(), 0_u32)), 1);
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuMemFreeHost(at));
    ok!(cuMemFree_v2(device));
}

#[test]
fn an_event_follows_its_latest_recording() {
    let session = Session::begin();
    let (event, stream) = (session.event(), session.stream(1));
    ok!(cuEventQuery(event));
    ok!(cuStreamWaitEvent(stream, event, 0_u32));
    ok!(cuEventSynchronize(event));
    let (mut start, mut end, mut elapsed) = (0_usize, 0_usize, -1_f32);
    ok!(cuEventCreate(&raw mut start, 0_u32));
    ok!(cuEventCreate(&raw mut end, 0_u32));
    assert_eq!(cu!(cuEventElapsedTime_v2(&raw mut elapsed, start, end)), 400);
    ok!(cuEventRecord(start, stream));
    ok!(cuEventRecord(end, stream));
    ok!(cuStreamSynchronize(stream));
    ok!(cuEventElapsedTime_v2(&raw mut elapsed, start, end));
    assert!(elapsed >= 0.0);
    let mut shared = 0_usize;
    assert_eq!(cu!(cuEventCreate(&raw mut shared, 4_u32)), 1, "a shared event cannot time");
    for event in [event, start, end] {
        ok!(cuEventDestroy_v2(event));
    }
    ok!(cuStreamDestroy_v2(stream));
}

#[test]
fn functions_are_found_by_name_and_version() {
    common::library();
    let find = |name: &std::ffi::CStr, version: i32| {
        let (mut function, mut status) = (0_usize, 9_u32);
        let result = cu!(cuGetProcAddress_v2(name.as_ptr(), &raw mut function, version, 0_u64, &raw mut status));
        (result, function != 0, status)
    };
    ok!(cuInit(0_u32));
    assert_eq!(find(c"cuMemAlloc", 13000), (0, true, 0));
    assert_eq!(find(c"cuMemcpyBatchAsync", 13000), (0, true, 0));
    assert_eq!(find(c"cuNoSuchFunction", 13000), (0, false, 1));
    assert_eq!(find(c"cuMemAllocAsync", 9000), (0, false, 2));
    assert_eq!(find(c"cuMemAlloc", 99000).0, 1);
    let (mut old, mut new) = (0_usize, 0_usize);
    let mut status = 9_u32;
    let name = c"cuMemcpyBatchAsync";
    ok!(cuGetProcAddress_v2(name.as_ptr(), &raw mut old, 12080_i32, 0_u64, &raw mut status));
    ok!(cuGetProcAddress_v2(name.as_ptr(), &raw mut new, 13000_i32, 0_u64, &raw mut status));
    assert_ne!(old, new, "its arguments changed");
}

#[test]
fn errors_have_names() {
    common::library();
    let mut name = std::ptr::null::<std::ffi::c_char>();
    ok!(cuGetErrorName(201_i32, &raw mut name));
    // SAFETY: the driver succeeded, so it stored a constant string.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(name) }, c"CUDA_ERROR_INVALID_CONTEXT");
    assert_eq!(cu!(cuGetErrorName(12345_i32, &raw mut name)), 1);
}

#[test]
fn threads_share_the_driver() {
    let session = Session::begin();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let session = &session;
            scope.spawn(move || {
                ok!(cuCtxSetCurrent(session.context));
                let (stream, event) = (session.stream(1), session.event());
                let host = session.pinned(10_000);
                for round in 0..50 {
                    let address = session.alloc(10_000);
                    let bytes = pattern(10_000, thread * 50 + round);
                    host.copy_from_slice(&bytes);
                    ok!(cuMemcpyHtoDAsync_v2(address, host.as_ptr(), 10_000_usize, stream));
                    ok!(cuEventRecord(event, stream));
                    ok!(cuEventSynchronize(event));
                    host.fill(0);
                    ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr(), address, 10_000_usize, stream));
                    ok!(cuStreamSynchronize(stream));
                    assert!(host == &bytes[..]);
                    ok!(cuMemFree_v2(address));
                }
                ok!(cuStreamDestroy_v2(stream));
                ok!(cuEventDestroy_v2(event));
            });
        }
    });
}
