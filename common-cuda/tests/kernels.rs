//! Copies by kernels: every byte is right and no other byte changes, even if jobs are revoked.

mod common;

use std::time::{Duration, Instant};

use cableway_common_cuda::{
    BlockCopy, BlockList, BufferKind, Completion, DeviceBuffer, DeviceIndex, Devices, Direction, Order, Packing,
    Spread, Strided, Within,
};
use common::{app, devices, devices_with, isolated_each, pattern};

const DEVICE: DeviceIndex = DeviceIndex(0);
const LEN: usize = 1 << 20;

fn filled(devices: &Devices, seed: u64) -> (DeviceBuffer, Vec<u8>) {
    let bytes = pattern(LEN, seed);
    let mut buffer = DeviceBuffer::new(devices, DEVICE, BufferKind::Device, LEN).unwrap();
    buffer.copy_from_host(0, &bytes).unwrap();
    (buffer, bytes)
}

/// Only a hang takes so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until kernels are loaded. Returns whether they are.
fn await_kernels(devices: &Devices, buffer: &DeviceBuffer) -> bool {
    let begun = Instant::now();
    while !devices.kernels(&buffer.location()) {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn content(buffer: &DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    buffer.copy_to_host(0, &mut bytes).unwrap();
    bytes
}

/// Returns pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Runs batches of plain copies of odd sizes between unaligned addresses.
fn many_pieces(devices: &Devices) {
    let mut numbers = Numbers(1);
    for round in 0..12 {
        let ((source, from), (target, mut expected)) = (filled(devices, round), filled(devices, 100 + round));
        let mut batch =
            devices.batch(&source.location(), Direction::DeviceToDevice, Order::AfterDefaultStream).unwrap();
        batch.reachable([Within::OneDevice, Within::OneNode][round as usize % 2]);
        let (pieces, most) = (1 + numbers.below(70) as usize, [9, 100, 5000, 15_000][round as usize % 4]);
        let align = [1, 2, 4, 16][numbers.below(4) as usize];
        let mut at = 0;
        for _ in 0..pieces {
            let len = 1 + numbers.below(most) as usize;
            at = (at + numbers.below(40) as usize).next_multiple_of(align);
            if at + len > LEN {
                break;
            }
            let read = numbers.below((LEN - len) as u64) as usize / align * align;
            expected[at..at + len].copy_from_slice(&from[read..read + len]);
            // SAFETY: parts of two buffers that outlive the completion; what is written is written once.
            unsafe { batch.copy(target.as_device_ptr().add(at), source.as_device_ptr().add(read), len) };
            at += len;
        }
        batch.finish().unwrap().wait().unwrap();
        assert!(content(&target) == expected, "round {round}: {pieces} pieces of up to {most} bytes");
    }
}

/// Returns non-overlapping blocks within `LEN` bytes, with this many bytes in total.
fn sides(total: u64, unit: u64) -> Vec<Strided> {
    let count = total / unit;
    vec![
        Strided::run(total),
        Strided { offset: 24, block: unit, dimensions: [(count, unit as i64 * 2 + 8), (1, 0), (1, 0)] },
        Strided {
            offset: (LEN as u64 - unit) as i64,
            block: unit,
            dimensions: [(count, -(unit as i64) - 8), (1, 0), (1, 0)],
        },
        Strided {
            offset: 8,
            block: unit,
            dimensions: [(2, unit as i64 + 16), (count / 2, unit as i64 * 3 + 32), (1, 0)],
        },
        Strided {
            offset: 0,
            block: unit,
            dimensions: [(2, unit as i64), (2, unit as i64 * 3), (count / 4, unit as i64 * 6 + 1)],
        },
    ]
}

fn offsets(side: &Strided) -> Vec<usize> {
    let mut offsets = Vec::new();
    for outer in 0..side.dimensions[2].0 {
        for middle in 0..side.dimensions[1].0 {
            for inner in 0..side.dimensions[0].0 {
                let index = [inner, middle, outer];
                let at = side.offset + (0..3).map(|d| index[d] as i64 * side.dimensions[d].1).sum::<i64>();
                offsets.extend((0..side.block).map(|byte| (at + byte as i64) as usize));
            }
        }
    }
    offsets
}

/// Copies every shape to every other, whole and truncated.
fn all_shapes(devices: &Devices) {
    let ((source, from), (mut target, before)) = (filled(devices, 3), filled(devices, 4));
    for (total, unit) in [(9600, 16), (2400, 8), (500, 5), (48_000, 600)] {
        for to_side in sides(total, unit) {
            for from_side in sides(total, unit) {
                for len in [total, total - unit / 2 - 1] {
                    target.copy_from_host(0, &before).unwrap();
                    let mut expected = before.clone();
                    for (to, read) in offsets(&to_side).into_iter().zip(offsets(&from_side)).take(len as usize) {
                        expected[to] = from[read];
                    }
                    let at = source.location();
                    let mut batch = devices.batch(&at, Direction::DeviceToDevice, Order::AfterDefaultStream).unwrap();
                    let (dst, src) = (target.as_device_ptr(), source.as_device_ptr().cast_const());
                    let copy = BlockCopy { dst, dst_blocks: to_side, src, src_blocks: from_side, len };
                    // SAFETY: both lie within the buffers, which outlive the completion.
                    unsafe { batch.copy_blocks(copy) };
                    batch.finish().unwrap().wait().unwrap();
                    assert!(content(&target) == expected, "{len} bytes from {from_side:?} to {to_side:?}");
                }
            }
        }
    }
}

fn launches() -> Option<i64> {
    app().launches()
}

#[test]
fn kernels_move_every_byte() {
    let devices = devices();
    let (buffer, _) = filled(&devices, 1);
    assert!(await_kernels(&devices, &buffer));
    many_pieces(&devices);
    all_shapes(&devices);
    if let Some(launches) = launches() {
        assert!(launches > 100, "{launches}");
    }
}

/// Thread blocks start late, so jobs are revoked, some of them half done. If the driver refuses, there are no kernels.
/// In all cases every byte is right.
#[test]
fn copy_engines_make_copies_that_kernels_cannot() {
    let test = "copy_engines_make_copies_that_kernels_cannot";
    if !common::on_simulated_driver(test) {
        return;
    }
    const CASES: [&[(&str, &str)]; 8] = [
        &[("SIM_CUDA_KERNEL_DELAY_US", "3000")],
        &[("SIM_CUDA_KERNEL_DELAY_US", "300")],
        &[("SIM_CUDA_FAIL", "cuModuleLoadData:218")],
        &[("SIM_CUDA_FAIL", "cuModuleGetFunction:500")],
        &[("SIM_CUDA_FAIL", "cuGraphCreate:801,cuLaunchKernel:719:5+")],
        &[("SIM_CUDA_FAIL", "cuMemHostGetDevicePointer:1")],
        &[("SIM_CUDA_MISSING", "cuLaunchKernel")],
        &[("SIM_CUDA_MISSING", "cuCtxGetStreamPriorityRange")],
    ];
    isolated_each(test, &CASES, |case| {
        let devices = devices_with(&["device_kernel_patience=200us"]);
        let (buffer, _) = filled(&devices, 1);
        let delayed = case < 2;
        if delayed || case == 4 {
            assert!(await_kernels(&devices, &buffer));
        } else {
            assert_no_kernels(&devices, &buffer);
        }
        many_pieces(&devices);
        if delayed {
            // Each revoked job prevents others from being launched for a while.
            assert!(launches().unwrap() > 3);
        }
        all_shapes(&devices);
    });
}

fn assert_no_kernels(devices: &Devices, buffer: &DeviceBuffer) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        assert!(!devices.kernels(&buffer.location()));
        std::thread::yield_now();
    }
}

