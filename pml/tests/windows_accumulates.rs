//! Accumulates on windows: who makes them, and that none is lost.
#![cfg(feature = "cuda")]

mod common;

use std::sync::atomic::Ordering;

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, Element, ReduceOperation};
use cableway_pml::{Access, Buffer, Change, Combine, Error, Refusal};
use test_nodes::{devices, devices_with, isolated};

use common::memory::Memory;
use common::windows::{SUM, Windows, links, pairs, run};
use common::{bytes, space};

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

const ON_DEVICE: [Option<BufferKind>; 3] =
    [Some(BufferKind::Device), Some(BufferKind::Pool), Some(BufferKind::Managed)];
/// Data that comes with the ask, and that lands behind it.
const COUNTS: [usize; 4] = [1, 2048, 2049, 50_000];

/// Loads the kernels, which an accumulate does not do while the default stream is busy.
fn load_kernels(devices: &Devices) {
    let memory = DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::Device, 64).unwrap();
    assert!(devices.can_reduce(&memory.location(), ReduceOperation::Sum, Element::U32));
}

/// Adds `data` to elements from `displacement` on, and returns those before if they are fetched.
fn add(windows: &Windows, data: Buffer<'_>, displacement: i64, fetch: bool) -> Result<Option<Vec<u8>>, Error> {
    let len = data.packed_len().unwrap() as usize;
    let mut before = vec![0; if fetch { len } else { 0 }];
    let change = match fetch {
        true => Change::GetAccumulate { data, combine: SUM, result: space(&mut before) },
        false => Change::Accumulate(data, SUM),
    };
    windows.access(0, &Access { target: 1, displacement, reach: run(len), change })?;
    Ok(fetch.then_some(before))
}

/// Returns how many reductions the host made of sums with the memory of rank 1, which must be right.
fn sums(devices: &Devices, kind: Option<BufferKind>, from: Option<BufferKind>, count: usize, offset: usize) -> usize {
    let room = 4 * count + offset + 4;
    let content: Vec<u8> = vec![0xee; offset].into_iter().chain(words(0..count as u32)).chain([0xee; 4]).collect();
    let mut memory: Vec<_> = (0..2).map(|_| Memory::new(devices, kind, &content)).collect();
    if let Memory::Device(buffer) = &memory[1]
        && count == COUNTS[3]
    {
        // Else no device memory is allocated for the data, and it lands in host memory.
        devices.default_stream(&buffer.location()).unwrap().wait().unwrap();
    }
    let windows = Windows::new(devices, links()[2], &mut memory, room as u64, &[1, 1]);
    let mut data = Memory::new(devices, from, &words((0..count as u32).map(|i| 5 * i + 1)));
    let buffer = Buffer::bytes(data.address(), 4 * count as u64);
    let what = format!("{kind:?} and {from:?}, {count} words at {offset}");
    assert!(add(&windows, buffer, offset as i64, false).unwrap().is_none());
    let before = add(&windows, buffer, offset as i64, true).unwrap();
    let by_host = windows.host.reductions.load(Ordering::Relaxed);
    drop(windows);
    assert!(before.unwrap() == words((0..count as u32).map(|i| 6 * i + 1)), "{what}");
    let content = memory[1].read(room);
    assert!(content[offset..room - 4] == words((0..count as u32).map(|i| 11 * i + 2)), "{what}");
    assert!(content[..offset].iter().chain(&content[room - 4..]).all(|&byte| byte == 0xee), "{what}");
    by_host
}

#[test]
fn kernels_combine_elements_of_device_memory() {
    let devices = devices();
    load_kernels(&devices);
    for count in COUNTS {
        for kind in ON_DEVICE {
            for from in [None, Some(BufferKind::Device)] {
                assert_eq!(sums(&devices, kind, from, count, 0), 0, "{kind:?} and {from:?}, {count} words");
            }
        }
        // The host combines elements of its own memory, and those that are not aligned.
        for (kind, offset) in [(None, 0), (None, 2), (ON_DEVICE[0], 2)] {
            assert_eq!(sums(&devices, kind, None, count, offset), 2, "{kind:?}, {count} words at {offset}");
        }
    }
}

#[test]
fn without_kernels_the_host_combines() {
    let devices = devices_with(&["costs=default", "device_kernels=no"]);
    for count in COUNTS {
        assert_eq!(sums(&devices, ON_DEVICE[0], ON_DEVICE[0], count, 0), 2, "{count} words");
    }
}

