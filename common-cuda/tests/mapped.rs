//! Small copies by the CPU through a mapping of device memory.

mod common;

use cableway_common_cuda::{BufferKind, Completion, DeviceBuffer, DeviceIndex, Devices, Direction, Order};
use common::{App, app, devices_with, isolated, isolated_each, on_simulated_driver, pattern};

const DEVICE: DeviceIndex = DeviceIndex(0);
const LEN: usize = 10_000;

/// The mapping methods of the simulated driver.
const DMA_BUF: &[(&str, &str)] = &[("SIM_CUDA_VERSION", "13030"), ("SIM_CUDA_DIRECT", "dma_buf,mmap")];
const GDRCOPY: &[(&str, &str)] = &[("SIM_CUDA_DIRECT", "gdrdrv")];
const WAYS: [&[(&str, &str)]; 2] = [DMA_BUF, GDRCOPY];
/// The same methods with slow streams.
const SLOW: [&[(&str, &str)]; 2] = [
    &[("SIM_CUDA_VERSION", "13030"), ("SIM_CUDA_DIRECT", "dma_buf,mmap"), ("SIM_CUDA_DELAY_US", "20000")],
    &[("SIM_CUDA_DIRECT", "gdrdrv"), ("SIM_CUDA_DELAY_US", "20000")],
];

/// Mapping is off by default.
const ON: [&str; 2] = ["device_mapped_read_limit=256", "device_mapped_write_limit=4K"];

fn devices() -> Devices {
    devices_with(&ON)
}

fn buffer(devices: &Devices, kind: BufferKind) -> DeviceBuffer {
    DeviceBuffer::new(devices, DEVICE, kind, LEN).unwrap()
}

/// Waits until the default stream is idle.
fn settle(devices: &Devices, buffer: &DeviceBuffer) {
    devices.default_stream(&buffer.location()).unwrap().wait().unwrap();
}

/// # Safety
/// Host memory and buffer outlive the completion.
unsafe fn begin(
    devices: &Devices,
    buffer: &DeviceBuffer,
    direction: Direction,
    host: (*mut u8, usize),
    at: usize,
    order: Order,
) -> Completion {
    let mut batch = devices.batch(&buffer.location(), direction, order).unwrap();
    let device = buffer.as_device_ptr().wrapping_add(at);
    let (dst, src) = if direction == Direction::HostToDevice { (device, host.0) } else { (host.0, device) };
    // SAFETY: the caller's promise.
    unsafe { batch.copy(dst, src, host.1) };
    batch.finish().unwrap()
}

fn put(devices: &Devices, buffer: &DeviceBuffer, at: usize, bytes: &[u8]) {
    let host = (bytes.as_ptr().cast_mut(), bytes.len());
    // SAFETY: both outlive the call.
    unsafe { begin(devices, buffer, Direction::HostToDevice, host, at, Order::AfterDefaultStream) }.wait().unwrap();
}

fn get(devices: &Devices, buffer: &DeviceBuffer, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xDD; len];
    let host = (bytes.as_mut_ptr(), len);
    // SAFETY: both outlive the call.
    unsafe { begin(devices, buffer, Direction::DeviceToHost, host, at, Order::AfterDefaultStream) }.wait().unwrap();
    bytes
}

/// Reads the buffer with the program's own copy.
fn content(buffer: &DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    buffer.copy_to_host(0, &mut bytes).unwrap();
    bytes
}

/// Returns the number of calls that issue copies to streams; `None` on a real driver.
fn handed_over(app: &App) -> Option<i64> {
    [c"cuMemcpyAsync", c"cuMemcpyBatchAsync", c"cuStreamBatchMemOp"].iter().map(|name| app.calls(name)).sum()
}