/// Occupies a device until a word in host memory is set.
const FILL: &std::ffi::CStr = c"
.version 6.3
.target sm_52
.address_size 64
.visible .entry fill(.param .u64 word)
{
    .reg .u64 %a;
    .reg .u32 %t, %v;
    .reg .pred %p;
    mov.u32 %t, %tid.x;
    setp.ne.u32 %p, %t, 0;
    @%p bra DONE;
    ld.param.u64 %a, [word];
LOOK:
    ld.volatile.global.u32 %v, [%a];
    setp.eq.u32 %p, %v, 0;
    @%p bra LOOK;
DONE:
    bar.sync 0;
    ret;
}
";

/// Packs ranges of blocks into another device buffer, and unpacks them from there. Returns the number of batches that
/// no kernel could do. Those must be over, and the others right in every byte.
fn packed_between(devices: &Devices) -> u32 {
    let blocks: Vec<(i64, u64)> = (0..3000_i64).map(|i| (i * 90 + i % 7, 1 + (i * 37 % 83) as u64)).collect();
    let list = BlockList::new(devices, &blocks).unwrap();
    let size = list.size();
    let places: Vec<usize> = (0..2_i64)
        .flat_map(|element| blocks.iter().map(move |block| (element * 300_000 + block.0, block.1)))
        .flat_map(|(at, len)| (at as usize..).take(len as usize))
        .collect();
    let spread = Spread::Listed(list, 300_000);
    let mut without = 0;
    for (round, (position, len)) in [(0, 2 * size), (1, 5), (size - 3, 7000), (4096, 65_536)].into_iter().enumerate() {
        for unpack in [false, true] {
            let ((user, mut blocks), (run, mut packed)) = (filled(devices, 5), filled(devices, 6 + round as u64));
            devices.default_stream(&user.location()).unwrap().wait().unwrap();
            let patience = Instant::now();
            while !devices.packs_between(&user.location(), &spread) {
                // The simulated device executes work only when it is queried.
                devices.ask_default_stream(&user.location()).unwrap();
                assert!(patience.elapsed() < PATIENCE, "no kernels");
            }
            let mut batch = devices.batch(&user.location(), Direction::DeviceToDevice, Order::None).unwrap();
            batch.reachable(Within::OneDevice);
            // SAFETY: two buffers that outlive the completion.
            unsafe {
                let (user, packed) = (user.as_device_ptr(), run.as_device_ptr().add(8));
                let spread = spread.clone();
                batch.copy_packed(Packing { user, spread, position, packed, len, unpack, by_engines: false });
            }
            let result = batch.finish().and_then(Completion::wait);
            if let Err(error) = result {
                assert!(error.wants_kernel(), "{error}");
                without += 1;
                continue;
            }
            for (byte, at) in places[position as usize..][..len as usize].iter().enumerate() {
                if unpack { blocks[*at] = packed[8 + byte] } else { packed[8 + byte] = blocks[*at] }
            }
            assert!(content(&user) == blocks && content(&run) == packed, "{len} from {position}, {unpack}");
        }
    }
    without
}

