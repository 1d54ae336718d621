//! Small copies by the resident kernel: every byte is right, whenever the kernel starts and ends.

mod common;

use std::time::{Duration, Instant};

use cableway_common_cuda::{BufferKind, Completion, DeviceBuffer, DeviceIndex, Devices, Direction, Order, Within};
use common::{app, devices_with, isolated_each, pattern};

const LEN: usize = 1 << 20;

/// A buffer on the first device, and one that its kernels can access: on the second device if there is one.
struct Pair {
    source: DeviceBuffer,
    from: Vec<u8>,
    target: DeviceBuffer,
    expected: Vec<u8>,
}

impl Pair {
    fn new(devices: &Devices, seed: u64) -> Pair {
        let (from, expected) = (pattern(LEN, seed), pattern(LEN, seed + 1));
        let mut source = DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::Device, LEN).unwrap();
        source.copy_from_host(0, &from).unwrap();
        let app = app();
        // The simulated driver's kernels access only mapped memory of other devices.
        let two = !app.simulated() && app.device_count() > 1;
        let mut target = DeviceBuffer::new(devices, DeviceIndex(two.into()), BufferKind::Device, LEN).unwrap();
        target.copy_from_host(0, &expected).unwrap();
        if two {
            let peer = app.use_device(1);
            app.use_device(0);
            // Peer access is already enabled for the second pair in a process.
            let _ = app.cuCtxEnablePeerAccess(peer, 0);
        }
        Pair { source, from, target, expected }
    }

    /// Begins a batch of copies of several lengths between unaligned addresses within this part of the buffers.
    fn begin(&mut self, devices: &Devices, numbers: &mut Numbers, part: std::ops::Range<usize>) -> Completion {
        let order = [Order::None, Order::AfterDefaultStream][numbers.below(2)];
        let mut batch = devices.batch(&self.source.location(), Direction::DeviceToDevice, order).unwrap();
        batch.reachable(Within::OneNode);
        let pieces = 1 + numbers.below(3);
        let most = [9, 300, 5000, 20_000][numbers.below(4)];
        let align = [1, 2, 4, 8, 16][numbers.below(5)];
        let mut at = part.start;
        for _ in 0..pieces {
            at = (at + numbers.below(40)).next_multiple_of(align);
            let len = 1 + numbers.below(most);
            if at + len > part.end {
                break;
            }
            let read = numbers.below(LEN - len) / align * align;
            self.expected[at..at + len].copy_from_slice(&self.from[read..read + len]);
            let (to, from) = (self.target.as_device_ptr(), self.source.as_device_ptr());
            // SAFETY: parts of two buffers that outlive the completion; a part is written by one batch at a time.
            unsafe { batch.copy(to.add(at), from.add(read), len) };
            at += len;
        }
        batch.finish().unwrap()
    }

    fn check(&self, what: &str) {
        let mut bytes = vec![0; LEN];
        self.target.copy_to_host(0, &mut bytes).unwrap();
        let wrong = bytes.iter().zip(&self.expected).position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "{what}");
    }
}

/// Returns pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % limit as u64) as usize
    }
}

/// Runs consecutive and concurrent batches, each in its own part of the buffers.
fn traffic(devices: &Devices, batches: usize) {
    const AT_ONCE: usize = 4;
    const PART: usize = LEN / AT_ONCE;
    let begun = Instant::now();
    let (mut pair, mut numbers) = (Pair::new(devices, 1), Numbers(7));
    while !devices.kernels(&pair.source.location()) && begun.elapsed() < Duration::from_millis(300) {
        std::thread::yield_now();
    }
    let mut running: [Option<Completion>; AT_ONCE] = [const { None }; AT_ONCE];
    for batch in 0..batches {
        let slot = batch % AT_ONCE;
        if let Some(completion) = running[slot].take() {
            completion.wait().unwrap();
        }
        running[slot] = Some(pair.begin(devices, &mut numbers, slot * PART..(slot + 1) * PART));
        if numbers.below(3) == 0 {
            for completion in running.iter_mut().filter_map(Option::take) {
                completion.wait().unwrap();
            }
        }
        if numbers.below(200) == 0 {
            // Long enough for a lease and a pause to end.
            std::thread::sleep(Duration::from_micros(400));
        }
    }
    for completion in running.into_iter().flatten() {
        completion.wait().unwrap();
    }
    pair.check("after all batches");
}

