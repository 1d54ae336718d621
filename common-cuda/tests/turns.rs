//! Copies from page-locked memory to a device in rows, which leave the device's compute engine alone.

mod common;

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, Direction, Order};
use common::{App, app, devices, devices_with, isolated, on_simulated_driver, pattern};

const DEVICE: DeviceIndex = DeviceIndex(0);
const ROOM: usize = 70_000;

/// Copies runs of page-locked memory, each given by its first byte and its length, in one batch.
fn copy(devices: &Devices, from: &DeviceBuffer, to: &DeviceBuffer, runs: &[(usize, usize)]) {
    let mut batch = devices.batch(&to.location(), Direction::HostToDevice, Order::None).unwrap();
    batch.page_locked();
    for &(at, len) in runs {
        let (to, from) = (to.as_device_ptr().wrapping_add(at), from.as_device_ptr().wrapping_add(at));
        // SAFETY: both buffers outlive the completion.
        unsafe { batch.copy(to, from, len) };
    }
    batch.finish().unwrap().wait().unwrap();
}

/// Checks that copies of these runs change no other byte.
fn check(devices: &Devices, runs: &[(usize, usize)]) {
    let bytes = pattern(ROOM, 5);
    let mut from = DeviceBuffer::new(devices, DEVICE, BufferKind::Pinned, ROOM).unwrap();
    from.copy_from_host(0, &bytes).unwrap();
    let mut to = DeviceBuffer::new(devices, DEVICE, BufferKind::Device, ROOM).unwrap();
    to.copy_from_host(0, &[0xEE; ROOM]).unwrap();
    devices.default_stream(&to.location()).unwrap().wait().unwrap();
    copy(devices, &from, &to, runs);
    let (mut expected, mut got) = (vec![0xEE; ROOM], vec![0; ROOM]);
    for &(at, len) in runs {
        expected[at..at + len].copy_from_slice(&bytes[at..at + len]);
    }
    to.copy_to_host(0, &mut got).unwrap();
    assert!(got == expected, "{runs:?}");
}

fn in_rows(app: &App) -> i64 {
    app.calls(c"cuMemcpy2DAsync").unwrap_or(0)
}

#[test]
fn runs_of_some_kilobytes_are_copied_in_rows() {
    isolated("runs_of_some_kilobytes_are_copied_in_rows", &[], || {
        let (app, devices) = (app(), devices());
        for (len, calls) in [(12 << 10, 1), (12_289, 2), (24_575, 2), (65_535, 2), (65_536, 1), (65_537, 0)] {
            let before = in_rows(&app);
            check(&devices, &[(3, len)]);
            assert!(!app.simulated() || in_rows(&app) - before == calls, "{len} bytes");
        }
    });
}

/// The simulated driver is slow to begin each copy, as a device is that changes contexts.
#[test]
fn small_runs_are_copied_in_rows_if_contexts_take_turns() {
    let test = "small_runs_are_copied_in_rows_if_contexts_take_turns";
    if !on_simulated_driver(test) {
        return;
    }
    isolated(test, &[("SIM_CUDA_DELAY_US", "1000")], || {
        let (app, devices) = (app(), devices_with(&["device_turn_latency=150us"]));
        let from = DeviceBuffer::new(&devices, DEVICE, BufferKind::Pinned, 4096).unwrap();
        let to = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 4096).unwrap();
        // On a busy machine the end of a copy may be seen late, which shows nothing.
        let shown = (0..20_000).any(|_| {
            copy(&devices, &from, &to, &[(0, 100)]);
            in_rows(&app) > 0
        });
        assert!(shown);
        for len in (1..40).chain([4095, 4096, 11_111]) {
            check(&devices, &[(7, len)]);
        }
        let before = in_rows(&app);
        check(&devices, &[(0, 2), (10, 33), (100, 5000), (10_000, 50_001)]);
        assert_eq!(in_rows(&app) - before, 1 + 2 + 1 + 2);
        // The driver reads small runs of other memory at once. Before it reads rows it may wait for work of the program.
        let ordinary = vec![1; 5000];
        let mut batch = devices.batch(&to.location(), Direction::HostToDevice, Order::None).unwrap();
        // SAFETY: both buffers outlive the completion.
        unsafe { batch.copy(to.as_device_ptr(), ordinary.as_ptr(), 4096) };
        batch.finish().unwrap().wait().unwrap();
        assert_eq!(in_rows(&app) - before, 1 + 2 + 1 + 2);
    });
}
