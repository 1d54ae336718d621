//! Copies between all kinds of memory.

mod common;

use std::sync::Arc;

use cableway_common_cuda::{
    BouncePool, BufferKind, Completion, CopyOrder, DeviceBuffer, DeviceIndex, Devices, Direction, Location, Order,
    RowCopy,
};
use common::{app, devices, devices_with, isolated, pattern};

const DEVICE: DeviceIndex = DeviceIndex(0);
const ON_DEVICE: [BufferKind; 4] = [BufferKind::Device, BufferKind::Pool, BufferKind::Vmm, BufferKind::Managed];

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
fn every_pair_of_kinds() {
    let devices = devices();
    for len in [1, 7, 4096, 1 << 20] {
        for from in common::kinds() {
            for to in common::kinds() {
                let bytes = pattern(len, 3);
                let mut source = buffer(&devices, from, len);
                let destination = buffer(&devices, to, len);
                source.copy_from_host(0, &bytes).unwrap();
                // SAFETY: both buffers have `len` bytes and are ours alone.
                unsafe { devices.copy(destination.as_device_ptr(), source.as_device_ptr(), len) }.unwrap();
                let mut got = vec![0; len];
                destination.copy_to_host(0, &mut got).unwrap();
                assert!(got == bytes, "{len} bytes from {from:?} to {to:?}");
            }
        }
    }
}

#[test]
fn pageable_memory_both_ways() {
    let devices = devices();
    for kind in ON_DEVICE {
        let buffer = buffer(&devices, kind, 300_001);
        let bytes = pattern(300_001, 4);
        let mut got = vec![0; bytes.len()];
        // SAFETY: all of the same length, and ours.
        unsafe {
            devices.copy(buffer.as_device_ptr(), bytes.as_ptr(), bytes.len()).unwrap();
            devices.copy(got.as_mut_ptr(), buffer.as_device_ptr(), bytes.len()).unwrap();
        }
        assert!(got == bytes, "{kind:?}");
    }
}

#[test]
fn default_stream_work_is_known_to_be_done_after_a_query() {
    let test = "default_stream_work_is_known_to_be_done_after_a_query";
    isolated(test, &[("SIM_CUDA_DELAY_US", "20000")], || {
        let devices = devices_with(&["default_stream_order=legacy"]);
        let mut buffer = buffer(&devices, BufferKind::Device, 1 << 20);
        let at = buffer.location();
        buffer.fill(1).unwrap();
        let begun = CopyOrder::begin();
        assert_eq!(begun.of(&at, &devices), Order::AfterDefaultStream, "nothing is known before the query");
        while !devices.ask_default_stream(&at).unwrap() {}
        assert_eq!(begun.of(&at, &devices), Order::None);
        assert_eq!(
            CopyOrder::begin().of(&at, &devices),
            Order::AfterDefaultStream,
            "nothing is known about later work"
        );
        buffer.fill(2).unwrap();
        if common::on_simulated_driver(test) {
            assert!(!devices.ask_default_stream(&at).unwrap(), "the stream is busy");
        }
        assert_eq!(CopyOrder::begin().of(&at, &devices_with(&["default_stream_order=none"])), Order::None);
    });
}

#[test]
fn an_empty_batch_is_done() {
    let devices = devices();
    let buffer = buffer(&devices, BufferKind::Device, 64);
    let mut batch = devices.batch(&buffer.location(), Direction::DeviceToHost, Order::None).unwrap();
    // SAFETY: nothing is copied.
    unsafe {
        batch.copy(std::ptr::null_mut(), buffer.as_device_ptr(), 0);
        batch.copy_rows(RowCopy {
            dst: std::ptr::null_mut(),
            dst_pitch: 8,
            src: buffer.as_device_ptr(),
            src_pitch: 8,
            width: 0,
            rows: 5,
        });
        batch.copy_rows(RowCopy {
            dst: std::ptr::null_mut(),
            dst_pitch: 8,
            src: buffer.as_device_ptr(),
            src_pitch: 8,
            width: 5,
            rows: 0,
        });
    }
    assert!(batch.finish().unwrap().poll().unwrap());
}

