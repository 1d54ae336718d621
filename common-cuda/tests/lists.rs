//! Lists of blocks in device memory: used after they were copied there, right in every byte, bounded, and reused.

mod common;

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cableway_common_cuda::{BlockList, Devices, Direction, Order, Packing, Spread, Within};
use common::{app, devices_with, isolated_each, pattern};

const LEN: usize = 1 << 20;
const BLOCKS: i64 = 3000;
/// `CU_STREAM_WAIT_VALUE_EQ`.
const EQUAL: c_uint = 1;
/// The simulated device is slow.
const KERNEL_PATIENCE: &str = "device_kernel_patience=20s";
/// Only a hang takes so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// The blocks, and the packed bytes.
struct Ends {
    user: u64,
    run: u64,
    bytes: Vec<u8>,
}

impl Ends {
    fn new() -> Ends {
        app().use_device(0);
        Ends::in_current_context()
    }

    fn in_current_context() -> Ends {
        let app = app();
        let ends = Ends { user: app.malloc(LEN), run: app.malloc(LEN), bytes: pattern(LEN, 1) };
        app.upload(ends.user, &ends.bytes);
        ends
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        for address in [self.user, self.run] {
            app().cuMemFree(address).unwrap();
        }
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

type List = (BlockList, Vec<usize>);

fn list(devices: &Devices, seed: i64) -> List {
    list_of(devices, (0..BLOCKS).map(|i| (i * 90 + i * seed % 7, 1 + (i * 37 % 83) as u64)).collect())
}

/// Returns a list that itself takes this many bytes.
fn list_of_size(devices: &Devices, bytes: usize) -> List {
    let blocks = bytes as i64 / 8 - 1;
    list_of(devices, (0..blocks).map(|i| (i * (LEN as i64 / blocks) + i % 2, 1)).collect())
}

fn list_of(devices: &Devices, blocks: Vec<(i64, u64)>) -> List {
    let places = blocks.iter().flat_map(|&(at, len)| (at as usize..).take(len as usize)).collect();
    (BlockList::new(devices, &blocks).unwrap(), places)
}

/// Packs all blocks this many times, with a pause after each.
fn pack(devices: &Devices, list: &List, times: usize) {
    pack_between(devices, list, &Ends::new(), times);
}

fn pack_between(devices: &Devices, (list, places): &List, ends: &Ends, times: usize) {
    let at = devices.classify(pointer(ends.user), LEN);
    let spread = Spread::Listed(list.clone(), 0);
    let expected: Vec<u8> = places.iter().map(|&place| ends.bytes[place]).collect();
    let begun = Instant::now();
    while !devices.packs_between(&at, &spread) {
        devices.ask_default_stream(&at).unwrap();
        assert!(begun.elapsed() < PATIENCE, "no kernels");
    }
    while !devices.ask_default_stream(&at).unwrap() {}
    for time in 0..times {
        let mut batch = devices.batch(&at, Direction::DeviceToDevice, Order::None).unwrap();
        batch.reachable(Within::OneDevice);
        let (user, packed) = (pointer(ends.user), pointer(ends.run));
        let (position, len, unpack) = (0, places.len() as u64, false);
        let packing = Packing { user, spread: spread.clone(), position, packed, len, unpack, by_engines: false };
        // SAFETY: two allocations that outlive the completion.
        unsafe { batch.copy_packed(packing) };
        batch.finish().unwrap().wait().unwrap();
        assert!(app().download(ends.run, expected.len()) == expected, "time {time}");
        while !devices.ask_default_stream(&at).unwrap() {}
    }
}

fn calls(name: &std::ffi::CStr) -> i64 {
    app().calls(name).unwrap_or(0)
}

/// Returns how often `what` makes the driver allocate memory for lists; 0 on a driver that counts nothing.
fn made(what: impl FnOnce()) -> i64 {
    let before = calls(c"cuMemCreate");
    what();
    calls(c"cuMemCreate") - before
}

/// Checks whether a list is read on the device, on a driver that counts.
fn is_read_there(devices: &Devices, list: &List, ends: &Ends) -> bool {
    let asked = calls(c"cuMemHostGetDevicePointer");
    pack_between(devices, list, ends, 1);
    calls(c"cuMemHostGetDevicePointer") == asked
}

/// Checks whether enough uses, and the time of a copy, move the list to the device.
fn comes_there(devices: &Devices, list: &List, ends: &Ends) -> bool {
    let begun = Instant::now();
    while !is_read_there(devices, list, ends) {
        if begun.elapsed() > PATIENCE {
            return false;
        }
    }
    true
}

#[test]
fn a_list_is_copied_to_the_device_at_its_second_use() {
    let test = "a_list_is_copied_to_the_device_at_its_second_use";
    isolated_each(test, &[&[]], |_| {
        let (devices, ends) = (devices_with(&[KERNEL_PATIENCE]), Ends::new());
        let first = list(&devices, 3);
        assert_eq!(made(|| pack(&devices, &first, 1)), 0, "one use must not copy the list");
        assert_eq!(made(|| assert!(comes_there(&devices, &first, &ends))), i64::from(app().simulated()));
        // Its memory is reused for another list, which must have the right blocks.
        drop(first);
        let (second, third) = (list(&devices, 5), list(&devices, 2));
        assert_eq!(made(|| assert!(comes_there(&devices, &second, &ends) && comes_there(&devices, &third, &ends))), 0);
        assert!(is_read_there(&devices, &second, &ends));
    });
}

#[test]
fn a_list_without_room_is_read_in_host_memory() {
    let test = "a_list_without_room_is_read_in_host_memory";
    const CASES: [&[(&str, &str)]; 4] =
        [&[], &[], &[("SIM_CUDA_FAIL", "cuMemCreate:2")], &[("SIM_CUDA_FAIL", "cuMemSetAccess:801")]];
    let cases = if common::on_simulated_driver(test) { &CASES[..] } else { &CASES[..2] };
    isolated_each(test, cases, |case| {
        let room =
            ["device_list_memory=0", "device_list_memory=32K", "device_list_memory=64M", "device_list_memory=64M"];
        let (devices, ends) = (devices_with(&[KERNEL_PATIENCE, room[case]]), Ends::new());
        let (first, second) = (list(&devices, 3), list(&devices, 5));
        let tried = made(|| {
            pack_between(&devices, &first, &ends, 12);
            assert!(case != 1 || comes_there(&devices, &first, &ends), "the first list has room");
            pack_between(&devices, &second, &ends, 12);
        });
        if !app().simulated() {
            return;
        }
        assert!(!is_read_there(&devices, &second, &ends));
        assert_eq!(is_read_there(&devices, &first, &ends), case == 1);
        match case {
            0 | 1 => assert_eq!(tried, case as i64),
            _ => assert!(tried > 1, "the copy must be tried again"),
        }
    });
}

/// Memory of freed lists is reused for lists of any size.
#[test]
fn memory_of_small_lists_serves_a_large_one() {
    isolated_each("memory_of_small_lists_serves_a_large_one", &[&[]], |_| {
        let (devices, ends) = (devices_with(&[KERNEL_PATIENCE, "device_list_memory=2M"]), Ends::new());
        let small: Vec<_> = (0..8).map(|_| list_of_size(&devices, 256 << 10)).collect();
        let made = made(|| assert!(small.iter().all(|list| comes_there(&devices, list, &ends))));
        let large = list_of_size(&devices, 3 << 19);
        pack_between(&devices, &large, &ends, 9);
        assert!(
            !app().simulated() || (made == 1 && !is_read_there(&devices, &large, &ends)),
            "there is no room: {made}"
        );
        drop(small);
        // Attempts become rarer.
        assert!(comes_there(&devices, &large, &ends));
    });
}

/// The memory belongs to the device, and outlives its context.
#[test]
fn memory_of_lists_is_released_with_its_context() {
    isolated_each("memory_of_lists_is_released_with_its_context", &[&[]], |_| {
        let devices = devices_with(&[KERNEL_PATIENCE]);
        let (app, used) = (app(), list(&devices, 3));
        for _ in 0..4 {
            let context = app.create_context(0);
            let ends = Ends::in_current_context();
            let made = made(|| assert!(comes_there(&devices, &used, &ends)));
            assert!(made == 1 || !app.simulated());
            let kept = calls(c"cuMemMap") - calls(c"cuMemUnmap");
            assert!(kept <= 1, "{kept} contexts' memory still exists");
            app.cuCtxDestroy(context).unwrap();
            // The memory was released with its context.
            std::mem::forget(ends);
        }
    });
}

/// The program may have a kernel that ends only after the next message. No operation on lists may wait for it.
#[test]
fn lists_never_wait_for_the_programs_streams() {
    isolated_each("lists_never_wait_for_the_programs_streams", &[&[]], |_| {
        let devices = devices_with(&[KERNEL_PATIENCE, "device_list_memory=4M"]);
        // Objects that are not about lists are created before and destroyed after.
        let (app, ends) = (app(), Ends::new());
        let lists: Vec<_> = [1 << 20, 1 << 20, 3 << 20].map(|bytes| list_of_size(&devices, bytes)).into();
        lists.iter().for_each(|list| pack_between(&devices, list, &ends, 1));
        let mut word: *mut c_void = std::ptr::null_mut();
        app.cuMemHostAlloc(&raw mut word, 4096, 0).unwrap();
        // SAFETY: the word was just allocated, and is never freed.
        let go_on = unsafe { AtomicU32::from_ptr(word.cast()) };
        go_on.store(0, Ordering::Release);
        app.wait_value(app.stream(common::app::NON_BLOCKING_STREAM), word as u64, 1, EQUAL);
        let (over, is_over) = std::sync::mpsc::channel();
        let context = app.current();
        let thread = std::thread::spawn(move || {
            common::app().cuCtxSetCurrent(context).unwrap();
            for list in lists {
                assert!(comes_there(&devices, &list, &ends));
            }
            over.send(()).unwrap();
            (devices, ends)
        });
        let ended = is_over.recv_timeout(PATIENCE);
        go_on.store(1, Ordering::Release);
        drop(thread.join().unwrap());
        assert!(ended.is_ok(), "something waited for the program's stream");
    });
}