/// Copies every length at unaligned addresses in both directions. Checks every byte, and that no other byte changes.
fn round_trips(devices: &Devices, kind: BufferKind) {
    let mut buffer = buffer(devices, kind);
    let mut expected = pattern(LEN, 1);
    buffer.copy_from_host(0, &expected).unwrap();
    settle(devices, &buffer);
    for (round, len) in (1..40).chain([64, 100, 255, 256, 257, 1000, 4096, 5000]).enumerate() {
        let at = (round * 131) % (LEN - 5000);
        let bytes = pattern(len, 2 + round as u64);
        put(devices, &buffer, at, &bytes);
        expected[at..at + len].copy_from_slice(&bytes);
        assert!(get(devices, &buffer, at, len) == bytes, "{len} bytes at {at}");
        let before = at.saturating_sub(9);
        assert!(get(devices, &buffer, before, len + 17) == expected[before..before + len + 17], "around {len} at {at}");
    }
    assert!(content(&buffer) == expected, "{kind:?}");
}

#[test]
fn every_kind_of_memory_is_copied_in_both_directions() {
    let kinds = [BufferKind::Device, BufferKind::Pool, BufferKind::Vmm, BufferKind::Managed];
    let devices = devices();
    if let Err(reason) = &devices.facts().unwrap().devices[0].mapped {
        eprintln!("nothing is mapped here: {reason}");
    }
    kinds.into_iter().for_each(|kind| round_trips(&devices, kind));
    let test = "every_kind_of_memory_is_copied_in_both_directions";
    if on_simulated_driver(test) {
        isolated_each(test, &WAYS, |_| {
            let devices = common::devices();
            kinds.into_iter().for_each(|kind| round_trips(&devices, kind));
        });
    }
}

#[test]
fn an_allocation_is_mapped_at_its_second_use() {
    let test = "an_allocation_is_mapped_at_its_second_use";
    if !on_simulated_driver(test) {
        return;
    }
    isolated_each(test, &WAYS, |case| {
        // The mapping is made while the default stream is idle, which a mark in it would delay.
        let (app, devices) = (app(), devices_with(&[ON[0], ON[1], "default_stream_order=legacy"]));
        let said = devices.facts().unwrap().devices[0].mapped.clone().unwrap();
        assert!(said.starts_with(["dma-buf", "gdrcopy"][case]), "{said}");
        let buffer = buffer(&devices, BufferKind::Device);
        let before = handed_over(&app).unwrap();
        put(&devices, &buffer, 0, &[1; 8]);
        assert_eq!(handed_over(&app), Some(before + 1), "the first use must not map the allocation");
        for round in 2..10 {
            put(&devices, &buffer, 3, &[round; 100]);
            assert!(get(&devices, &buffer, 1, 50) == [&[1; 2][..], &[round; 48]].concat());
            put(&devices, &buffer, 1000, &[round; 4096]);
        }
        assert_eq!(handed_over(&app), Some(before + 1));
        // The CPU does not copy more than the limits.
        put(&devices, &buffer, 0, &[3; 4097]);
        assert!(get(&devices, &buffer, 0, 257) == [3; 257]);
        assert_eq!(handed_over(&app), Some(before + 3));
        // Without limits the CPU copies nothing.
        let never = devices_with(&[]);
        for round in 0..3 {
            put(&never, &buffer, 0, &[round; 8]);
            assert!(get(&never, &buffer, 0, 8) == [round; 8]);
        }
        assert_eq!(handed_over(&app), Some(before + 9));
    });
}

#[test]
fn the_cpu_waits_for_the_default_stream() {
    let test = "the_cpu_waits_for_the_default_stream";
    if !on_simulated_driver(test) {
        return;
    }
    isolated_each(test, &SLOW, |_| {
        let devices = devices();
        let mut buffer = buffer(&devices, BufferKind::Device);
        (0..2).for_each(|_| put(&devices, &buffer, 0, &[1; 8]));
        for round in 0..5 {
            buffer.fill(round).unwrap();
            assert!(get(&devices, &buffer, 5, 8) == [round; 8], "round {round}");
            buffer.fill(round + 100).unwrap();
            put(&devices, &buffer, 64, &[7; 30]);
            let mut expected = vec![round + 100; LEN];
            expected[64..94].fill(7);
            assert!(content(&buffer) == expected, "round {round}");
        }
    });
}