#[test]
fn lists_are_packed_between_devices_by_kernels_only() {
    let test = "lists_are_packed_between_devices_by_kernels_only";
    const CASES: [&[(&str, &str)]; 3] =
        [&[], &[("SIM_CUDA_KERNEL_DELAY_US", "1000")], &[("SIM_CUDA_FAIL", "cuGraphCreate:801,cuLaunchKernel:1:6")]];
    let cases = if common::on_simulated_driver(test) { &CASES[..] } else { &CASES[..1] };
    isolated_each(test, cases, |case| {
        let devices = devices_with(&[["device_kernel_patience=20s", "device_kernel_patience=100us"][case.min(1)]]);
        match case {
            0 => assert_eq!(packed_between(&devices), 0),
            1 => assert_ne!((0..6).map(|_| packed_between(&devices)).sum::<u32>(), 0),
            _ => assert_ne!(packed_until_kernels_fail(&devices), 0),
        }
    });
}

/// Returns the number of batches that no kernel could do, where a failed launch ends the use of kernels.
fn packed_until_kernels_fail(devices: &Devices) -> u32 {
    let (user, _) = filled(devices, 1);
    assert!(await_kernels(devices, &user));
    let spread = Spread::Regular(Strided::run(100));
    (0..6)
        .map(|_| {
            let mut batch = devices.batch(&user.location(), Direction::DeviceToDevice, Order::None).unwrap();
            let (user, packed) = (user.as_device_ptr(), user.as_device_ptr().wrapping_add(1000));
            // SAFETY: two parts of a buffer that outlives the completion.
            unsafe {
                let (position, len, unpack, by_engines) = (0, 100, false, false);
                batch.copy_packed(Packing { user, spread: spread.clone(), position, packed, len, unpack, by_engines });
            }
            batch.finish().and_then(Completion::wait).map_or_else(|error| u32::from(error.wants_kernel()), |()| 0)
        })
        .sum()
}

