//! Registered host memory, bounce buffers, and refusals by the driver.

mod common;

use std::collections::HashSet;

use cableway_common_cuda::{BouncePool, BufferKind, DeviceBuffer, DeviceIndex, Devices, MemoryClass};
use common::{app, devices, devices_with, isolated, isolated_each, pattern};

const DEVICE: DeviceIndex = DeviceIndex(0);

/// Makes one copy in each direction, so that a device is in use.
fn use_a_device(devices: &Devices) {
    let bytes = pattern(5000, 1);
    let mut got = vec![0; bytes.len()];
    let buffer = DeviceBuffer::new(devices, DEVICE, BufferKind::Device, bytes.len()).unwrap();
    // SAFETY: all of one length, and ours.
    unsafe {
        devices.copy(buffer.as_device_ptr(), bytes.as_ptr(), bytes.len()).unwrap();
        devices.copy(got.as_mut_ptr(), buffer.as_device_ptr(), bytes.len()).unwrap();
    }
    assert!(got == bytes);
}

#[test]
fn memory_is_registered_with_the_first_copy_and_unregistered_by_dropping() {
    let devices = devices();
    let mut bytes = vec![0_u8; 1 << 20];
    // SAFETY: the vector outlives the registration.
    let registration = unsafe { devices.register_host(bytes.as_mut_ptr(), bytes.len()) };
    assert!(!registration.registered());
    use_a_device(&devices);
    assert!(registration.registered());
    assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()).class, MemoryClass::Pinned);
    // A later range waits for the next copy.
    let mut more = vec![0_u8; 1 << 20];
    // SAFETY: as above.
    let later = unsafe { devices.register_host(more.as_mut_ptr(), more.len()) };
    use_a_device(&devices);
    assert!(later.registered());
    drop(registration);
    assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()).class, MemoryClass::Host);
    assert!(later.registered());
}

#[test]
fn one_registration_serves_every_device() {
    isolated("one_registration_serves_every_device", &[], || {
        let (app, devices) = (app(), devices());
        let mut bytes = vec![0_u8; 1 << 20];
        // SAFETY: the vector outlives the registration.
        let registration = unsafe { devices.register_host(bytes.as_mut_ptr(), bytes.len()) };
        for _ in 0..3 {
            for index in (0..app.device_count()).map(DeviceIndex) {
                let buffer = DeviceBuffer::new(&devices, index, BufferKind::Device, bytes.len()).unwrap();
                // SAFETY: both have as many bytes, and are ours.
                unsafe { devices.copy(buffer.as_device_ptr(), bytes.as_ptr(), bytes.len()) }.unwrap();
                assert!(registration.registered());
            }
        }
        if let Some(calls) = app.calls(c"cuMemHostRegister") {
            assert_eq!(calls, 1, "one registration, whichever device is used");
        }
    });
}

#[test]
fn overlapping_and_foreign_registrations_are_accepted() {
    let (app, devices) = (app(), devices());
    app.use_device(0);
    let mut bytes = vec![0_u8; 3 << 20];
    let half = bytes.len() / 2;
    app.cuMemHostRegister(bytes.as_mut_ptr().cast(), half, 0).unwrap();
    // SAFETY: the vector outlives the registrations.
    let (same, overlapping) = unsafe {
        (devices.register_host(bytes.as_mut_ptr(), half), devices.register_host(bytes.as_mut_ptr().add(half / 2), half))
    };
    use_a_device(&devices);
    drop((same, overlapping));
    assert_eq!(
        devices.classify(bytes.as_ptr(), half).class,
        MemoryClass::Pinned,
        "the program's own registration must stay"
    );
    app.cuMemHostUnregister(bytes.as_mut_ptr().cast()).unwrap();
}

#[test]
fn a_parameter_leaves_memory_unregistered() {
    let devices = devices_with(&["device_register_host=no"]);
    let mut bytes = vec![0_u8; 1 << 20];
    // SAFETY: the vector outlives the registration.
    let registration = unsafe { devices.register_host(bytes.as_mut_ptr(), bytes.len()) };
    use_a_device(&devices);
    assert!(!registration.registered());
    assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()).class, MemoryClass::Host);
}

#[test]
fn a_pool_grows_to_its_limit_and_reuses_buffers() {
    for devices in [devices(), Devices::none()] {
        let pool = BouncePool::new(&devices, 5000, 11);
        assert_eq!(pool.chunk_size(), 8192);
        let mut taken = Vec::new();
        let mut addresses = HashSet::new();
        while let Some(mut buffer) = pool.take() {
            assert_eq!(buffer.as_mut_ptr() as usize % 4096, 0);
            buffer.fill(taken.len() as u8);
            addresses.insert(buffer.as_mut_ptr() as usize);
            taken.push(buffer);
        }
        assert_eq!((taken.len(), addresses.len()), (11, 11));
        for (index, buffer) in taken.iter().enumerate() {
            assert!(buffer.iter().all(|&byte| byte == index as u8));
        }
        drop(taken.pop());
        let again = pool.take().unwrap();
        assert!(pool.take().is_none());
        // Buffers may outlive the pool's handle.
        drop(pool);
        assert_eq!(again.len(), 8192);
    }
}

#[test]
fn bounce_buffers_are_registered() {
    let devices = devices();
    let pool = BouncePool::new(&devices, 1 << 20, 2);
    let first = pool.take().unwrap();
    assert_eq!(devices.classify(first.as_ptr(), first.len()).class, MemoryClass::Host);
    use_a_device(&devices);
    assert_eq!(devices.classify(first.as_ptr(), first.len()).class, MemoryClass::Pinned);
}

