//! Windows whose peers reach too far, call out of order, post malformed messages or die.
#![cfg(feature = "cuda")]

mod common;

use cableway_pml::{Access, ActiveMessages, Buffer, Change, Combine, Error, Exposed, Refusal, Window};
use test_nodes::devices;

use common::memory::Memory;
use common::windows::{KINDS, SUM, Together, Windows, links, pairs, run};
use common::{Ranks, bytes, pattern, space};

#[test]
fn what_a_window_does_not_hold_is_refused_and_changes_nothing() {
    let devices = devices();
    let mut memory: Vec<_> = (0..2).map(|_| Memory::new(&devices, KINDS[1], &[0xee; 64])).collect();
    let windows = Windows::new(&devices, links()[2], &mut memory, 64, &[4, 4]);
    let refused = |result: Result<(), Error>, expected: Refusal| match result {
        Err(Error::RefusedByWindow { rank: 1, refusal, .. }) => assert_eq!(refusal, expected),
        other => panic!("{other:?}"),
    };
    let (data, layout) = (pattern(64, 1), pairs(30));
    for (displacement, len) in [(0, 65), (16, 1), (-1, 4), (i64::MAX, 8), (i64::MIN, 8)] {
        let data = pattern(len, 1);
        refused(windows.put(0, bytes(&data), 1, displacement, run(len)), Refusal::OutOfRange);
        let mut room = vec![0x11; len];
        refused(windows.get(0, space(&mut room), 1, displacement, run(len)), Refusal::OutOfRange);
        assert!(room.iter().all(|&byte| byte == 0x11));
        let change = Change::Accumulate(bytes(&data), Combine::Replace);
        refused(windows.access(0, &Access { target: 1, displacement, reach: run(len), change }), Refusal::OutOfRange);
    }
    refused(windows.put(0, bytes(&data[..60]), 1, 0, Buffer::typed(std::ptr::null(), 1, &layout)), Refusal::OutOfRange);
    let unknown = Combine::Reduce { operation: 9, element: 9 };
    for (combine, len) in [(unknown, 8), (SUM, 7)] {
        let change = Change::Accumulate(bytes(&data[..len]), combine);
        refused(windows.access(0, &Access { target: 1, displacement: 0, reach: run(len), change }), Refusal::Reduction);
    }
    // Nothing leaves.
    assert!(matches!(windows.put(0, bytes(&data), 1, 0, run(63)), Err(Error::UnequalBuffers { .. })));
    // An error is reported once, and the window stays usable.
    windows.put(0, bytes(&data[..8]), 1, 2, run(8)).unwrap();
    drop(windows);
    let content = memory[1].read(64);
    assert_eq!(content[8..16], data[..8]);
    assert!(content[..8].iter().chain(&content[16..]).all(|&byte| byte == 0xee));
}

#[test]
fn calls_out_of_order_are_errors() {
    let devices = devices();
    let mut memory: Vec<_> = (0..2).map(|_| Memory::new(&devices, None, &[0; 64])).collect();
    let windows = Windows::new(&devices, links()[0], &mut memory, 64, &[1, 1]);
    let data = [7; 8];
    let put = Access { target: 1, displacement: 0, reach: run(8), change: Change::Put(bytes(&data)) };
    let window = &windows.windows[0];
    // SAFETY: none of them starts.
    let start = || unsafe { window.start(&put, None) };
    let out = |result: Result<(), Error>| assert!(matches!(result, Err(Error::OutOfEpoch { .. })), "{result:?}");
    out(start());
    out(window.unlock(1));
    out(window.end());
    out(window.wait());
    window.lock(0, true).unwrap();
    out(start());
    out(window.lock(0, true));
    out(window.fence(true));
    window.unlock(0).unwrap();
    out(start());
}

/// An active message: its id, its header, and the length of its data.
type Posted = (u32, Vec<u8>, usize);