/// Gathers rows of `width` bytes at a distance of `pitch`, and scatters them again.
fn rows_round_trip(devices: &Devices, kind: BufferKind, width: usize, pitch: usize, rows: usize) {
    let len = pitch * (rows - 1) + width;
    let bytes = pattern(len, 6);
    let mut source = buffer(devices, kind, len);
    source.copy_from_host(0, &bytes).unwrap();
    let at = source.location();
    let mut packed = vec![0_u8; width * rows];
    let mut batch = devices.batch(&at, Direction::DeviceToHost, Order::AfterDefaultStream).unwrap();
    // SAFETY: the last row ends with the buffer.
    unsafe {
        batch.copy_rows(RowCopy {
            dst: packed.as_mut_ptr(),
            dst_pitch: width,
            src: source.as_device_ptr(),
            src_pitch: pitch,
            width,
            rows,
        })
    };
    batch.finish().unwrap().wait().unwrap();
    for (row, got) in packed.chunks(width).enumerate() {
        assert!(got == &bytes[row * pitch..][..width], "{kind:?} {width} of every {pitch}, row {row}");
    }
    if pitch < width {
        return;
    }
    let mut destination = buffer(devices, kind, len);
    destination.copy_from_host(0, &vec![0; len]).unwrap();
    let mut batch = devices.batch(&at, Direction::HostToDevice, Order::AfterDefaultStream).unwrap();
    // SAFETY: as above.
    unsafe {
        batch.copy_rows(RowCopy {
            dst: destination.as_device_ptr(),
            dst_pitch: pitch,
            src: packed.as_ptr(),
            src_pitch: width,
            width,
            rows,
        })
    };
    batch.finish().unwrap().wait().unwrap();
    let mut got = vec![0; len];
    destination.copy_to_host(0, &mut got).unwrap();
    for (offset, byte) in got.iter().enumerate() {
        let expected = if offset % pitch < width { bytes[offset] } else { 0 };
        assert_eq!(*byte, expected, "{kind:?} {width} of every {pitch}, byte {offset}");
    }
}

#[test]
fn rows_are_gathered_and_scattered() {
    let devices = devices();
    for kind in ON_DEVICE {
        for (width, pitch, rows) in [(8, 32, 1000), (64, 256, 100), (1, 2, 999), (512, 512, 10), (100, 300, 1)] {
            rows_round_trip(&devices, kind, width, pitch, rows);
        }
    }
}

/// A send may read rows that overlap, which the driver's own 2-D copy refuses.
#[test]
fn overlapping_rows_are_read() {
    rows_round_trip(&devices(), BufferKind::Device, 100, 50, 20);
}

#[test]
fn rows_further_apart_than_the_device_can_copy() {
    let devices = devices();
    // Beyond CU_DEVICE_ATTRIBUTE_MAX_PITCH, which is 2 GiB - 1 on every device. Untouched memory costs nothing on the
    // simulated driver.
    let pitch = 1_usize << 31;
    let mut source = buffer(&devices, BufferKind::Device, pitch + 64);
    let (first, second) = (pattern(64, 1), pattern(64, 2));
    source.copy_from_host(0, &first).unwrap();
    source.copy_from_host(pitch, &second).unwrap();
    let mut packed = [0_u8; 128];
    let mut batch = devices.batch(&source.location(), Direction::DeviceToHost, Order::AfterDefaultStream).unwrap();
    // SAFETY: the second row ends with the buffer.
    unsafe {
        batch.copy_rows(RowCopy {
            dst: packed.as_mut_ptr(),
            dst_pitch: 64,
            src: source.as_device_ptr(),
            src_pitch: pitch,
            width: 64,
            rows: 2,
        })
    };
    batch.finish().unwrap().wait().unwrap();
    assert_eq!((&packed[..64], &packed[64..]), (&first[..], &second[..]));
}

/// More copies than a ring of a few hundred events would hold.
#[test]
fn five_thousand_copies_are_under_way_at_once() {
    const COUNT: usize = 5000;
    let devices = devices();
    let mut buffer = buffer(&devices, BufferKind::Device, COUNT * 8);
    let bytes = pattern(COUNT * 8, 7);
    buffer.copy_from_host(0, &bytes).unwrap();
    let at = buffer.location();
    let mut got = vec![0_u8; COUNT * 8];
    for _ in 0..2 {
        got.fill(0);
        let completions: Vec<_> = (0..COUNT)
            .map(|i| {
                // SAFETY: pieces of two ranges that stay until the completions are done.
                unsafe { download(&devices, &at, got.as_mut_ptr().add(i * 8), buffer.as_device_ptr().add(i * 8), 8) }
            })
            .collect();
        for completion in completions.into_iter().rev() {
            completion.wait().unwrap();
        }
        assert!(got == bytes);
    }
}

#[test]
fn a_dropped_completion_waits() {
    let devices = devices();
    let mut buffer = buffer(&devices, BufferKind::Device, 1 << 20);
    let pool = BouncePool::new(&devices, 1 << 20, 1);
    let mut bounce = pool.take().unwrap();
    for seed in 0..50 {
        let bytes = pattern(1 << 20, seed);
        buffer.copy_from_host(0, &bytes).unwrap();
        // SAFETY: the completion is dropped before anything else is done with either.
        drop(unsafe { download(&devices, &buffer.location(), bounce.as_mut_ptr(), buffer.as_device_ptr(), 1 << 20) });
        assert!(bounce[..] == bytes[..], "round {seed}");
    }
}