/// More accumulates than kernels may be under way at a time, with some between them that no kernel makes.
#[test]
fn none_of_many_is_lost_or_overtaken() {
    let devices = devices();
    load_kernels(&devices);
    const ROUNDS: u32 = 700;
    let mut memory: Vec<_> = (0..3).map(|_| Memory::new(&devices, ON_DEVICE[0], &words([0; 8]))).collect();
    let windows = Windows::new(&devices, links()[2], &mut memory, 32, &[4; 3]);
    let (ones, layout) = (words([1; 8]), pairs(4));
    let mut before = vec![[0; 4]; ROUNDS as usize];
    for by in [0, 2] {
        windows.windows[by].lock(1, false).unwrap();
    }
    for (round, before) in before.iter_mut().enumerate() {
        for by in [0, 2] {
            let access = |displacement, len, change| Access { target: 1, displacement, reach: run(len), change };
            let start = |access: Access<'_>| {
                // SAFETY: the unlocks complete the accesses, and the buffers live longer.
                unsafe { windows.windows[by].start(&access, None) }.unwrap();
            };
            start(access(0, 16, Change::Accumulate(bytes(&ones[..16]), SUM)));
            if round % 100 == 50 {
                // The host's: no run of bytes, and no reduction.
                let reach = Buffer::typed(std::ptr::null(), 1, &layout);
                let change = Change::Accumulate(bytes(&ones[..8]), Combine::Replace);
                start(Access { target: 1, displacement: 4, reach, change });
            }
            if by == 0 {
                let change = Change::GetAccumulate { data: bytes(&ones[..4]), combine: SUM, result: space(before) };
                start(access(3, 4, change));
            }
        }
    }
    for by in [0, 2] {
        windows.windows[by].unlock(1).unwrap();
    }
    drop(windows);
    let content = memory[1].read(32);
    assert_eq!(content[..16], words([2 * ROUNDS, 2 * ROUNDS, 2 * ROUNDS, 3 * ROUNDS]));
    // Rank 0 has added 2 since it fetched last, and rank 2 may have added any number.
    let before: Vec<u32> = before.into_iter().map(u32::from_le_bytes).collect();
    assert!(before.windows(2).all(|pair| pair[1] - pair[0] >= 2), "{before:?}");
    assert!(before[0] >= 1 && before[ROUNDS as usize - 1] < 3 * ROUNDS);
}

/// The device's failure is the operation's, and that of the calls behind it.
#[test]
fn a_kernel_that_fails_is_an_error() {
    let test = "a_kernel_that_fails_is_an_error";
    if std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some() {
        eprintln!("skipped {test}: a real driver does not fail on request");
        return;
    }
    isolated(test, &[("SIM_CUDA_FAIL", "cuStreamQuery:719"), ("SIM_CUDA_KERNEL_DELAY_US", "200000")], || {
        let devices = devices();
        load_kernels(&devices);
        // The simulated kernel runs nevertheless, so the memory stays.
        let content = words(0..100_000);
        let mut memory: Vec<_> = (0..2).map(|_| Memory::new(&devices, ON_DEVICE[0], &content)).collect();
        let windows = Windows::new(&devices, links()[2], &mut memory, content.len() as u64, &[4; 2]);
        let failed = (0..20).any(|_| match add(&windows, bytes(&content), 0, false) {
            Ok(_) => false,
            Err(Error::RefusedByWindow { rank: 1, refusal: Refusal::Device, .. }) => true,
            Err(other) => panic!("{other:?}"),
        });
        assert!(failed);
        std::mem::forget((windows, memory));
    });
}

/// Keeping the elements without a result moves nothing, and disconnects nobody.
#[test]
fn nothing_is_answered_that_was_not_asked_for() {
    let devices = devices();
    for kind in [None, ON_DEVICE[0]] {
        let mut memory: Vec<_> = (0..2).map(|_| Memory::new(&devices, kind, &words(0..8))).collect();
        let windows = Windows::new(&devices, links()[2], &mut memory, 32, &[4; 2]);
        let change = Change::Accumulate(Buffer::EMPTY, Combine::Keep);
        windows.access(0, &Access { target: 1, displacement: 0, reach: run(32), change }).unwrap();
        add(&windows, bytes(&words([1; 8])), 0, false).unwrap();
        drop(windows);
        assert!(memory[1].read(32) == words(1..9), "{kind:?}");
    }
}
