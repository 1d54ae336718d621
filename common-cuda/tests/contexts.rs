//! Contexts of the program: entered and left, switched, destroyed.

mod common;

use cableway_common_cuda::{
    BouncePool, BufferKind, DeviceBuffer, DeviceIndex, Devices, Direction, Location, MemoryClass, Order,
};
use common::{App, app, devices, devices_with, isolated, isolated_each, pattern};

const DEVICE: DeviceIndex = DeviceIndex(0);

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies a pattern to the device and back.
fn round_trip(devices: &Devices, address: u64, len: usize, seed: u64) {
    let bytes = pattern(len, seed);
    let mut got = vec![0; len];
    // SAFETY: the caller has allocated `len` bytes there.
    unsafe {
        devices.copy(pointer(address), bytes.as_ptr(), len).unwrap();
        devices.copy(got.as_mut_ptr(), pointer(address), len).unwrap();
    }
    assert!(got == bytes);
}

#[test]
fn the_callers_context_stays_current() {
    isolated("the_callers_context_stays_current", &[], || {
        let (app, devices) = (app(), devices());
        let own = app.create_context(0);
        let address = app.malloc(4096);
        for current in [0, own, app.use_device(0)] {
            app.cuCtxSetCurrent(current).unwrap();
            let at = devices.classify(pointer(address), 4096);
            assert_eq!(app.current(), current);
            let mut bytes = vec![0_u8; 4096];
            let mut batch = devices.batch(&at, Direction::DeviceToHost, Order::AfterDefaultStream).unwrap();
            // SAFETY: both have 4096 bytes, and the completion is waited for.
            unsafe { batch.copy(bytes.as_mut_ptr(), pointer(address), 4096) };
            let mut completion = batch.finish().unwrap();
            assert_eq!(app.current(), current);
            while !completion.poll().unwrap() {
                assert_eq!(app.current(), current);
            }
            assert_eq!(app.current(), current);
        }
        drop(devices);
        assert_eq!(app.current(), app.use_device(0));
    });
}

#[test]
fn the_device_is_switched_between_calls() {
    isolated("the_device_is_switched_between_calls", &[], || {
        let (app, devices) = (app(), devices());
        let count = i32::try_from(app.device_count()).unwrap();
        let addresses: Vec<_> = (0..count)
            .map(|device| {
                app.use_device(device);
                app.malloc(100_000)
            })
            .collect();
        for round in 0..20 {
            for (device, &address) in addresses.iter().enumerate() {
                // The current device differs from the buffer's.
                app.use_device((round + device as i32) % count);
                round_trip(&devices, address, 100_000, round as u64);
            }
        }
    });
}

#[test]
fn a_thread_that_never_touched_cuda_copies() {
    isolated("a_thread_that_never_touched_cuda_copies", &[], || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let address = app.malloc(100_000);
        std::thread::spawn(move || {
            round_trip(&devices, address, 100_000, 1);
            assert_eq!(common::app().current(), 0);
        })
        .join()
        .unwrap();
    });
}

#[test]
fn polling_switches_no_context() {
    let test = "polling_switches_no_context";
    if !common::on_simulated_driver(test) {
        return;
    }
    // Test a driver that can query events in their context only, too.
    let cases = ["", "cuEventQuery:201:1", "cuEventQuery:400:1"].map(|fault| [("SIM_CUDA_FAIL", fault)]);
    isolated_each(test, &cases.each_ref().map(|case| &case[..]), |case| {
        let (app, devices) = (app(), devices_with(&["device_landing_patience=0"]));
        app.use_device(0);
        let address = app.malloc(100_000);
        app.cuCtxSetCurrent(0).unwrap();
        let mut bytes = vec![0; 100_000];
        let pushed = || app.calls(c"cuCtxPushCurrent").unwrap();
        for round in 0..2 {
            let mut completion = begin(&devices, address, &mut bytes);
            let before = pushed();
            while !completion.poll().unwrap() {
                std::thread::yield_now();
            }
            let expected = if case == 0 { before..=before } else { before + 1..=i64::MAX };
            assert!(expected.contains(&pushed()), "round {round} of case {case}");
            assert_eq!(app.current(), 0);
        }
    });
}

/// Begins a copy in a context and does not wait for it.
fn begin(devices: &Devices, address: u64, bytes: &mut [u8]) -> cableway_common_cuda::Completion {
    let at = devices.classify(pointer(address), bytes.len());
    let mut batch = devices.batch(&at, Direction::DeviceToHost, Order::AfterDefaultStream).unwrap();
    // SAFETY: the caller keeps both until the completion is done.
    unsafe { batch.copy(bytes.as_mut_ptr(), pointer(address), bytes.len()) };
    batch.finish().unwrap()
}