/// The program may have a kernel that waits for the message. The test uses two devices, because within one the driver's
/// own copies are kernels, too.
#[test]
fn no_copy_waits_for_a_kernel_that_fills_the_device() {
    let test = "no_copy_waits_for_a_kernel_that_fills_the_device";
    let (devices, app) = (devices(), app());
    if app.simulated() || app.device_count() < 2 {
        eprintln!("skipped {test}: it takes two real devices");
        return;
    }
    isolated_each(test, &[&[]], |_| {
        let (source, from) = filled(&devices, 1);
        let target = DeviceBuffer::new(&devices, DeviceIndex(1), BufferKind::Device, LEN).unwrap();
        assert!(await_kernels(&devices, &source));
        let peer = app.use_device(1);
        app.use_device(0);
        app.cuCtxEnablePeerAccess(peer, 0).unwrap();

        let mut word = std::ptr::null_mut();
        app.cuMemHostAlloc(&raw mut word, 4, 2).unwrap();
        let word: *mut u32 = word.cast();
        // SAFETY: fresh memory, of which the kernel only reads.
        unsafe { word.write_volatile(0) };
        let (mut module, mut function, stream) = (0, 0, app.stream(common::app::NON_BLOCKING_STREAM));
        app.cuModuleLoadData(&raw mut module, FILL.as_ptr()).unwrap();
        app.cuModuleGetFunction(&raw mut function, module, c"fill".as_ptr()).unwrap();
        let mut argument = word as u64;
        let mut arguments = [(&raw mut argument).cast()];
        // More than any device executes at a time.
        let none = std::ptr::null_mut();
        app.cuLaunchKernel(function, 2000, 1, 1, 1024, 1, 1, 0, stream, arguments.as_mut_ptr(), none).unwrap();
        std::thread::sleep(Duration::from_millis(20));

        // The later ones find a revoked job before them in the stream.
        for round in 0..20 {
            let at = round * 50_000;
            let mut batch = devices.batch(&source.location(), Direction::DeviceToDevice, Order::None).unwrap();
            batch.reachable(Within::OneNode);
            // SAFETY: parts of two buffers that outlive the completion.
            unsafe {
                let (dst, src) = (target.as_device_ptr().add(at), source.as_device_ptr().add(at));
                if round % 2 == 0 {
                    for piece in (0..50_000).step_by(5000) {
                        batch.copy(dst.add(piece), src.add(piece), 5000);
                    }
                } else {
                    let blocks = Strided { offset: 0, block: 1000, dimensions: [(50, 1000), (1, 0), (1, 0)] };
                    let (dst_blocks, src_blocks) = (blocks, blocks);
                    batch.copy_blocks(BlockCopy { dst, dst_blocks, src, src_blocks, len: 50_000 });
                }
            }
            let (mut completion, begun) = (batch.finish().unwrap(), Instant::now());
            while !completion.poll().unwrap() {
                assert!(begun.elapsed() < PATIENCE, "round {round} waits for the kernel");
            }
        }
        app.cuStreamQuery(stream).expect_err("the kernel still runs");
        // SAFETY: the kernel's word, as above.
        unsafe { word.write_volatile(1) };
        app.cuStreamSynchronize(stream).unwrap();
        assert!(content(&target)[..1_000_000] == from[..1_000_000]);
        // When the device is free, kernels copy again, and the revoked job changes nothing.
        assert!(await_kernels(&devices, &source));
        many_pieces(&devices);
    });
}

#[test]
fn a_parameter_disables_kernels() {
    let test = "a_parameter_disables_kernels";
    const NONE: [&[(&str, &str)]; 2] = [&[], &[]];
    isolated_each(test, &NONE, |case| {
        let devices = devices_with(&[["device_kernels=no", "device_protocols=copy"][case]]);
        let (buffer, _) = filled(&devices, 1);
        assert_no_kernels(&devices, &buffer);
        many_pieces(&devices);
        assert!(launches().is_none_or(|launches| launches == 0));
    });
}
