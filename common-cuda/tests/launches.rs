//! Launches of kernels, alone and in graphs.

mod common;

use cableway_common_cuda::{
    BlockCopy, BufferKind, DeviceBuffer, DeviceIndex, Devices, Direction, Order, Strided, Vendor, Within,
};
use common::{app, devices, isolated_each, pattern, wait_for_kernels};

const DEVICE: DeviceIndex = DeviceIndex(0);
const LEN: usize = 1 << 16;
/// The blocks that are copied, of so many bytes, at such distances.
const COUNT: usize = 200;
const BLOCK: usize = 100;
const APART: usize = 300;
const COPIES: i64 = 60;

/// Copies blocks of a buffer by a kernel, and checks the bytes.
fn copy_blocks(devices: &Devices, round: u64) {
    let (from, old) = (pattern(LEN, round), pattern(LEN, 1000 + round));
    let mut buffers = [&from, &old].map(|bytes| {
        let mut buffer = DeviceBuffer::new(devices, DEVICE, BufferKind::Device, LEN).unwrap();
        buffer.copy_from_host(0, bytes).unwrap();
        buffer
    });
    wait_for_kernels(|| devices.kernels(&buffers[0].location()));
    let location = buffers[0].location();
    let mut batch = devices.batch(&location, Direction::DeviceToDevice, Order::AfterDefaultStream).unwrap();
    batch.reachable([Within::OneDevice, Within::OneNode][round as usize % 2]);
    let mut expected = old;
    let places = (0..COUNT).map(|block| block * APART);
    places.for_each(|at| expected[at..at + BLOCK].copy_from_slice(&from[at..at + BLOCK]));
    let [source, target] = &mut buffers;
    let (dst, src) = (target.as_device_ptr(), source.as_device_ptr().cast_const());
    let one = (1, 0);
    let blocks = Strided { offset: 0, block: BLOCK as u64, dimensions: [(COUNT as u64, APART as i64), one, one] };
    let len = (BLOCK * COUNT) as u64;
    // SAFETY: the blocks lie in two buffers that outlive the completion, and do not overlap.
    unsafe { batch.copy_blocks(BlockCopy { dst, dst_blocks: blocks, src, src_blocks: blocks, len }) };
    batch.finish().unwrap().wait().unwrap();
    let mut found = vec![0; LEN];
    buffers[1].copy_to_host(0, &mut found).unwrap();
    assert!(found == expected, "round {round}");
}

/// Kernels are launched in the way that takes less time, and alone where the driver makes no graphs or refuses to launch one.
#[test]
fn kernels_are_launched_in_the_shorter_way() {
    const SLOW: &[(&str, &str)] = &[("SIM_CUDA_SLOW", "cuLaunchKernel:1000")];
    const CASES: [&[(&str, &str)]; 6] = [
        SLOW,
        &[("SIM_CUDA_SLOW", "cuGraphLaunch:1000")],
        &[SLOW[0], ("SIM_CUDA_FAIL", "cuGraphLaunch:701")],
        &[SLOW[0], ("SIM_CUDA_FAIL", "cuGraphLaunch:701:30+")],
        &[SLOW[0], ("SIM_CUDA_FAIL", "cuGraphCreate:801")],
        &[SLOW[0], ("SIM_CUDA_VERSION", "11060")],
    ];
    let test = "kernels_are_launched_in_the_shorter_way";
    let cases = if common::on_simulated_driver(test) { &CASES[..] } else { &CASES[..1] };
    isolated_each(test, cases, |case| {
        let devices = devices();
        (0..COPIES).for_each(|round| copy_blocks(&devices, round as u64));
        let counts = [c"cuLaunchKernel", c"cuGraphLaunch"].map(|name| app().calls(name));
        let [Some(alone), Some(by_graph)] = counts else { return };
        // When kernels are loaded, up to 16 launches are timed in each way, and some are made before the first copy.
        let timed = 16..COPIES;
        match case {
            _ if devices.facts().unwrap().devices[0].vendor == Vendor::Amd => assert!(alone >= COPIES && by_graph == 0),
            0 => assert!(timed.contains(&alone) && by_graph >= COPIES, "{alone}, {by_graph}"),
            1 => assert!(alone >= COPIES && by_graph == 16, "{alone}, {by_graph}"),
            2 => assert!(alone >= COPIES && by_graph == 1, "{alone}, {by_graph}"),
            3 => assert!(alone >= COPIES && by_graph == 30, "{alone}, {by_graph}"),
            _ => assert!(alone >= COPIES && by_graph == 0, "{alone}, {by_graph}"),
        }
    });
}