/// Counts copies by copy engines, in a process without other copies between devices.
fn by_engine() -> Option<i64> {
    Some(app().calls(c"cuMemcpyAsync")? + app().calls(c"cuMemcpyBatchAsync")?)
}

fn launches() -> Option<i64> {
    app().calls(c"cuLaunchKernel")
}

/// Without graphs each of the other kernels is launched once when they are loaded.
const NO_GRAPHS: &[(&str, &str)] = &[("SIM_CUDA_FAIL", "cuGraphCreate:801")];
const LOADING: i64 = 4;

const COPIER: [&str; 3] = ["device_copier=yes", "device_copier_idle=5ms", "device_kernel_patience=20s"];

#[test]
fn the_copier_moves_every_byte() {
    let test = "the_copier_moves_every_byte";
    isolated_each(test, &[NO_GRAPHS], |_| {
        let devices = devices_with(&[&COPIER[..], &["device_copier_lease=100ms"]].concat());
        traffic(&devices, 3000);
        if let (Some(engine), Some(launches)) = (by_engine(), launches()) {
            assert!(launches > LOADING, "the kernel must be launched: {launches}");
            assert!(engine < 2700, "the copier must make most of 3000 batches: {engine} by engine");
        }
    });
}

/// Leases are so short that commands arrive while the kernel ends.
#[test]
fn copies_refused_by_the_copier_are_still_made() {
    let test = "copies_refused_by_the_copier_are_still_made";
    isolated_each(test, &[NO_GRAPHS, NO_GRAPHS], |case| {
        let lease = ["device_copier_lease=20us", "device_copier_lease=300us"][case];
        let devices = devices_with(&[&COPIER[..], &[lease]].concat());
        traffic(&devices, 6000);
        if let Some(launches) = launches() {
            assert!(launches > LOADING + 6, "the kernel must be launched repeatedly: {launches}");
        }
    });
}

/// If the kernel finds no room, or the driver refuses it, copy engines make all copies, and no copy waits.
#[test]
fn copy_engines_copy_without_the_copier() {
    let test = "copy_engines_copy_without_the_copier";
    if !common::on_simulated_driver(test) {
        return;
    }
    const CASES: [&[(&str, &str)]; 4] = [
        &[("SIM_CUDA_KERNEL_DELAY_US", "100000")],
        &[("SIM_CUDA_FAIL", "cuModuleLoadData:218:2+")],
        &[("SIM_CUDA_FAIL", "cuModuleGetFunction:500:3+")],
        &[("SIM_CUDA_FAIL", "cuGraphCreate:801,cuLaunchKernel:701:5+")],
    ];
    isolated_each(test, &CASES, |_| {
        let devices = devices_with(&["device_copier=yes", "device_copier_idle=5ms"]);
        traffic(&devices, 600);
        assert!(by_engine().unwrap() >= 600);
    });
}

#[test]
fn the_copier_is_off_by_default() {
    let test = "the_copier_is_off_by_default";
    isolated_each(test, &[&[], &[]], |case| {
        let devices = devices_with([&["device_copier=no"][..], &["device_copier=yes", "device_kernels=no"]][case]);
        traffic(&devices, 100);
        if let Some(engine) = by_engine() {
            assert!(engine >= 100, "{engine}");
        }
    });
}

/// The context is destroyed while the kernel runs in it.
#[test]
fn the_copier_ends_with_its_context() {
    let test = "the_copier_ends_with_its_context";
    isolated_each(test, &[&[]], |_| {
        for _ in 0..3 {
            // Much longer than the kernel may run without being told to end.
            let devices = devices_with(&[&COPIER[..], &["device_copier_lease=600s"]].concat());
            traffic(&devices, 300);
            let begun = Instant::now();
            drop(devices);
            assert!(begun.elapsed() < Duration::from_secs(300), "the kernel must be told to end");
        }
        if let Some((_, streams)) = app().live() {
            assert_eq!(streams, 0, "all streams must be destroyed");
        }
    });
}
