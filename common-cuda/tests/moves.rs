//! Copies of several runs of bytes by one kernel.

mod common;

use cableway_common_cuda::{
    BufferKind, DeviceBuffer, DeviceIndex, Devices, Element, Location, Move, Order, ReduceOperation,
};
use common::{app, devices, devices_with, isolated, wait_for_kernels};

const DEVICE: DeviceIndex = DeviceIndex(0);

/// Has the kernel make moves of these lengths between two buffers, each at a place of its own. Returns false if no kernel makes
/// them.
fn moves_arrive(devices: &Devices, lengths: &[usize]) -> bool {
    let room: usize = lengths.iter().map(|len| len + 32).sum();
    let mut source = DeviceBuffer::new(devices, DEVICE, BufferKind::Device, room.max(1)).unwrap();
    let mut target = DeviceBuffer::new(devices, DEVICE, BufferKind::Device, room.max(1)).unwrap();
    let bytes: Vec<u8> = (0..room).map(|index| (index * 31 + index / 255) as u8).collect();
    source.copy_from_host(0, &bytes).unwrap();
    target.copy_from_host(0, &vec![0xee; room]).unwrap();
    let (mut moves, mut expected) = (Vec::new(), vec![0xee; room]);
    let (mut to, mut from) = (0, room);
    for (index, &len) in lengths.iter().enumerate() {
        from -= len + 32;
        let (begin, end) = (to + index * 5 % 16, from + index * 3 % 16);
        moves.push(Move {
            to: target.as_device_ptr().wrapping_add(begin),
            from: source.as_device_ptr().wrapping_add(end).cast_const(),
            len,
        });
        expected[begin..begin + len].copy_from_slice(&bytes[end..end + len]);
        to += len + 32;
    }
    // SAFETY: the runs lie apart in buffers that outlive the run.
    let begun = unsafe { devices.begin_moves(&target.location(), Order::None, &moves) }.unwrap();
    let Some(run) = begun else { return false };
    run.wait().unwrap();
    let mut got = vec![0; room];
    target.copy_to_host(0, &mut got).unwrap();
    assert!(got == expected, "{lengths:?}");
    true
}

#[test]
fn one_kernel_makes_up_to_sixteen_moves() {
    let devices = devices();
    let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 1).unwrap();
    wait_for_kernels(|| devices.can_move_now(&buffer.location()));
    for lengths in [&[][..], &[0], &[1], &[2048, 2049], &[100_000, 0, 7, 1 << 20]] {
        assert!(moves_arrive(&devices, lengths), "{lengths:?}");
    }
    let sixteen: Vec<usize> = (0..16).map(|index| 1 << index).collect();
    assert!(moves_arrive(&devices, &sixteen));
    assert!(moves_arrive(&devices, &[&[0], &sixteen[..], &[0]].concat()), "empty moves do not count");
    assert!(!moves_arrive(&devices, &[sixteen, vec![1]].concat()), "seventeen");
    assert!(!devices.can_move_now(&Location::HOST));
}

#[test]
fn moves_follow_the_default_stream() {
    isolated("moves_follow_the_default_stream", &[("SIM_CUDA_DELAY_US", "3000")], || {
        let (app, devices) = (app(), devices());
        app.use_device(0);
        let len = 1 << 20;
        let address = app.malloc(2 * len);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        let at = devices.classify(to, len);
        wait_for_kernels(|| devices.can_move_now(&at));
        for round in 1..=5 {
            app.cuMemsetD8Async(address + len as u64, round, len, 1).unwrap();
            let moves = [Move { to, from: to.wrapping_add(len).cast_const(), len }];
            // SAFETY: two parts of an allocation that stays.
            let run = unsafe { devices.begin_moves(&at, Order::AfterDefaultStream, &moves) }.unwrap();
            run.unwrap().wait().unwrap();
            assert!(app.download(address, len).iter().all(|byte| *byte == round), "round {round}");
        }
    });
}

#[test]
fn a_destroyed_context_has_no_kernels() {
    isolated("a_destroyed_context_has_no_kernels", &[], || {
        let (app, devices) = (app(), devices());
        let context = app.create_context(0);
        let address: *mut u8 = std::ptr::with_exposed_provenance_mut(app.malloc(64) as usize);
        let at = devices.classify(address, 64);
        let can_reduce = || devices.can_reduce(&at, ReduceOperation::Sum, Element::I32);
        wait_for_kernels(|| devices.can_move_now(&at));
        assert!(can_reduce() && devices.can_exchange(&at));
        app.cuCtxDestroy(context).unwrap();
        assert!(!can_reduce() && !devices.can_exchange(&at) && !devices.can_move_now(&at));
    });
}

#[test]
fn without_kernels_nothing_moves() {
    let devices = devices_with(&["device_kernels=no"]);
    let buffer = DeviceBuffer::new(&devices, DEVICE, BufferKind::Device, 1).unwrap();
    assert!(!devices.can_move_now(&buffer.location()));
    assert!(!moves_arrive(&devices, &[1]));
}
