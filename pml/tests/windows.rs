//! Windows between engines in one thread, on host and device memory.
#![cfg(feature = "cuda")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_pml::{Access, Buffer, Change, Combine, Error, Exposed, Refusal};
use test_nodes::devices;

use common::memory::Memory;
use common::windows::{KINDS, SUM, Windows, links, pairs, run};
use common::{bytes, pattern, space};

#[test]
fn puts_and_gets_move_every_byte_and_no_other() {
    let devices = devices();
    for link in links() {
        for (kind, local) in KINDS.into_iter().flat_map(|kind| KINDS.map(|local| (kind, local))) {
            for len in [0_usize, 1, 8, 8116, 8193, 300_000] {
                let room = len + 64;
                let mut memory: Vec<_> = (0..2).map(|_| Memory::new(&devices, kind, &vec![0xee; room])).collect();
                let windows = Windows::new(&devices, link, &mut memory, room as u64, &[1, 4]);
                let data = pattern(len, 3);
                let mut from = Memory::new(&devices, local, &data);
                let buffer = Buffer::bytes(from.address(), len as u64);
                windows.put(0, buffer, 1, 4, run(len)).unwrap();
                // From and to a rank's own memory.
                windows.put(0, buffer, 0, 5, run(len)).unwrap();
                let mut back = Memory::new(&devices, local, &vec![0; len]);
                let buffer = Buffer::bytes(back.address(), len as u64);
                windows.get(0, buffer, 1, 4, run(len)).unwrap();
                drop(windows);
                let what = format!("{local:?} and {kind:?}, {len} bytes");
                for (memory, at) in memory.iter().zip([5, 16]) {
                    let content = memory.read(room);
                    assert!(content[at..at + len] == data, "{what}");
                    assert!(content[..at].iter().chain(&content[at + len..]).all(|&byte| byte == 0xee), "{what}");
                }
                assert!(back.read(len) == data, "{what}");
            }
        }
    }
}

#[test]
fn elements_with_gaps_are_placed_at_the_target() {
    let devices = devices();
    for kind in KINDS {
        // The blocks come with the ask, and before it.
        for (blocks, count) in [(3, 4), (124, 2), (125, 2), (2000, 1)] {
            let layout = pairs(blocks);
            let room = 8 + count * layout.extent() as usize;
            let mut memory: Vec<_> = (0..2).map(|_| Memory::new(&devices, kind, &vec![0xee; room])).collect();
            let windows = Windows::new(&devices, links()[2], &mut memory, room as u64, &[1, 1]);
            let data = pattern(2 * blocks * count, 9);
            let reach = Buffer::typed(std::ptr::null(), count as u64, &layout);
            windows.put(0, bytes(&data), 1, 1, reach).unwrap();
            let mut back = vec![0; data.len()];
            windows.get(0, space(&mut back), 1, 1, reach).unwrap();
            drop(windows);
            assert!(back == data, "{kind:?}, {blocks} blocks");
            let mut expected = vec![0xee; room];
            for (element, data) in data.chunks(2 * blocks).enumerate() {
                for (block, pair) in data.chunks(2).enumerate() {
                    let at = 1 + element * layout.extent() as usize + 2 + 3 * block;
                    expected[at..at + 2].copy_from_slice(pair);
                }
            }
            assert!(memory[1].read(room) == expected, "{kind:?}, {blocks} blocks");
        }
    }
}

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn accumulates_are_made_in_the_order_of_the_calls() {
    let devices = devices();
    const WORDS: usize = 50_000;
    for kind in KINDS {
        let mut memory: Vec<_> = (0..2).map(|_| Memory::new(&devices, kind, &words(0..WORDS as u32))).collect();
        let windows = Windows::new(&devices, links()[1], &mut memory, 4 * WORDS as u64, &[4, 4]);
        let (large, small, replaced) = (words((0..WORDS as u32).map(|i| 7 * i)), words([1000]), words([77]));
        let (mut fetched, mut last) = (vec![0; 4 * WORDS], vec![0; 4]);
        let window = &windows.windows[0];
        window.lock(1, true).unwrap();
        let combine = |data: &[u8], displacement, combine| Access {
            target: 1,
            displacement,
            reach: run(data.len()),
            change: Change::Accumulate(bytes(data), combine),
        };
        // SAFETY: the unlock completes the accesses, and the buffers live longer.
        unsafe {
            // The data of the large ones lands after that of the small ones.
            window.start(&combine(&large, 0, SUM), None).unwrap();
            window.start(&combine(&replaced, 3, Combine::Replace), None).unwrap();
            window.start(&combine(&small, 3, SUM), None).unwrap();
            let result = space(&mut fetched);
            let change = Change::GetAccumulate { data: bytes(&large), combine: SUM, result };
            window.start(&Access { target: 1, displacement: 0, reach: run(4 * WORDS), change }, None).unwrap();
            let change =
                Change::GetAccumulate { data: Buffer::EMPTY, combine: Combine::Keep, result: space(&mut last) };
            window.start(&Access { target: 1, displacement: 3, reach: run(4), change }, None).unwrap();
        }
        window.unlock(1).unwrap();
        drop(windows);
        let once = |i: u32| if i == 3 { 1077 } else { 8 * i };
        assert!(fetched == words((0..WORDS as u32).map(once)), "{kind:?}");
        assert_eq!(last, words([1077 + 21]), "{kind:?}");
        assert!(memory[1].read(4 * WORDS) == words((0..WORDS as u32).map(|i| once(i) + 7 * i)), "{kind:?}");
        assert!(memory[0].read(4 * WORDS) == words(0..WORDS as u32), "{kind:?}");
    }
}

