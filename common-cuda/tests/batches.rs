//! Batches: how their copies are submitted, and when their completion is detected.

mod common;

use cableway_common_cuda::{BufferKind, Completion, DeviceBuffer, DeviceIndex, Devices, Direction, Location, Order};
use common::{app, devices, devices_with, isolated, pattern};

const DEVICE: DeviceIndex = DeviceIndex(0);

fn buffer(devices: &Devices, kind: BufferKind, len: usize) -> DeviceBuffer {
    DeviceBuffer::new(devices, DEVICE, kind, len).unwrap()
}

/// Begins one copy from device to host, as the first of an operation.
///
/// # Safety
/// As for `CopyBatch::copy`.
unsafe fn download(devices: &Devices, at: &Location, dst: *mut u8, src: *const u8, len: usize) -> Completion {
    let mut batch = devices.batch(at, Direction::DeviceToHost, Order::AfterDefaultStream).unwrap();
    // SAFETY: the caller's promise.
    unsafe { batch.copy(dst, src, len) };
    batch.finish().unwrap()
}

#[test]
fn several_copies_complete_together() {
    let devices = devices();
    let mut buffer = buffer(&devices, BufferKind::Device, 100 * 1000);
    let bytes = pattern(100 * 1000, 5);
    buffer.copy_from_host(0, &bytes).unwrap();
    let at = buffer.location();
    let mut got = vec![0_u8; bytes.len()];
    let mut batch = devices.batch(&at, Direction::DeviceToHost, Order::AfterDefaultStream).unwrap();
    for piece in (0..100).rev() {
        // SAFETY: pieces of two ranges that stay until the completion is done.
        unsafe {
            let (dst, src) = (got.as_mut_ptr().add(piece * 1000), buffer.as_device_ptr().add(piece * 1000));
            batch.copy(dst, src, 1000);
        }
    }
    let mut completion = batch.finish().unwrap();
    while !completion.poll().unwrap() {}
    assert!(completion.poll().unwrap(), "done stays done");
    assert!(got == bytes);
}

#[test]
fn a_dropped_batch_destroys_its_event() {
    let test = "a_dropped_batch_destroys_its_event";
    if !common::on_simulated_driver(test) {
        return;
    }
    isolated(test, &[], || {
        let (app, devices) = (app(), devices());
        let source = buffer(&devices, BufferKind::Device, 64);
        let mut got = [0_u8; 64];
        // SAFETY: both outlive the completion.
        unsafe { download(&devices, &source.location(), got.as_mut_ptr(), source.as_device_ptr(), 64) }.wait().unwrap();
        let destroyed = || app.calls(c"cuEventDestroy").unwrap();
        let before = destroyed();
        drop(devices.batch(&source.location(), Direction::DeviceToHost, Order::None).unwrap());
        assert_eq!(destroyed() - before, 1);
    });
}

#[test]
fn the_end_of_a_batch_implies_the_end_of_earlier_ones() {
    const LEN: usize = 1000;
    isolated("the_end_of_a_batch_implies_the_end_of_earlier_ones", &[], || {
        let (app, devices) = (app(), devices());
        let mut source = buffer(&devices, BufferKind::Device, 8 * LEN);
        let bytes = pattern(8 * LEN, 5);
        source.copy_from_host(0, &bytes).unwrap();
        let mut got = vec![0_u8; bytes.len()];
        let start = |piece: usize, got: &mut [u8]| {
            let from = source.as_device_ptr().wrapping_add(piece * LEN);
            // SAFETY: a piece of each, which outlive the completion.
            unsafe { download(&devices, &source.location(), got[piece * LEN..].as_mut_ptr(), from, LEN) }
        };
        let mut completions: Vec<Completion> = (0..8).map(|piece| start(piece, &mut got)).collect();
        let mut last = completions.pop().unwrap();
        while !last.poll().unwrap() {}
        let asked = app.calls(c"cuEventQuery");
        assert!(completions.iter_mut().all(|completion| completion.poll().unwrap()));
        assert_eq!(app.calls(c"cuEventQuery"), asked, "known already");
        assert!(got == bytes);
        // The answer does not cover later work.
        let mut next = start(0, &mut got);
        while !next.poll().unwrap() {}
        assert!(asked.is_none() || app.calls(c"cuEventQuery") > asked);
    });
}

