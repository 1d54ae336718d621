//! Kernels within a device run beside those between devices.

mod common;

use std::time::{Duration, Instant};

use cableway_common_cuda::{BlockCopy, BufferKind, DeviceBuffer, DeviceIndex, Devices, Direction, Order, Strided};
use common::{app, devices_with, isolated_each, pattern};

const LEN: usize = 1 << 20;

/// Only a hang takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

fn filled(devices: &Devices, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::Device, bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    buffer
}

/// A job between devices waits for the program's default stream. One within the device does not wait for that job.
#[test]
fn blocks_within_a_device_do_not_wait_for_those_between_devices() {
    let test = "blocks_within_a_device_do_not_wait_for_those_between_devices";
    isolated_each(test, &[&[]], |_| {
        let devices = devices_with(&["device_kernel_patience=100s", "default_stream_order=legacy"]);
        let (from, mut expected) = (pattern(LEN, 1), pattern(LEN, 2));
        let (source, target) = (filled(&devices, &from), filled(&devices, &expected));
        let begun = Instant::now();
        while !devices.kernels(&source.location()) {
            assert!(begun.elapsed() < PATIENCE, "no kernels");
            std::thread::yield_now();
        }
        let app = app();
        app.use_device(0);
        let mut word = std::ptr::null_mut();
        app.cuMemHostAlloc(&raw mut word, 4, 2).unwrap();
        let word: *mut u32 = word.cast();
        // SAFETY: fresh memory, of which the stream only reads.
        unsafe { word.write_volatile(0) };
        app.wait_value(0, word as u64, 1, 0);

        let blocks = Strided { offset: 0, block: 1000, dimensions: [(50, 2000), (1, 0), (1, 0)] };
        let start = |direction, order, at: usize| {
            let mut batch = devices.batch(&source.location(), direction, order).unwrap();
            let (dst, src) = (target.as_device_ptr().wrapping_add(at), source.as_device_ptr().wrapping_add(at));
            // SAFETY: parts of two buffers that outlive the completion.
            unsafe { batch.copy_blocks(BlockCopy { dst, dst_blocks: blocks, src, src_blocks: blocks, len: 50_000 }) };
            batch.finish().unwrap()
        };
        let mut between = start(Direction::DeviceToDevice, Order::AfterDefaultStream, 0);
        let (mut within, begun) = (start(Direction::WithinDevice, Order::None, 200_000), Instant::now());
        while !within.poll().unwrap() {
            assert!(begun.elapsed() < PATIENCE, "it waits for the other job");
        }
        assert!(!between.poll().unwrap(), "the default stream waits for the word");
        // SAFETY: the stream's word, as above.
        unsafe { word.write_volatile(1) };
        between.wait().unwrap();
        for at in [0, 200_000] {
            for row in (at..).step_by(2000).take(50) {
                expected[row..row + 1000].copy_from_slice(&from[row..row + 1000]);
            }
        }
        let mut found = vec![0; LEN];
        target.copy_to_host(0, &mut found).unwrap();
        assert!(found == expected);
    });
}