#[test]
fn an_element_is_swapped_if_it_compares_equal() {
    let devices = devices();
    for (kind, local) in KINDS.into_iter().flat_map(|kind| KINDS.map(|local| (kind, local))) {
        let mut memory = vec![Memory::new(&devices, kind, &words([5, 6, 7]))];
        let windows = Windows::new(&devices, links()[0], &mut memory, 12, &[4]);
        let swap = |expected: u32, new: u32| {
            let [mut expected, mut new, mut result] =
                [expected, new, 0].map(|word| Memory::new(&devices, local, &words([word])));
            let buffer = |memory: &mut Memory| Buffer::bytes(memory.address(), 4);
            let change = Change::CompareSwap {
                expected: buffer(&mut expected),
                new: buffer(&mut new),
                result: buffer(&mut result),
            };
            windows.access(0, &Access { target: 0, displacement: 1, reach: run(4), change }).unwrap();
            result.read(4)
        };
        assert_eq!(swap(5, 8), words([6]));
        assert_eq!(swap(6, 9), words([6]));
        assert_eq!(swap(9, 10), words([9]));
        drop(windows);
        assert_eq!(memory[0].read(12), words([5, 10, 7]), "{kind:?} and {local:?}");
    }
}

#[test]
fn posts_and_fences_open_epochs() {
    let devices = devices();
    let mut memory: Vec<_> = (0..3).map(|_| Memory::new(&devices, KINDS[1], &[0; 64])).collect();
    let windows = Windows::new(&devices, links()[2], &mut memory, 64, &[1, 1, 1]);
    let data = pattern(32, 5);
    let put = |by: usize, target, displacement| {
        let change = Change::Put(bytes(&data));
        let access = Access { target, displacement, reach: run(32), change };
        // SAFETY: the data lives longer than the epoch.
        unsafe { windows.windows[by].start(&access, None) }
    };
    for round in 0..2 {
        windows.windows[2].post(vec![0, 1]).unwrap();
        assert!(!windows.windows[2].test().unwrap());
        for by in 0..2 {
            windows.windows[by].begin(vec![2]).unwrap();
            put(by, 2, 32 * by as i64).unwrap();
            assert!(put(by, 0, 0).is_err());
            assert!(!windows.windows[2].test().unwrap());
            windows.windows[by].end().unwrap();
        }
        if round == 0 {
            windows.windows[2].wait().unwrap();
        } else {
            windows.ranks.settle();
            assert!(windows.windows[2].test().unwrap());
        }
    }
    windows.windows.iter().for_each(|window| window.fence(true).unwrap());
    put(2, 1, 7).unwrap();
    windows.windows.iter().for_each(|window| window.fence(false).unwrap());
    assert!(put(2, 1, 7).is_err());
    drop(windows);
    assert!(memory[2].read(64) == [&data[..], &data].concat());
    assert!(memory[1].read(64)[7..39] == data && memory[0].read(64) == [0; 64]);
}

#[test]
fn memory_is_attached_and_detached() {
    let devices = devices();
    let mut memory = Memory::new(&devices, KINDS[1], &[0xee; 64]);
    let address = memory.address();
    let windows = Windows::exposing(&devices, links()[1], vec![Exposed::Attached; 2]);
    let data = pattern(16, 5);
    let put = |offset: i64| windows.put(0, bytes(&data), 1, address.addr() as i64 + offset, run(16));
    let is_refused = |result| matches!(result, Err(Error::RefusedByWindow { refusal: Refusal::OutOfRange, .. }));
    assert!(is_refused(put(0)));
    // SAFETY: the memory lives longer than the window.
    unsafe { windows.windows[1].attach(address.wrapping_add(8), 32) }.unwrap();
    assert!(is_refused(put(0)) && is_refused(put(25)));
    put(24).unwrap();
    windows.windows[1].detach(address.wrapping_add(8)).unwrap();
    assert!(is_refused(put(24)));
    drop(windows);
    let content = memory.read(64);
    assert!(content[24..40] == data && content[..24].iter().chain(&content[40..]).all(|&byte| byte == 0xee));
}

#[test]
fn functions_are_called_once_with_the_result() {
    let devices = devices();
    let mut memory = vec![Memory::new(&devices, None, &[0; 64])];
    let windows = Windows::new(&devices, links()[0], &mut memory, 64, &[1]);
    let window = &windows.windows[0];
    let [good, bad] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    window.lock(0, false).unwrap();
    let data = [1; 8];
    for (displacement, len) in [(0, 8), (0, 0), (60, 8)] {
        let (good, bad) = (good.clone(), bad.clone());
        let then = move |result: Result<(), Error>| {
            let count = if result.is_ok() { good } else { bad };
            count.fetch_add(1, Ordering::Relaxed);
        };
        let change = Change::Put(bytes(&data[..len]));
        // SAFETY: the unlock completes the access.
        unsafe { window.start(&Access { target: 0, displacement, reach: run(len), change }, Some(Box::new(then))) }
            .unwrap();
    }
    // The function has got the error.
    window.unlock(0).unwrap();
    assert_eq!((good.load(Ordering::Relaxed), bad.load(Ordering::Relaxed)), (2, 1));
}
