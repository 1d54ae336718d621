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

/// Both ways to launch a kernel are tried. Where there are no graphs, kernels are launched alone.
#[test]
fn kernels_are_launched_alone_and_in_graphs() {
    const CASES: [&[(&str, &str)]; 4] = [
        &[],
        &[("SIM_CUDA_FAIL", "cuGraphLaunch:701")],
        &[("SIM_CUDA_FAIL", "cuGraphCreate:801")],
        &[("SIM_CUDA_VERSION", "11060")],
    ];
    let test = "kernels_are_launched_alone_and_in_graphs";
    let cases = if common::on_simulated_driver(test) { &CASES[..] } else { &CASES[..1] };
    isolated_each(test, cases, |case| {
        let devices = devices();
        (0..40).for_each(|round| copy_blocks(&devices, round));
        let counts = [c"cuLaunchKernel", c"cuGraphLaunch"].map(|name| app().calls(name));
        let [Some(alone), Some(in_graphs)] = counts else { return };
        match case {
            0 if devices.facts().unwrap().devices[0].vendor == Vendor::Nvidia => {
                assert!(alone >= 4 && in_graphs >= 4, "{alone}, {in_graphs}");
            }
            // Each kernel is refused once in each of two streams.
            1 => assert!(alone >= 40 && in_graphs <= 8, "{alone}, {in_graphs}"),
            _ => assert!(alone >= 40 && in_graphs == 0, "{alone}, {in_graphs}"),
        }
    });
}