/// A batch without an order of its own relies on an earlier batch that waits or has waited.
#[test]
fn the_cpu_waits_for_earlier_batches() {
    let test = "the_cpu_waits_for_earlier_batches";
    if !on_simulated_driver(test) {
        return;
    }
    isolated_each(test, &SLOW, |_| {
        let (app, devices) = (app(), devices());
        let mut buffer = buffer(&devices, BufferKind::Device);
        (0..2).for_each(|_| put(&devices, &buffer, 0, &[1; 8]));
        // A copy to pageable memory would be complete on return.
        let large = DeviceBuffer::new(&devices, DEVICE, BufferKind::Pinned, LEN).unwrap();
        for round in 2..6 {
            buffer.fill(round).unwrap();
            let mut small = vec![0; 8];
            // SAFETY: all of them outlive the completions.
            unsafe {
                let start = |host, at, order| begin(&devices, &buffer, Direction::DeviceToHost, host, at, order);
                let first = start((large.as_device_ptr(), 4000), 0, Order::AfterDefaultStream);
                let second = start((small.as_mut_ptr(), 8), 4000, Order::None);
                second.wait().unwrap();
                first.wait().unwrap();
            }
            assert!(small == [round; 8], "round {round}");
            // SAFETY: host memory of that length, which nobody writes any more.
            assert!(unsafe { std::slice::from_raw_parts(large.as_device_ptr(), 4000) } == [round; 4000]);
            // The work is complete, so no query is needed.
            let before = handed_over(&app);
            // SAFETY: as above.
            unsafe { begin(&devices, &buffer, Direction::DeviceToHost, (small.as_mut_ptr(), 8), 9, Order::None) }
                .wait()
                .unwrap();
            assert_eq!(handed_over(&app), before);
        }
    });
}

/// Returns the number of dma-buf mappings in this process, including the simulated driver's own: one for each
/// allocation.
fn dma_bufs_mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("sim-cuda-dma-buf")).count()
}

#[test]
fn a_new_allocation_at_an_old_address_is_mapped_again() {
    let test = "a_new_allocation_at_an_old_address_is_mapped_again";
    if !on_simulated_driver(test) {
        return;
    }
    isolated_each(test, &WAYS, |_| {
        let devices = devices();
        let mut addresses = Vec::new();
        for round in 0..50_u8 {
            let buffer = buffer(&devices, BufferKind::Device);
            addresses.push(buffer.as_device_ptr() as usize);
            for at in [0, 8, 16] {
                put(&devices, &buffer, at, &[round; 8]);
                assert!(get(&devices, &buffer, at, 8) == [round; 8]);
            }
            assert!(content(&buffer)[..24] == [round; 24], "the copy must reach the new memory");
            assert!(dma_bufs_mapped() <= 2, "one at a time");
        }
        addresses.sort_unstable();
        addresses.dedup();
        assert!(addresses.len() < 50, "some address must be reused");
    });
}

#[test]
fn cpu_mappings_are_bounded_and_end_with_their_memory() {
    let test = "cpu_mappings_are_bounded_and_end_with_their_memory";
    if !on_simulated_driver(test) {
        return;
    }
    isolated(test, DMA_BUF, || {
        let devices = devices();
        let buffers: Vec<DeviceBuffer> = (0..40).map(|_| buffer(&devices, BufferKind::Device)).collect();
        for round in 0..3 {
            for (index, buffer) in buffers.iter().enumerate() {
                let bytes = [index as u8 ^ round; 20];
                put(&devices, buffer, index, &bytes);
                assert!(get(&devices, buffer, index, 20) == bytes);
            }
        }
        assert_eq!(dma_bufs_mapped(), 40 + 16);
        let kept = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, LEN).unwrap();
        drop(buffers);
        // Copies by other mechanisms check for freed memory.
        (0..16).for_each(|_| put(&devices, &kept, 0, &[5; 5000]));
        assert_eq!(dma_bufs_mapped(), 1);
        // Large allocations are never mapped.
        let large = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, (64 << 20) + 1).unwrap();
        (0..4).for_each(|_| put(&devices, &large, 0, &[5; 8]));
        assert_eq!(dma_bufs_mapped(), 2);
    });
}

