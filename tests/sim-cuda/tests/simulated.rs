//! Behaviour of the simulated driver only: faults on CPU accesses, injected failures, counts, limits. Skipped on a real
//! driver.

mod common;

use std::ffi::CStr;

use common::{Session, child_dies, in_child, is_simulated, library};

fn skipped() -> bool {
    let skip = !is_simulated();
    if skip {
        println!("skipped: this is a real driver");
    }
    skip
}

fn count(name: Option<&CStr>) -> i64 {
    let name = name.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the type is that of the exported function.
    let function =
        unsafe { library().get::<unsafe extern "C" fn(*const std::ffi::c_char) -> i64>(b"simCudaCallCount\0") };
    // SAFETY: null or a terminated string.
    unsafe { function.expect("exported")(name) }
}

fn live(name: &[u8]) -> u64 {
    // SAFETY: the type is that of the exported functions.
    let function = unsafe { library().get::<unsafe extern "C" fn() -> u64>(name) };
    // SAFETY: takes nothing.
    unsafe { function.expect("exported")() }
}

#[test]
fn a_cpu_that_touches_device_memory_faults() {
    const NAME: &str = "a_cpu_that_touches_device_memory_faults";
    if skipped() {
        return;
    }
    let touch = || {
        let address = Session::begin().alloc(4096);
        // SAFETY: none: that this ends the process is what is tested.
        let byte = unsafe { std::ptr::read_volatile(address as *const u8) };
        println!("read {byte}");
    };
    assert!(child_dies(NAME, &[], touch));
}

#[test]
fn calls_fail_as_configured() {
    let faults = [("SIM_CUDA_FAIL", "cuMemAlloc:2:2,cuStreamCreate:999:2+,cuIpcOpenMemHandle:201")];
    in_child("calls_fail_as_configured", &faults, || {
        if skipped() {
            return;
        }
        let session = Session::begin();
        let mut address = 0_u64;
        let results = [(); 3].map(|()| cu!(cuMemAlloc_v2(&raw mut address, 64_usize)));
        assert_eq!(results, [0, 2, 0]);
        let mut stream = 0_usize;
        let results = [(); 3].map(|()| cu!(cuStreamCreate(&raw mut stream, 1_u32)));
        assert_eq!(results, [0, 999, 999]);
        assert_eq!(cu!(cuIpcOpenMemHandle_v2(&raw mut address, [0_u64; 8], 1_u32)), 201);
        drop(session);
    });
}

#[test]
fn symbols_can_be_missing_or_from_an_old_driver() {
    let environment = [("SIM_CUDA_MISSING", "cuMemcpyBatchAsync,cuCtxGetId"), ("SIM_CUDA_VERSION", "11040")];
    in_child("symbols_can_be_missing_or_from_an_old_driver", &environment, || {
        if skipped() {
            return;
        }
        let mut version = 0_i32;
        ok!(cuDriverGetVersion(&raw mut version));
        assert_eq!(version, 11040);
        let find = |name: &CStr| {
            let (mut function, mut status) = (1_usize, 9_u32);
            ok!(cuGetProcAddress_v2(name.as_ptr(), &raw mut function, 11040_i32, 0_u64, &raw mut status));
            (function != 0, status)
        };
        assert_eq!(find(c"cuMemAlloc"), (true, 0));
        assert_eq!(find(c"cuCtxGetId"), (false, 1));
        assert_eq!(find(c"cuStreamGetId"), (false, 1), "of CUDA 12");
    });
}

#[test]
fn symbols_of_old_signatures_always_fail() {
    if skipped() {
        return;
    }
    let session = Session::begin();
    let mut address = 0_u64;
    assert_eq!(cu!(cuMemAlloc(&raw mut address, 64_u32)), 801);
    assert_eq!(cu!(cuCtxPushCurrent(session.context)), 801);
    assert_eq!(cu!(cuIpcOpenMemHandle(&raw mut address, [0_u64; 8], 1_u32)), 801);
}

#[test]
fn calls_and_objects_are_counted() {
    in_child("calls_and_objects_are_counted", &[], || {
        if skipped() {
            return;
        }
        let session = Session::begin();
        let before = (live(b"simCudaLiveBytes\0"), live(b"simCudaLiveEvents\0"), live(b"simCudaLiveStreams\0"));
        let (address, event, stream) = (session.alloc(1000), session.event(), session.stream(1));
        let after = (live(b"simCudaLiveBytes\0"), live(b"simCudaLiveEvents\0"), live(b"simCudaLiveStreams\0"));
        assert_eq!(after, (before.0 + 1000, before.1 + 1, before.2 + 1));
        ok!(cuMemFree_v2(address));
        ok!(cuEventDestroy_v2(event));
        ok!(cuStreamDestroy_v2(stream));
        let after = (live(b"simCudaLiveBytes\0"), live(b"simCudaLiveEvents\0"), live(b"simCudaLiveStreams\0"));
        assert_eq!(after, before);
        assert_eq!(count(Some(c"cuMemAlloc")), 1);
        assert_eq!(count(Some(c"cuMemcpy")), 0);
        assert_eq!(count(Some(c"cuNoSuchFunction")), -1);
        let all = count(None);
        ok!(cuCtxSynchronize());
        assert_eq!(count(None), all + 1);
    });
}