/// `cudaMemcpy` from pageable memory, `cudaMemset` and copies within a device return before they are complete. A
/// program that calls them and then sends must be right.
#[test]
fn copies_come_after_the_default_streams_work() {
    const LEN: usize = 64 << 10;
    let (app, devices) = (app(), devices());
    let pool = BouncePool::new(&devices, LEN, 1);
    let mut bounce = pool.take().unwrap();
    let mut buffer = buffer(&devices, BufferKind::Device, LEN);
    app.use_device(0);
    for seed in 0..300 {
        let bytes = pattern(LEN, seed);
        let expected = if seed % 3 == 0 {
            buffer.fill(seed as u8).unwrap();
            vec![seed as u8; LEN]
        } else {
            buffer.copy_from_host(0, &bytes).unwrap();
            bytes
        };
        let at = buffer.location();
        // SAFETY: both have `LEN` bytes, and the completion is waited for.
        unsafe { download(&devices, &at, bounce.as_mut_ptr(), buffer.as_device_ptr(), LEN) }.wait().unwrap();
        assert!(bounce[..] == expected[..], "stale bytes in round {seed}");
    }
}

#[test]
fn without_the_order_copies_do_not_wait_for_the_default_stream() {
    let test = "without_the_order_copies_do_not_wait_for_the_default_stream";
    if !common::on_simulated_driver(test) {
        return;
    }
    isolated(test, &[], || {
        let app = app();
        for (value, expected) in [("none", false), ("legacy", true)] {
            let devices = devices_with(&[&format!("default_stream_order={value}")]);
            let buffer = buffer(&devices, BufferKind::Device, 64);
            let waits = app.calls(c"cuStreamWaitEvent");
            let mut bytes = [0_u8; 64];
            // SAFETY: both have 64 bytes, and the copy is waited for.
            unsafe { devices.copy(bytes.as_mut_ptr(), buffer.as_device_ptr(), 64) }.unwrap();
            assert_eq!(app.calls(c"cuStreamWaitEvent") != waits, expected, "{value}");
        }
    });
}

#[test]
fn threads_copy_at_the_same_time() {
    let devices = Arc::new(devices());
    let threads: Vec<_> = (0..8_u64)
        .map(|seed| {
            let devices = devices.clone();
            std::thread::spawn(move || {
                for round in 0..30 {
                    let bytes = pattern(10_000, seed * 100 + round);
                    let buffer = buffer(&devices, BufferKind::Device, bytes.len());
                    let mut got = vec![0; bytes.len()];
                    // SAFETY: all of the same length, and this thread's.
                    unsafe {
                        devices.copy(buffer.as_device_ptr(), bytes.as_ptr(), bytes.len()).unwrap();
                        devices.copy(got.as_mut_ptr(), buffer.as_device_ptr(), bytes.len()).unwrap();
                    }
                    assert!(got == bytes);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn between_two_devices() {
    let (app, devices) = (app(), devices());
    if app.device_count() < 2 {
        eprintln!("skipped between_two_devices: there is one device");
        return;
    }
    // The driver itself refuses copies to pool or virtual memory of another device without granted access.
    for (kind, to) in ON_DEVICE.into_iter().flat_map(|kind| ON_DEVICE.map(|to| (kind, to))) {
        for len in [5, 9 << 20] {
            let bytes = pattern(len, 8);
            let mut source = buffer(&devices, kind, len);
            let destination = DeviceBuffer::new(&devices, DeviceIndex(1), to, len).unwrap();
            source.copy_from_host(0, &bytes).unwrap();
            // SAFETY: both have `len` bytes and are ours.
            unsafe { devices.copy(destination.as_device_ptr(), source.as_device_ptr(), len) }.unwrap();
            let mut got = vec![0; len];
            destination.copy_to_host(0, &mut got).unwrap();
            assert!(got == bytes, "{len} bytes from {kind:?} to {to:?}");
        }
    }
}

/// Two parts of a program may each open the devices.
#[test]
fn a_location_is_valid_for_all_devices_handles() {
    let (here, there) = (devices(), devices());
    let bytes = pattern(1000, 9);
    let mut buffer = buffer(&here, BufferKind::Device, bytes.len());
    buffer.copy_from_host(0, &bytes).unwrap();
    let mut got = vec![0; bytes.len()];
    // SAFETY: both have as many bytes, and the completion is waited for.
    unsafe { download(&there, &buffer.location(), got.as_mut_ptr(), buffer.as_device_ptr(), bytes.len()) }
        .wait()
        .unwrap();
    assert!(got == bytes);
}

#[test]
fn host_memory_has_no_batch() {
    let error = devices().batch(&Location::HOST, Direction::DeviceToHost, Order::None).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("host memory"), "{error}");
}
