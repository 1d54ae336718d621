//! Copies of blocks with gaps by one kernel.

mod common;

use cableway_common_cuda::{BlockCopy, BufferKind, DeviceBuffer, DeviceIndex, Devices, Location, Order, Strided};
use common::{devices, devices_with, wait_for_kernels};

const DEVICE: DeviceIndex = DeviceIndex(0);
/// The bytes from one copy to the next, on both sides.
const APART: usize = 1 << 16;

/// Describes blocks of `block` bytes in up to three dimensions.
fn rows(offset: i64, block: u64, dimensions: [(u64, i64); 3]) -> Strided {
    Strided { offset, block, dimensions }
}

/// Returns the offset of each byte of blocks, in packing order.
fn places(blocks: &Strided) -> Vec<usize> {
    let [first, second, third] = blocks.dimensions;
    let mut all = Vec::new();
    for (c, b, a) in (0..third.0).flat_map(|c| (0..second.0).flat_map(move |b| (0..first.0).map(move |a| (c, b, a)))) {
        let at = blocks.offset + a as i64 * first.1 + b as i64 * second.1 + c as i64 * third.1;
        all.extend((0..blocks.block as i64).map(|byte| (at + byte) as usize));
    }
    all
}

/// Has the kernel make copies between these blocks. Returns false if no kernel makes them.
fn blocks_arrive(devices: &Devices, shapes: &[(Strided, Strided)]) -> bool {
    let room = APART * shapes.len().max(1);
    let mut source = DeviceBuffer::new(devices, DEVICE, BufferKind::Device, room).unwrap();
    let mut target = DeviceBuffer::new(devices, DEVICE, BufferKind::Device, room).unwrap();
    let bytes: Vec<u8> = (0..room).map(|index| (index * 31 + index / 255) as u8).collect();
    source.copy_from_host(0, &bytes).unwrap();
    let mut expected = vec![0xee; room];
    target.copy_from_host(0, &expected).unwrap();
    let mut copies = Vec::new();
    for (index, (to, from)) in shapes.iter().enumerate() {
        let at = index * APART;
        copies.push(BlockCopy {
            dst: target.as_device_ptr().wrapping_add(at),
            dst_blocks: *to,
            src: source.as_device_ptr().wrapping_add(at).cast_const(),
            src_blocks: *from,
            len: to.size().unwrap(),
        });
        for (to, from) in places(to).into_iter().zip(places(from)) {
            expected[at + to] = bytes[at + from];
        }
    }
    // SAFETY: the blocks lie apart in buffers that outlive the run.
    let begun = unsafe { devices.begin_block_moves(&target.location(), Order::None, &copies) }.unwrap();
    let Some(run) = begun else { return false };
    run.wait().unwrap();
    let mut got = vec![0; room];
    target.copy_to_host(0, &mut got).unwrap();
    assert!(got == expected, "{shapes:?}");
    true
}

#[test]
fn one_kernel_copies_blocks_of_every_shape() {
    let devices = devices();
    let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 1).unwrap();
    wait_for_kernels(|| devices.can_move_blocks_now(&buffer.location()));
    let one = (1, 0);
    let shapes = [
        (Strided::run(4096), rows(16, 64, [(64, 256), one, one])),
        (rows(0, 64, [(64, 128), one, one]), Strided::run(4096)),
        // Columns to rows, from the last row to the first one, and elements of every width.
        (rows(0, 32, [(8, 64), (4, 1024), one]), rows(992, 128, [(8, -140), one, one])),
        (rows(3, 1, [(60, 7), one, one]), rows(1, 12, [(5, 13), one, one])),
        (rows(2, 6, [(10, 8), (3, 100), (2, 400)]), rows(4, 36, [(10, 50), one, one])),
        (Strided::run(1), Strided::run(1)),
        (Strided::run(60_001), Strided::run(60_001)),
    ];
    for first in 0..shapes.len() {
        assert!(blocks_arrive(&devices, &shapes[first..=first]));
    }
    assert!(blocks_arrive(&devices, &shapes));
    let sixteen: Vec<_> = shapes.iter().copied().cycle().take(16).collect();
    assert!(blocks_arrive(&devices, &sixteen));
    assert!(!blocks_arrive(&devices, &[&sixteen[..], &shapes[..1]].concat()), "seventeen");
    assert!(!devices.can_move_blocks_now(&Location::HOST));
}

#[test]
fn without_kernels_no_blocks_move() {
    let devices = devices_with(&["device_kernels=no"]);
    let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 1).unwrap();
    assert!(!devices.can_move_blocks_now(&buffer.location()));
    assert!(!blocks_arrive(&devices, &[(Strided::run(8), Strided::run(8))]));
}
