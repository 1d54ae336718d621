//! What holds on the simulated driver and on a real one: devices, contexts, memory, copies, streams, events.

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
    assert_eq!(cu!(cuDeviceGet(&raw mut seen, count)), 101);
}

#[test]
fn bytes_go_to_the_device_and_back() {
    let session = Session::begin();
    for len in [1_usize, 3, 4, 4095, 65_536, (3 << 20) + 5] {
        let address = session.alloc(len);
        let bytes = pattern(len, 1);
        session.write(address, &bytes);
        assert!(session.read(address, len) == bytes, "{len} bytes");
        assert_eq!(cu!(cuMemcpyDtoH_v2(vec![0_u8; len + 1].as_mut_ptr(), address, len + (4 << 20))), 1);
        ok!(cuMemFree_v2(address));
    }
    assert_eq!(cu!(cuMemFree_v2(0x1000_u64)), 1);
}

#[test]
fn streams_and_events_order_copies() {
    let session = Session::begin();
    let len = 1 << 20;
    let (first, second) = (session.alloc(len), session.alloc(len));
    let (mut host, mut back) = (0_usize, 0_usize);
    ok!(cuMemHostAlloc(&raw mut host, len, 1_u32));
    ok!(cuMemHostAlloc(&raw mut back, len, 1_u32));
    let bytes = pattern(len, 9);
    // SAFETY: `host` has `len` bytes of host memory, which nothing else touches yet.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host as *mut u8, len) };
    let (up, across, down) = (session.stream(1), session.stream(1), session.stream(1));
    let (after_up, after_across) = (session.event(), session.event());
    ok!(cuMemcpyHtoDAsync_v2(first, host, len, up));
    ok!(cuEventRecord(after_up, up));
    ok!(cuStreamWaitEvent(across, after_up, 0_u32));
    ok!(cuMemcpyDtoDAsync_v2(second, first, len, across));
    ok!(cuEventRecord(after_across, across));
    ok!(cuStreamWaitEvent(down, after_across, 0_u32));
    ok!(cuMemcpyDtoHAsync_v2(back, second, len, down));
    while cu!(cuStreamQuery(down)) == 600 {}
    ok!(cuEventQuery(after_across));
    // SAFETY: the copy to `back` is done.
    let landed = unsafe { std::slice::from_raw_parts(back as *const u8, len) };
    assert!(landed == bytes);
    for stream in [up, across, down] {
        ok!(cuStreamDestroy_v2(stream));
    }
    for event in [after_up, after_across] {
        ok!(cuEventDestroy_v2(event));
    }
    ok!(cuMemFreeHost(host));
    ok!(cuMemFreeHost(back));
    ok!(cuMemFree_v2(first));
    ok!(cuMemFree_v2(second));
}

#[test]
fn functions_are_found_by_name_and_version() {
    common::library();
    let find = |name: &std::ffi::CStr, version: i32| {
        let (mut function, mut status) = (0_usize, 9_u32);
        let result = cu!(cuGetProcAddress_v2(name.as_ptr(), &raw mut function, version, 0_u64, &raw mut status));
        (result, function, status)
    };
    let (result, new, status) = find(c"cuIpcOpenMemHandle", 13000);
    let _ = (result, new, status);
    let (result, function, status) = find(c"cuMemAlloc", 13000);
    assert_eq!((result, status), (0, 0));
    assert_ne!(function, 0);
    let (_, function, status) = find(c"cuNoSuchFunction", 13000);
    assert_eq!((function, status), (0, 1));
    let (_, function, status) = find(c"cuMemAllocAsync", 9000);
    let _ = (function, status);
}