/// After each fault a slower path is used, and the bytes arrive.
#[test]
fn copies_succeed_without_refused_features() {
    let test = "copies_succeed_without_refused_features";
    if !common::on_simulated_driver(test) {
        return;
    }
    const FAULTS: [(&str, usize); 4] = [
        ("cuMemHostRegister:801", 1),
        ("cuMemHostRegister:2", 1),
        ("cuMemHostRegister:712", 0),
        ("cuMemHostUnregister:713", 0),
    ];
    let cases = FAULTS.map(|(fault, _)| [("SIM_CUDA_FAIL", fault)]);
    isolated_each(test, &cases.each_ref().map(|case| &case[..]), |case| {
        let log = common::collect_log();
        let devices = devices();
        let pools = [4096, 8192, 16384].map(|chunk| BouncePool::new(&devices, chunk, 4));
        let buffers = pools.each_ref().map(BouncePool::take);
        use_a_device(&devices);
        drop((buffers, pools));
        let warnings = log.lock().unwrap().iter().filter(|line| line.starts_with("WARN")).count();
        assert_eq!(warnings, FAULTS[case].1, "{log:?}");
    });
}

#[test]
fn failures_of_required_calls_are_errors() {
    let test = "failures_of_required_calls_are_errors";
    if !common::on_simulated_driver(test) {
        return;
    }
    const CALLS: [&str; 6] =
        ["cuMemcpyAsync", "cuEventRecord", "cuEventCreate", "cuStreamCreate", "cuEventQuery", "cuCtxPushCurrent"];
    let faults = CALLS.map(|call| format!("{call}:999"));
    let cases = faults.each_ref().map(|fault| [("SIM_CUDA_FAIL", fault.as_str())]);
    isolated_each(test, &cases.each_ref().map(|case| &case[..]), |case| {
        let devices = devices();
        let result = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 4096).and_then(|buffer| {
            let mut bytes = vec![0_u8; 4096];
            // SAFETY: both have 4096 bytes.
            unsafe { devices.copy(bytes.as_mut_ptr(), buffer.as_device_ptr(), 4096) }
        });
        let error = result.unwrap_err().to_string();
        assert!(error.contains(CALLS[case]), "{error}");
        assert!(error.contains("CUDA_ERROR_UNKNOWN"), "{error}");
    });
}

/// Without device memory for streams, copies use the default stream. A capture that forbids this stays valid.
#[test]
fn first_copies_succeed_without_free_device_memory() {
    let test = "first_copies_succeed_without_free_device_memory";
    if !common::on_simulated_driver(test) {
        return;
    }
    isolated(test, &[("SIM_CUDA_MEMORY", "1M")], || {
        const ALL: usize = 1 << 20;
        let (app, devices, log) = (common::app(), devices(), common::collect_log());
        app.use_device(0);
        let stream = app.stream(common::app::BLOCKING_STREAM);
        let allocated = app.malloc(ALL);
        let address = allocated as usize;
        let copy = |len: usize, seed: u64| {
            let (bytes, mut got) = (pattern(len, seed), vec![0; len]);
            let address = address as *mut u8;
            // SAFETY: the allocation has twice `len` bytes, and only this test uses it.
            unsafe {
                devices.copy(address, bytes.as_ptr(), len)?;
                devices.copy(address.add(ALL / 2), address, len)?;
                devices.copy(got.as_mut_ptr(), address.add(ALL / 2), len)?;
            }
            assert!(got == bytes, "{len} bytes");
            Ok::<_, cableway_common_cuda::DeviceError>(())
        };
        copy(8, 1).unwrap();
        copy(100_000, 2).unwrap();
        app.cuStreamBeginCapture(stream, common::app::CAPTURE_THREAD_LOCAL).unwrap();
        let during = std::thread::scope(|scope| {
            let other = || {
                common::app().use_device(0);
                copy(8, 3)
            };
            scope.spawn(other).join().unwrap()
        });
        let error = during.unwrap_err().to_string();
        assert!(error.contains("end the capture first"), "{error}");
        let mut graph = 0;
        app.cuStreamEndCapture(stream, &raw mut graph).expect("the capture is still valid");
        app.cuGraphDestroy(graph).unwrap();
        copy(300_000, 4).unwrap();
        app.cuMemFree(allocated).unwrap();
        let log = log.lock().unwrap();
        assert_eq!(log.iter().filter(|line| line.contains("default stream from now on")).count(), 1, "{log:?}");
    });
}

/// Copies that were issued before a refused one are complete when the error is returned.
#[test]
fn a_batch_that_fails_half_way_leaves_nothing_under_way() {
    let test = "a_batch_that_fails_half_way_leaves_nothing_under_way";
    if !common::on_simulated_driver(test) {
        return;
    }
    isolated(test, &[("SIM_CUDA_FAIL", "cuMemcpyAsync:1:3"), ("SIM_CUDA_DELAY_US", "2000")], || {
        use cableway_common_cuda::{Direction, Order};
        let devices = devices();
        let mut buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 3000).unwrap();
        buffer.copy_from_host(0, &pattern(3000, 1)).unwrap();
        let pool = BouncePool::new(&devices, 4096, 1);
        let mut bounce = pool.take().unwrap();
        bounce.fill(0);
        let mut batch = devices.batch(&buffer.location(), Direction::DeviceToHost, Order::AfterDefaultStream).unwrap();
        for piece in [0, 1000, 2000] {
            // SAFETY: pieces of ranges that outlive the batch.
            unsafe { batch.copy(bounce.as_mut_ptr().add(piece), buffer.as_device_ptr().add(piece), 1000) };
        }
        batch.finish().map(|_| ()).unwrap_err();
        assert!(bounce[..2000] == pattern(3000, 1)[..2000]);
    });
}
