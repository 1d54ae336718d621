//! Puts and gets of elements of layouts between host and device memory in every pairing.
#![cfg(feature = "cuda")]

mod common;

use cableway_btl::Flags;
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices};
use cableway_pml::{Buffer, Signal, SignalUpdate};

use common::layouts::{ALL, Lies, places};
use common::memory::Memory;
use common::sides::Sides;
use common::{Link, pattern};
use test_nodes::devices;

const KINDS: [Option<BufferKind>; 3] = [None, Some(BufferKind::Device), Some(BufferKind::Managed)];

const EVERYTHING: Flags = Flags::GET
    .union(Flags::PUT)
    .union(Flags::DEVICE_GET)
    .union(Flags::DEVICE_PUT)
    .union(Flags::DEVICE_TO_DEVICE)
    .union(Flags::DEVICE_STRIDED);

/// Waits until the kernels are loaded, which begins with the first question for them.
fn kernels_are_there(devices: &Devices) {
    let some = DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::Device, 1).unwrap();
    while !devices.kernels(&some.location()) {
        std::thread::yield_now();
    }
}

/// Returns the bytes of memory in which packed data lies from an offset on, and 0xee elsewhere.
fn spread(lies: Lies, data: &[u8], offset: i64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    for (at, byte) in places(&lies.layout(data.len()).0).iter().zip(data) {
        bytes[(offset + at) as usize] = *byte;
    }
    bytes
}

#[test]
fn layouts_move_between_every_pair_of_memories() {
    let devices = devices();
    kernels_are_there(&devices);
    let link = Link::new("net", EVERYTHING).with(|link| {
        link.capabilities.device_min_rdma_size = 1;
        link.asynchronous = true;
    });
    let sides = Sides::on(&devices, 2, &[link], &[("costs", "default"), ("device_kernel_patience", "20s")]);
    for (here, there) in KINDS.iter().flat_map(|here| KINDS.iter().map(move |there| (*here, *there))) {
        let mut word = [0_u64];
        let signals = sides.register_at(1, word.as_mut_ptr().cast(), 8);
        let mut given = 0;
        for len in [64, 40_000] {
            for (ours, theirs) in ALL.iter().flat_map(|ours| ALL.iter().map(move |theirs| (*ours, *theirs))) {
                let what = format!("{len} bytes, {ours:?} in {here:?}, {theirs:?} in {there:?}");
                let ((layout, range), (target, reach)) = (ours.layout(len), theirs.layout(len));
                let lowest = |layout: &cableway_datatype::Layout| layout.span(1).unwrap().0;
                let (origin, offset) = (8 - lowest(&layout), 16 - lowest(&target));
                let data = pattern(len, len as u8);
                let mut memory = Memory::new(&devices, there, &vec![0xee; reach + 32]);
                let window = sides.register_at(1, memory.address(), reach + 32);
                let to = window.key().at(offset as u64).typed(1, &target);
                let mut source = Memory::new(&devices, here, &spread(ours, &data, origin, range + 16));
                let mut room = Memory::new(&devices, here, &vec![0xee; range + 16]);
                let buffer =
                    |memory: &mut Memory| Buffer::typed(memory.address().wrapping_offset(origin as isize), 1, &layout);
                let before = sides.direct(0);
                // The first access of a registration asks for direct access, so the later ones may go directly.
                for signaled in [false, true, false] {
                    given += 2 * u64::from(signaled);
                    let signal = Signal { at: signals.key().at(0), update: SignalUpdate::Add(1) };
                    let signal = signaled.then_some(signal);
                    sides.put_from(0, buffer(&mut source), to, signal).unwrap();
                    sides.get_into(0, buffer(&mut room), to, signal).unwrap();
                    assert_eq!(signals.load(0).unwrap(), given, "{what}");
                    sides.ranks.settle();
                }
                assert!(memory.read(reach + 32) == spread(theirs, &data, offset, reach + 32), "put of {what}");
                assert!(room.read(range + 16) == spread(ours, &data, origin, range + 16), "get of {what}");
                let runs = ours == Lies::Run && theirs == Lies::Run;
                let regular = ours != Lies::Scattered && theirs != Lies::Scattered;
                let between_devices = here == Some(BufferKind::Device) && there.is_some();
                if !runs {
                    assert_eq!(sides.direct(0) > before, regular && between_devices, "{what}");
                }
                drop(window);
            }
        }
    }
}