/// Rank 0 posts what no window posts. Rank 1 must disconnect it, and its memory must stay as it is.
#[test]
fn malformed_messages_disconnect_their_sender_and_change_nothing() {
    const ASK: u32 = 1;
    const SHAPE: u32 = 2;
    const ANSWER: u32 = 3;
    const NOTICE: u32 = 4;
    // A put of 8 bytes at displacement 0; the ask's layout is drawn in docs/wire.md.
    let mut put = vec![0_u8; 56];
    (put[16], put[40]) = (1, 8);
    let changed = |at: usize, value: u8| {
        let mut bytes = put.clone();
        bytes[at] = value;
        bytes
    };
    let mut compare = changed(16, 5);
    compare[17] = 0;
    let shape = [&1_u64.to_le_bytes()[..], &2_u64.to_le_bytes()].concat();
    let cases: Vec<(&str, Vec<Posted>)> = vec![
        ("a short ask", vec![(ASK, put[..55].to_vec(), 8)]),
        ("an unknown kind", vec![(ASK, changed(16, 9), 8)]),
        ("less data than the target", vec![(ASK, put.clone(), 7)]),
        ("more data than the target", vec![(ASK, put.clone(), 9)]),
        ("a comparison with half of its data", vec![(ASK, compare, 8)]),
        ("an element of blocks that did not come", vec![(ASK, changed(28, 1), 8)]),
        ("blocks for a run of bytes", vec![(SHAPE, vec![], 16), (ASK, put.clone(), 8)]),
        ("blocks twice", vec![(SHAPE, vec![], 16), (ASK, [&changed(28, 1)[..], &shape].concat(), 8)]),
        ("a part of a block", vec![(SHAPE, vec![], 15)]),
        ("a shape without blocks", vec![(SHAPE, vec![], 0)]),
        ("an answer that nobody asked for", vec![(ANSWER, vec![0; 16], 0)]),
        ("a lock that is given back, but not held", vec![(NOTICE, vec![4, 0, 0, 0], 0)]),
        ("an unknown notice", vec![(NOTICE, vec![8, 0, 0, 0], 0)]),
    ];
    let devices = devices();
    for (what, messages) in cases {
        let mut memory = Memory::new(&devices, KINDS[1], &[0xee; 64]);
        let ranks = Ranks::on(&devices, 2, &[links()[0]], &[], false);
        let host = Together::new(&ranks);
        let exposed = Exposed::Memory { address: memory.address(), len: 64, unit: 1 };
        // SAFETY: the memory lives longer than the window.
        let window = unsafe { Window::new(&ranks.engines[1], ranks.world[1].clone(), exposed, host) }.unwrap();
        let stranger = ActiveMessages::over(&ranks.engines[0], ranks.world[0].clone());
        let data = pattern(64, 1);
        for (id, header, len) in messages {
            // SAFETY: the bytes are few, so they are copied.
            let posted = unsafe { stranger.poster().post_inline(1, id, &header, bytes(&data[..len])) };
            assert!(posted.unwrap(), "{what}");
        }
        ranks.settle();
        assert!(ranks.engines[1].check_members(&ranks.world[1]).is_err(), "{what}: the sender is still connected");
        assert!(memory.read(64) == [0xee; 64], "{what}");
        window.close();
        stranger.close();
    }
}

#[test]
fn calls_end_when_a_member_dies() {
    let devices = devices();
    let mut memory: Vec<_> = (0..2).map(|_| Memory::new(&devices, KINDS[1], &[0; 64])).collect();
    let ranks = Ranks::on(&devices, 2, &[links()[0]], &[], false);
    let host = Together::new(&ranks);
    let windows: Vec<Window> = (0..2)
        .map(|rank| {
            let exposed = Exposed::Memory { address: memory[rank].address(), len: 64, unit: 1 };
            // SAFETY: the memory lives longer than the windows.
            unsafe { Window::new(&ranks.engines[rank], ranks.world[rank].clone(), exposed, host.clone()) }.unwrap()
        })
        .collect();
    windows[0].lock(1, false).unwrap();
    windows[0].post(vec![1]).unwrap();
    ranks.net.kill(1);
    let data = pattern(64, 1);
    let change = Change::Put(bytes(&data));
    // SAFETY: the data lives longer than the engine's use of it, which ends with the peer.
    let started = unsafe { windows[0].start(&Access { target: 1, displacement: 0, reach: run(64), change }, None) };
    let ended =
        [started.and(windows[0].flush(Some(1))), windows[0].unlock(1), windows[0].wait(), windows[0].fence(true)];
    for result in ended {
        assert!(result.is_err(), "{result:?}");
    }
    windows.iter().for_each(Window::close);
    assert!(memory[1].read(64) == [0; 64]);
}