#[test]
fn a_batch_is_issued_by_one_call_in_each_direction() {
    const LEN: usize = 1000;
    isolated("a_batch_is_issued_by_one_call_in_each_direction", &[], || {
        let (app, devices) = (app(), devices());
        let calls = || app.calls(c"cuMemcpyBatchAsync").zip(app.calls(c"cuMemcpyAsync"));
        let device = buffer(&devices, BufferKind::Device, 20 * LEN);
        let host = buffer(&devices, BufferKind::Pinned, 20 * LEN);
        let back = buffer(&devices, BufferKind::Pinned, 20 * LEN);
        let bytes = pattern(20 * LEN, 8);
        // SAFETY: the buffer is host memory of that length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host.as_device_ptr(), bytes.len()) };
        let before = calls();
        let ways = [(&host, &device, Direction::HostToDevice), (&device, &back, Direction::DeviceToHost)];
        for (from, to, direction) in ways {
            let mut batch = devices.batch(&device.location(), direction, Order::AfterDefaultStream).unwrap();
            batch.page_locked();
            for piece in 0..20 {
                // SAFETY: pieces of buffers that outlive the completion.
                unsafe {
                    let (to, from) = (to.as_device_ptr().add(piece * LEN), from.as_device_ptr().add(piece * LEN));
                    batch.copy(to, from, LEN);
                }
            }
            batch.finish().unwrap().wait().unwrap();
        }
        if let (Some(before), Some(after)) = (before, calls()) {
            assert_eq!((after.0 - before.0, after.1 - before.1), (2, 0));
        }
        // SAFETY: host memory of that length.
        assert!(unsafe { std::slice::from_raw_parts(back.as_device_ptr(), bytes.len()) } == bytes);
    });
}

/// Returns a device buffer with these bytes.
fn uploaded(devices: &Devices, bytes: &[u8]) -> DeviceBuffer {
    let mut device = buffer(devices, BufferKind::Device, bytes.len());
    device.copy_from_host(0, bytes).unwrap();
    devices.default_stream(&device.location()).unwrap().wait().unwrap();
    device
}

/// Downloads many lengths, two copies in each batch. Waits for each batch and checks its bytes.
fn small_downloads(devices: &Devices, device: &DeviceBuffer, bytes: &[u8], lens: impl Iterator<Item = usize>) {
    let host = buffer(devices, BufferKind::Pinned, bytes.len());
    let mut at = 0;
    for len in lens {
        let mut batch = devices.batch(&device.location(), Direction::DeviceToHost, Order::None).unwrap();
        batch.page_locked();
        for _ in 0..2 {
            // SAFETY: pieces of two buffers, which outlive the completion.
            unsafe { batch.copy(host.as_device_ptr().add(at), device.as_device_ptr().add(at), len) };
            at += len.next_multiple_of(4);
        }
        batch.finish().unwrap().wait().unwrap();
        // SAFETY: the same memory, before anything else is copied there.
        let got = unsafe { std::slice::from_raw_parts(host.as_device_ptr().add(at - len.next_multiple_of(4)), len) };
        assert!(got == &bytes[at - len.next_multiple_of(4)..][..len], "{len} bytes are there when they are said to be");
    }
}

#[test]
fn small_copies_complete_when_their_bytes_arrive() {
    isolated("small_copies_complete_when_their_bytes_arrive", &[], || {
        let app = app();
        let asked = || app.calls(c"cuEventQuery").zip(app.calls(c"cuEventRecord"));
        let bytes = pattern(20_000, 6);
        // Whole words only: a single byte equals its old value once in 256 times.
        let lens = || (4..100).step_by(4).chain([500, 1000, 2000]);
        // The patience makes the result independent of the machine's speed: polled bytes, or a driver query.
        for (patience, seen) in [("60s", true), ("0s", false)] {
            let devices = devices_with(&[&format!("device_landing_patience={patience}")]);
            let device = uploaded(&devices, &bytes);
            // The first batch creates streams and events.
            small_downloads(&devices, &device, &bytes, lens());
            let before = asked();
            small_downloads(&devices, &device, &bytes, lens());
            assert!(before.is_none() || (before == asked()) == seen, "{patience}: {before:?} to {:?}", asked());
        }
    });
}