#[test]
fn mappings_end_with_their_context() {
    let test = "mappings_end_with_their_context";
    if !on_simulated_driver(test) {
        return;
    }
    isolated_each(test, &WAYS, |_| {
        let (app, devices) = (app(), devices());
        for round in 0..5_u8 {
            let context = app.create_context(0);
            let target: *mut u8 = std::ptr::with_exposed_provenance_mut(app.malloc(LEN) as usize);
            let at = devices.classify(target, LEN);
            let bytes = [round; 8];
            for _ in 0..4 {
                let mut batch = devices.batch(&at, Direction::HostToDevice, Order::AfterDefaultStream).unwrap();
                // SAFETY: both have 8 bytes.
                unsafe { batch.copy(target.wrapping_add(8), bytes.as_ptr(), 8) };
                batch.finish().unwrap().wait().unwrap();
            }
            assert_eq!(app.download(target as u64 + 8, 8), bytes);
            assert!(dma_bufs_mapped() <= 2);
            app.cuCtxDestroy(context).unwrap();
        }
    });
}

#[test]
fn refusals_cause_no_warning_and_no_further_calls() {
    let test = "refusals_cause_no_warning_and_no_further_calls";
    if !on_simulated_driver(test) {
        return;
    }
    // The cases: the driver is too old; it has no dma-bufs; they cannot be mapped, as with driver 580; it refuses to
    // export one.
    const CASES: [&[(&str, &str)]; 4] = [
        &[("SIM_CUDA_DIRECT", "dma_buf")],
        &[("SIM_CUDA_VERSION", "13030")],
        &[("SIM_CUDA_VERSION", "13030"), ("SIM_CUDA_DIRECT", "dma_buf")],
        &[
            ("SIM_CUDA_VERSION", "13030"),
            ("SIM_CUDA_DIRECT", "dma_buf,mmap"),
            ("SIM_CUDA_FAIL", "cuMemGetHandleForAddressRange:1"),
        ],
    ];
    isolated_each(test, &CASES, |case| {
        let log = common::collect_log();
        let (app, devices) = (app(), devices());
        for round in 0..20 {
            let buffer = buffer(&devices, BufferKind::Device);
            for _ in 0..4 {
                put(&devices, &buffer, 7, &[round; 8]);
                assert!(get(&devices, &buffer, 7, 8) == [round; 8]);
            }
        }
        // The self-test's own memory is refused, so all memory will be.
        let asked = [0, 0, 1, 1][case];
        assert_eq!(app.calls(c"cuMemGetHandleForAddressRange"), Some(asked));
        let mentioned = log.lock().unwrap().iter().filter(|line| line.contains("not mapped")).count();
        assert_eq!(mentioned, usize::from(asked != 0));
        assert!(log.lock().unwrap().iter().all(|line| line.starts_with("INFO")));
        // After that no further calls are made.
        let buffer = buffer(&devices, BufferKind::Device);
        let ids = || app.calls(c"cuPointerGetAttributes").unwrap();
        let at = buffer.location();
        let mut bytes = [0; 8];
        let mut copy = |devices: &Devices| {
            let before = ids();
            let mut batch = devices.batch(&at, Direction::DeviceToHost, Order::None).unwrap();
            // SAFETY: both have 8 bytes and outlive the completion.
            unsafe { batch.copy(bytes.as_mut_ptr(), buffer.as_device_ptr(), 8) };
            batch.finish().unwrap().wait().unwrap();
            ids() - before
        };
        let never = devices_with(&[]);
        assert_eq!(copy(&devices), copy(&never));
    });
}