#[test]
fn the_end_of_a_context_is_an_error_or_harmless() {
    isolated("the_end_of_a_context_is_an_error_or_harmless", &[], || {
        let (app, devices) = (app(), devices());
        let pool = BouncePool::new(&devices, 4096, 8);
        for round in 0..10 {
            let context = app.create_context(0);
            let address = app.malloc(4096);
            round_trip(&devices, address, 4096, round);
            let stale = devices.classify(pointer(address), 4096);
            let mut bounce = pool.take().unwrap();
            let mut completion = begin(&devices, address, &mut bounce);
            app.cuCtxDestroy(context).unwrap();
            // The copy completes before the destruction or fails. It must not crash or hang.
            while let Ok(false) = completion.poll() {}
            assert!(devices.batch(&stale, Direction::DeviceToHost, Order::None).is_err());
        }
    });
}

#[test]
fn objects_made_in_a_context_are_destroyed() {
    isolated("objects_made_in_a_context_are_destroyed", &[], || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let address = app.malloc(4096);
        let Some(before) = app.live() else {
            return eprintln!("skipped: a real driver does not count streams and events");
        };
        let pool = BouncePool::new(&devices, 4096, 100);
        let mut buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        let completions: Vec<_> = buffers.iter_mut().map(|buffer| begin(&devices, address, buffer)).collect();
        let during = app.live().unwrap();
        assert!(during.0 >= before.0 + 100 && during.1 > before.1, "{during:?}");
        drop(completions);
        drop((buffers, pool, devices));
        assert_eq!(app.live(), Some(before));
    });
}

fn reset(app: &App) {
    app.cuDevicePrimaryCtxReset(0).unwrap();
}

#[test]
fn copies_work_after_a_device_reset() {
    isolated("copies_work_after_a_device_reset", &[], || {
        let (app, devices) = (app(), devices());
        let pool = BouncePool::new(&devices, 1 << 20, 4);
        let mut bounce = pool.take().unwrap();
        let mut ids = Vec::new();
        for round in 0..3 {
            app.use_device(0);
            let address = app.malloc(1 << 20);
            let bytes = pattern(1 << 20, round);
            app.upload(address, &bytes);
            begin(&devices, address, &mut bounce).wait().unwrap();
            assert!(bounce[..] == bytes[..], "the copy in the new context must be right");
            assert_eq!(
                devices.classify(bounce.as_ptr(), bounce.len()).class,
                MemoryClass::Pinned,
                "the memory must be registered again in round {round}"
            );
            ids.push(devices.classify(pointer(address), 1).context);
            reset(&app);
        }
        ids.dedup();
        assert_eq!(ids.len(), 3);
        drop(bounce);
        drop(pool);
        drop(devices);
    });
}

#[test]
fn devices_can_be_dropped_after_a_reset() {
    isolated("devices_can_be_dropped_after_a_reset", &[], || {
        let (app, devices) = (app(), devices());
        let mut bytes = vec![0_u8; 1 << 20];
        // SAFETY: the vector outlives the registration.
        let registration = unsafe { devices.register_host(bytes.as_mut_ptr(), bytes.len()) };
        app.use_device(0);
        round_trip(&devices, app.malloc(1 << 20), 1 << 20, 1);
        assert!(registration.registered());
        let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 4096).unwrap();
        reset(&app);
        assert!(!registration.registered());
        drop((registration, buffer, devices));
    });
}

#[test]
fn a_known_allocation_determines_its_context() {
    isolated("a_known_allocation_determines_its_context", &[], || {
        let (app, devices) = (app(), devices());
        let mut before: Option<Location> = None;
        for round in 0..20 {
            let context = app.create_context(0);
            let address = app.malloc(4096);
            let found = devices.classify(pointer(address), 8);
            let ids = app.calls(c"cuCtxGetId");
            assert_eq!(devices.classify(pointer(address + 8), 8), found);
            assert_eq!(app.calls(c"cuCtxGetId"), ids, "the driver is not asked again");
            // The new allocation often has the address and the handle of the old one.
            if let Some(last) = before {
                assert_ne!(found.context, last.context, "round {round}");
                assert_ne!(found.buffer_id, last.buffer_id, "round {round}");
            }
            round_trip(&devices, address, 4096, round);
            app.cuMemFree(address).unwrap();
            let other = app.malloc(4096);
            assert_eq!(devices.classify(pointer(other), 8).context, found.context);
            before = Some(found);
            app.cuCtxDestroy(context).unwrap();
        }
    });
}

