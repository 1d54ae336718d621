//! Lists of blocks in device memory: used from where they were copied to, right in every byte, bounded, and used anew.

mod common;

use std::time::{Duration, Instant};

use cableway_common_cuda::{
    BlockList, BufferKind, DeviceBuffer, DeviceIndex, Devices, Direction, Order, Packing, Spread, Within,
};
use common::{app, devices_with, isolated_each, pattern};

const LEN: usize = 1 << 20;
const BLOCKS: i64 = 3000;
/// The simulated device takes its time.
const PATIENCE: &str = "device_kernel_patience=20s";

fn filled(devices: &Devices, seed: u64) -> (DeviceBuffer, Vec<u8>) {
    let bytes = pattern(LEN, seed);
    let mut buffer = DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::Device, LEN).unwrap();
    buffer.copy_from_host(0, &bytes).unwrap();
    (buffer, bytes)
}

fn list(devices: &Devices, seed: i64) -> (BlockList, Vec<usize>) {
    let blocks: Vec<(i64, u64)> = (0..BLOCKS).map(|i| (i * 90 + i * seed % 7, 1 + (i * 37 % 83) as u64)).collect();
    let places = blocks.iter().flat_map(|&(at, len)| (at as usize..).take(len as usize)).collect();
    (BlockList::new(devices, &blocks).unwrap(), places)
}

/// Packs all blocks so many times, with a moment's rest after each.
fn pack(devices: &Devices, (list, places): &(BlockList, Vec<usize>), times: usize) {
    let (user, bytes) = filled(devices, 1);
    let spread = Spread::Listed(list.clone(), 0);
    let expected: Vec<u8> = places.iter().map(|&place| bytes[place]).collect();
    let begun = Instant::now();
    while !devices.packs_between(&user.location(), &spread) {
        devices.ask_default_stream(&user.location()).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "no kernels");
    }
    let (run, _) = filled(devices, 2);
    while !devices.ask_default_stream(&user.location()).unwrap() {}
    for time in 0..times {
        let mut batch = devices.batch(&user.location(), Direction::DeviceToDevice, Order::None).unwrap();
        batch.reachable(Within::OneDevice);
        let (user, packed) = (user.as_device_ptr(), run.as_device_ptr());
        let (position, len, unpack) = (0, places.len() as u64, false);
        let packing = Packing { user, spread: &spread, position, packed, len, unpack, by_engines: false };
        // SAFETY: two buffers that outlive the completion.
        unsafe { batch.copy_packed(&packing) }.unwrap();
        batch.finish().unwrap().wait().unwrap();
        let mut got = vec![0; expected.len()];
        run.copy_to_host(0, &mut got).unwrap();
        assert!(got == expected, "time {time}");
        while !devices.ask_default_stream(&run.location()).unwrap() {}
    }
}

fn calls(name: &std::ffi::CStr) -> i64 {
    app().calls(name).unwrap_or(0)
}

fn allocations() -> i64 {
    calls(c"cuMemAlloc")
}

/// Allocations that `what` makes besides the two buffers of each `pack` in it.
fn made(packs: i64, what: impl FnOnce()) -> i64 {
    let before = allocations();
    what();
    if app().simulated() { allocations() - before - 2 * packs } else { 0 }
}

#[test]
fn a_list_that_is_used_again_is_read_on_the_device() {
    let test = "a_list_that_is_used_again_is_read_on_the_device";
    isolated_each(test, &[&[]], |_| {
        let devices = devices_with(&[PATIENCE]);
        let one = |made: i64| if app().simulated() { made } else { 0 };
        let first = list(&devices, 3);
        assert_eq!(made(1, || pack(&devices, &first, 1)), 0, "once is not again");
        assert_eq!(made(1, || pack(&devices, &first, 12)), one(1));
        let asked = calls(c"cuMemHostGetDevicePointer");
        pack(&devices, &first, 5);
        assert_eq!(calls(c"cuMemHostGetDevicePointer"), asked, "the list was read where it was made");
        // What it leaves serves another, and shows that one's blocks.
        drop(first);
        let (second, third) = (list(&devices, 5), list(&devices, 2));
        assert_eq!(made(1, || pack(&devices, &second, 12)), 0);
        assert_eq!(made(1, || pack(&devices, &third, 12)), one(1), "the memory is the second list's");
        pack(&devices, &second, 3);
    });
}

#[test]
fn a_list_that_finds_no_room_is_read_where_it_is() {
    let test = "a_list_that_finds_no_room_is_read_where_it_is";
    const CASES: [&[(&str, &str)]; 3] = [&[], &[], &[("SIM_CUDA_FAIL", "cuMemAlloc:2:5+")]];
    let cases = if common::on_simulated_driver(test) { &CASES[..] } else { &CASES[..2] };
    isolated_each(test, cases, |case| {
        let room = ["device_list_memory=0", "device_list_memory=32K", "device_list_memory=64M"][case];
        let devices = devices_with(&[PATIENCE, room]);
        let (first, second) = (list(&devices, 3), list(&devices, 5));
        let buffers: Vec<_> = (0..2).map(|seed| filled(&devices, seed)).collect();
        // In the last case the driver has memory for two more buffers, and none from there on.
        let packs = if case == 2 { 1 } else { 2 };
        let lists = made(packs, || {
            pack(&devices, &first, 12);
            if case != 2 {
                pack(&devices, &second, 12);
            }
        });
        match case {
            0 => assert_eq!(lists, 0),
            1 => assert_eq!(lists, i64::from(app().simulated()), "room for one"),
            _ => assert!(lists > 0, "it was tried"),
        }
        drop(buffers);
    });
}