#[test]
fn counts_are_written_at_exit() {
    const NAME: &str = "counts_are_written_at_exit";
    if skipped() {
        return;
    }
    let path = std::env::temp_dir().join(format!("sim-cuda-counts-{}", std::process::id()));
    let text = path.to_str().expect("an ASCII path");
    in_child(NAME, &[("SIM_CUDA_STATS", text)], || {
        let session = Session::begin();
        ok!(cuMemFree_v2(session.alloc(10)));
    });
    if std::env::var_os("SIM_CUDA_STATS").is_none() {
        let counts = std::fs::read_to_string(&path).expect("the child wrote it");
        assert!(counts.lines().any(|line| line == "cuMemAlloc 1"), "{counts}");
        assert!(counts.lines().any(|line| line == "cuMemFree 1"), "{counts}");
        std::fs::remove_file(path).expect("it is there");
    }
}

#[test]
fn allocations_fail_beyond_the_memory_limit() {
    in_child("allocations_fail_beyond_the_memory_limit", &[("SIM_CUDA_MEMORY", "1M")], || {
        if skipped() {
            return;
        }
        let session = Session::begin();
        let address = session.alloc(600_000);
        let mut more = 0_u64;
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut more, 600_000_usize)), 2);
        let (mut free, mut total) = (0_usize, 0_usize);
        ok!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!((free, total), ((1 << 20) - 600_000, 1 << 20));
        ok!(cuMemFree_v2(address));
        ok!(cuMemAlloc_v2(&raw mut more, 600_000_usize));
    });
}

fn identity(device: i32) -> [u8; 16] {
    let mut uuid = [0_u8; 16];
    ok!(cuDeviceGetUuid_v2(&raw mut uuid, device));
    uuid
}

#[test]
fn a_process_sees_only_its_visible_devices() {
    let environment = [("SIM_CUDA_DEVICES", "4"), ("CUDA_VISIBLE_DEVICES", "2,0")];
    in_child("a_process_sees_only_its_visible_devices", &environment, || {
        if skipped() {
            return;
        }
        assert_eq!(common::device_count(), 2);
        assert_eq!([identity(0)[15], identity(1)[15]], [2, 0], "the device's own identity, whatever its number");
        let mut name = [0_u8; 32];
        ok!(cuDeviceGetName(name.as_mut_ptr(), 32, 0));
        assert!(name.starts_with(b"simulated device 2\0"));
    });
}

#[test]
fn without_devices_there_is_no_driver() {
    in_child("without_devices_there_is_no_driver", &[("SIM_CUDA_DEVICES", "0")], || {
        if skipped() {
            return;
        }
        assert_eq!(cu!(cuInit(0_u32)), 100);
        let mut count = 0_i32;
        assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), 3);
    });
}

#[test]
fn copies_go_between_devices() {
    in_child("copies_go_between_devices", &[("SIM_CUDA_DEVICES", "2")], || {
        if skipped() {
            return;
        }
        let session = Session::begin();
        let first = session.alloc(4096);
        session.write(first, &[3; 4096]);
        let (mut other, mut can) = (0_usize, 0_i32);
        ok!(cuDeviceCanAccessPeer(&raw mut can, 0, 1));
        assert_eq!(can, 1);
        ok!(cuDevicePrimaryCtxRetain(&raw mut other, 1));
        ok!(cuCtxPushCurrent_v2(other));
        let second = session.alloc(4096);
        let mut ordinal = -1_i32;
        ok!(cuPointerGetAttribute(&raw mut ordinal, 9, second));
        assert_eq!(ordinal, 1);
        ok!(cuMemcpyPeer(second, other, first, session.context, 4096_usize));
        ok!(cuCtxSynchronize());
        assert_eq!(session.read(second, 4096), [3; 4096]);
    });
}

#[test]
fn the_simulated_driver_is_never_found_by_accident() {
    // In a process that has not loaded it. The loader identifies loaded libraries by name.
    in_child("the_simulated_driver_is_never_found_by_accident", &[], || {
        // SAFETY: looks a symbol up, in this executable and all that it was linked with.
        let linked = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"simCudaCallCount".as_ptr()) };
        assert!(linked.is_null(), "an executable that links the rlib exports its symbols");
        // SAFETY: a driver's initialisers ask nothing of the process.
        if let Ok(found) = unsafe { libloading::Library::new("libcuda.so.1") } {
            // SAFETY: only looked up.
            let simulated = unsafe { found.get::<unsafe extern "C" fn()>(b"simCudaCallCount\0") }.is_ok();
            assert!(!simulated, "the loader's own path leads to the simulated driver");
        }
    });
}