#[test]
fn slow_small_copies_cause_a_driver_query() {
    isolated("slow_small_copies_cause_a_driver_query", &[("SIM_CUDA_DELAY_US", "2000")], || {
        let app = app();
        let devices = devices_with(&["device_landing_patience=1us"]);
        let bytes = pattern(20_000, 6);
        let device = uploaded(&devices, &bytes);
        let before = app.calls(c"cuEventQuery");
        small_downloads(&devices, &device, &bytes, (1..70).chain([500, 1001, 2003]));
        assert!(before.is_none() || app.calls(c"cuEventQuery") > before);
    });
}

/// The memory belongs to the caller again when it gets the error. A copy that is still under way would overwrite it.
#[test]
fn a_failed_query_is_reported_after_the_copy() {
    let test = "a_failed_query_is_reported_after_the_copy";
    if !common::on_simulated_driver(test) {
        return;
    }
    isolated(test, &[("SIM_CUDA_DELAY_US", "50000"), ("SIM_CUDA_FAIL", "cuEventCreate:2")], || {
        let devices = devices_with(&["device_landing_patience=1us"]);
        let bytes = pattern(64, 6);
        let mut device = buffer(&devices, BufferKind::Device, bytes.len());
        device.copy_from_host(0, &bytes).unwrap();
        device.copy_to_host(0, &mut bytes.clone()).unwrap();
        let host = buffer(&devices, BufferKind::Pinned, bytes.len());
        let mut batch = devices.batch(&device.location(), Direction::DeviceToHost, Order::None).unwrap();
        batch.page_locked();
        // SAFETY: two buffers that outlive the completion.
        unsafe { batch.copy(host.as_device_ptr(), device.as_device_ptr(), bytes.len()) };
        let error = batch.finish().unwrap().wait().unwrap_err();
        assert!(error.to_string().contains("cuEventCreate"), "{error}");
        // SAFETY: the memory of the buffer, which no copy writes any more.
        let got = unsafe { std::slice::from_raw_parts(host.as_device_ptr(), bytes.len()) };
        assert!(got == bytes, "the copy was still under way");
    });
}

/// Makes twenty copies from one device to another in a batch.
fn scatter(devices: &Devices) {
    const LEN: usize = 5000;
    let bytes = pattern(20 * LEN, 9);
    let mut source = buffer(devices, BufferKind::Device, bytes.len());
    let other = DeviceIndex(devices.facts().unwrap().devices.len() as u32 - 1);
    let target = DeviceBuffer::new(devices, other, BufferKind::Device, bytes.len()).unwrap();
    source.copy_from_host(0, &bytes).unwrap();
    let mut batch = devices.batch(&source.location(), Direction::DeviceToDevice, Order::AfterDefaultStream).unwrap();
    for piece in 0..20 {
        // SAFETY: pieces of two buffers that outlive the completion.
        unsafe {
            let (to, from) = (target.as_device_ptr().add((19 - piece) * LEN), source.as_device_ptr().add(piece * LEN));
            batch.copy(to, from, LEN);
        }
    }
    batch.finish().unwrap().wait().unwrap();
    let mut got = vec![0; bytes.len()];
    target.copy_to_host(0, &mut got).unwrap();
    assert!(got.chunks(LEN).rev().eq(bytes.chunks(LEN)));
}

#[test]
fn copies_between_devices_are_issued_together_or_one_by_one() {
    let test = "copies_between_devices_are_issued_together_or_one_by_one";
    scatter(&devices());
    if !common::on_simulated_driver(test) {
        return;
    }
    const CASES: [&[(&str, &str)]; 3] = [
        &[("SIM_CUDA_FAIL", "cuMemcpyBatchAsync:801")],
        &[("SIM_CUDA_MISSING", "cuMemcpyBatchAsync")],
        // If the driver can issue them together, it does not need the call for one copy.
        &[("SIM_CUDA_FAIL", "cuMemcpyAsync:1")],
    ];
    common::isolated_each(test, &CASES, |_| scatter(&devices()));
}