/// The handle of a destroyed context may be reused. Nothing of the old context may be used in the new one.
#[test]
fn a_context_handle_is_reused() {
    isolated("a_context_handle_is_reused", &[], || {
        let (app, devices) = (app(), devices());
        let mut handles = std::collections::HashSet::new();
        let mut reused = false;
        for round in 0..50 {
            let context = app.create_context(0);
            reused |= !handles.insert(context);
            round_trip(&devices, app.malloc(10_000), 10_000, round);
            app.cuCtxDestroy(context).unwrap();
        }
        if !reused {
            eprintln!("the driver reused no handle in 50 rounds");
        }
    });
}

#[test]
fn drivers_without_context_ids_still_copy() {
    let test = "drivers_without_context_ids_still_copy";
    if !common::on_simulated_driver(test) {
        return;
    }
    let cases = ["11000", "11040", "12000"].map(|version| [("SIM_CUDA_VERSION", version)]);
    isolated_each(test, &cases.each_ref().map(|case| &case[..]), |_| {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        round_trip(&devices, app.malloc(10_000), 10_000, 1);
    });
}

#[test]
fn a_capture_in_another_thread_stays_valid() {
    isolated("a_capture_in_another_thread_stays_valid", &[], || {
        let (app, devices) = (app(), devices());
        let context = app.use_device(0);
        for flags in [common::app::NON_BLOCKING_STREAM, common::app::BLOCKING_STREAM] {
            for mode in [common::app::CAPTURE_GLOBAL, common::app::CAPTURE_THREAD_LOCAL] {
                let address = app.malloc(100_000);
                let (begun, has_begun) = std::sync::mpsc::channel();
                let (go_on, may_go_on) = std::sync::mpsc::channel();
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        let app = common::app();
                        app.cuCtxSetCurrent(context).unwrap();
                        let (stream, scratch) = (app.stream(flags), app.malloc(64));
                        app.cuStreamBeginCapture(stream, mode).unwrap();
                        begun.send(()).unwrap();
                        may_go_on.recv().unwrap();
                        app.cuMemsetD8Async(scratch, 1, 64, stream).unwrap();
                        let mut graph = 0;
                        app.cuStreamEndCapture(stream, &raw mut graph).expect("the capture is still valid");
                        app.cuGraphDestroy(graph).unwrap();
                    });
                    has_begun.recv().expect("the other thread has begun its capture");
                    // New buffers are registered, and events and streams created, during the other thread's capture.
                    let pool = BouncePool::new(&devices, 4096, 4);
                    let mut bounce = pool.take().unwrap();
                    begin(&devices, address, &mut bounce).wait().unwrap();
                    round_trip(&devices, address, 100_000, 2);
                    go_on.send(()).unwrap();
                });
            }
        }
    });
}

#[test]
fn a_capturing_thread_gets_an_error_with_the_reason() {
    isolated("a_capturing_thread_gets_an_error_with_the_reason", &[], || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let address = app.malloc(4096);
        round_trip(&devices, address, 4096, 1);
        for flags in [common::app::NON_BLOCKING_STREAM, common::app::BLOCKING_STREAM] {
            let stream = app.stream(flags);
            app.cuStreamBeginCapture(stream, common::app::CAPTURE_GLOBAL).unwrap();
            let mut bytes = vec![0_u8; 4096];
            let at = devices.classify(pointer(address), 4096);
            let mut batch = devices.batch(&at, Direction::DeviceToHost, Order::AfterDefaultStream).unwrap();
            // SAFETY: both have 4096 bytes, and outlive the batch.
            unsafe { batch.copy(bytes.as_mut_ptr(), pointer(address), 4096) };
            let error = batch.finish().map(|_| ()).unwrap_err();
            assert!(error.to_string().contains("captures a stream"), "{error}");
            let mut graph = 0;
            // The capture may or may not survive the refused call.
            if app.cuStreamEndCapture(stream, &raw mut graph).is_ok() && graph != 0 {
                app.cuGraphDestroy(graph).unwrap();
            }
            round_trip(&devices, address, 4096, 2);
        }
    });
}

#[test]
fn no_context_is_created_for_a_device_without_one() {
    isolated("no_context_is_created_for_a_device_without_one", &[], || {
        let (app, devices) = (app(), devices_with(&["device_register_host=no"]));
        let at = Location { class: MemoryClass::Device, device: Some(DEVICE), context: 0, buffer_id: 0 };
        assert!(devices.batch(&at, Direction::DeviceToHost, Order::None).is_err());
        assert!(!app.primary_active(0));
    });
}
