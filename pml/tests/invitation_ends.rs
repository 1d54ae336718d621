//! The end of invitations: cancelled receives, removed communicators, peers that die, and windows of receives. Runs on
//! the simulated driver, or on a real one.
#![cfg(feature = "cuda")]

mod common;

use cableway_pml::{Buffer, Error, Outcome, Request, SendMode};

use common::memory::Memory;
use common::pair::{Pair, link};
use common::pattern;

#[test]
fn the_buffer_of_a_cancelled_receive_is_not_written() {
    let pair = Pair::new(link());
    for looks in [false, true] {
        let (mut source, mut first, mut second) = (pair.memory(&[7; 8]), pair.memory(&[0; 8]), pair.memory(&[0; 8]));
        let (send, cancelled, receive) = (Request::new(), Request::new(), Request::new());
        pair.receive(&mut first, (0, 5), &cancelled);
        if looks {
            pair.ranks.engines[0].progress();
        }
        // SAFETY: the request was started here.
        assert!(unsafe { pair.ranks.engines[1].cancel(&cancelled) });
        assert!(cancelled.result().unwrap().cancelled);
        pair.send(&mut source, 8, 5, &send);
        pair.ranks.settle();
        assert!(!send.is_complete());
        pair.receive(&mut second, (0, 5), &receive);
        pair.ranks.finish(&[&send, &receive]);
        assert_eq!((first.read(8), second.read(8)), (vec![0; 8], vec![7; 8]));
    }
    // Too late: the sender has claimed the invitation.
    let (mut source, mut target) = (pair.memory(&[7; 8]), pair.memory(&[0; 8]));
    let (send, receive) = (Request::new(), Request::new());
    pair.receive(&mut target, (0, 5), &receive);
    pair.send(&mut source, 8, 5, &send);
    pair.ranks.engines[0].progress();
    // SAFETY: as above.
    assert!(!unsafe { pair.ranks.engines[1].cancel(&receive) });
    // SAFETY: as above.
    assert!(!unsafe { pair.ranks.engines[1].cancel(&receive) }, "a second attempt");
    pair.ranks.finish(&[&send, &receive]);
    assert!(!receive.result().unwrap().cancelled);
    assert_eq!(target.read(8), [7; 8]);
    pair.nothing_is_left();
}

#[test]
fn removing_a_communicator_withdraws_its_invitations() {
    for sends in [false, true] {
        let pair = Pair::new(link());
        let (mut source, mut target) = (pair.memory(&[7; 8]), pair.memory(&[0; 8]));
        let (send, receive) = (Request::new(), Request::new());
        pair.receive(&mut target, (0, 5), &receive);
        if sends {
            // The sender has the invitation, and stores.
            pair.send(&mut source, 8, 5, &send);
            pair.ranks.engines[0].progress();
        }
        pair.ranks.engines[1].remove_communicator(&pair.ranks.world[1]);
        if sends {
            pair.ranks.finish(&[&send, &receive]);
            assert!(receive.result().is_ok() && target.read(8) == [7; 8]);
        } else {
            assert!(matches!(receive.result(), Err(Error::CommunicatorRemoved { .. })));
        }
        pair.nothing_is_left();
    }
}

#[test]
fn the_death_of_a_peer_ends_its_invitations() {
    for sends in [false, true] {
        let pair = Pair::new(link());
        let (mut source, mut target) = (pair.memory(&[7; 8]), pair.memory(&[0; 8]));
        let (send, receive) = (Request::new(), Request::new());
        pair.receive(&mut target, (0, 5), &receive);
        if sends {
            pair.send(&mut source, 8, 5, &send);
            pair.ranks.engines[1].progress();
        }
        pair.ranks.net.kill(0);
        for _ in 0..1000 {
            pair.ranks.engines[1].progress();
        }
        assert!(matches!(receive.result(), Err(Error::PeerFailed { .. })), "{:?}", receive.result());
        assert_eq!(pair.ranks.net.registered(), 0);
    }
}

/// Checks busy links, which take invitations late, and memory that the sender cannot access after all.
#[test]
fn invited_messages_arrive_over_busy_and_refusing_links() {
    let busy = link().with(|link| link.busy = 600);
    let refusing = link().with(|link| link.refuses = true);
    for link in [busy, refusing] {
        let pair = Pair::new(link);
        for round in 0..40 {
            let data = pattern(1000, round);
            let (mut source, mut target) = (pair.memory(&data), pair.memory(&[0; 1000]));
            let (send, receive) = (Request::new(), Request::new());
            if round % 2 == 0 {
                pair.receive(&mut target, (0, 5), &receive);
            }
            pair.send(&mut source, 1000, 5, &send);
            if round % 2 == 1 {
                pair.receive(&mut target, (0, 5), &receive);
            }
            pair.ranks.finish(&[&send, &receive]);
            assert!(receive.result().is_ok() && target.read(1000) == data);
        }
        assert_eq!(pair.invitations() != 0, !link.refuses);
        pair.nothing_is_left();
    }
}

/// Checks that invitations pause for windows of receives, whose first message should be batched with the others.
#[test]
fn invitations_pause_for_windows() {
    const COUNT: usize = 16;
    let pair = Pair::new(link());
    let window = || {
        let mut source = pair.memory(&[5; COUNT]);
        let mut targets: Vec<Memory> = (0..COUNT).map(|_| pair.memory(&[0])).collect();
        let requests: Vec<Request> = (0..2 * COUNT).map(|_| Request::new()).collect();
        let (sends, receives) = requests.split_at(COUNT);
        targets.iter_mut().zip(receives).for_each(|(target, request)| pair.receive(target, (0, 3), request));
        sends.iter().for_each(|request| pair.send(&mut source, 1, 3, request));
        pair.ranks.finish(&requests.iter().collect::<Vec<_>>());
        assert!(targets.iter().all(|target| target.read(1) == [5]));
    };
    (0..40).for_each(|_| window());
    // Invitations follow after 1 message, and after 64, 128 and 256 further messages.
    assert_eq!(pair.invitations(), 4);
    // With single messages again, invitations pay again.
    for _ in 0..1000 {
        let (mut source, mut target) = (pair.memory(&[7; 8]), pair.memory(&[0; 8]));
        let (send, receive) = (Request::new(), Request::new());
        pair.receive(&mut target, (0, 5), &receive);
        pair.send(&mut source, 8, 5, &send);
        pair.ranks.finish(&[&send, &receive]);
    }
    assert!(pair.invitations() > 300, "{}", pair.invitations());
    pair.nothing_is_left();
}

/// Sends windows of messages in both directions at once, with and without invitations.
#[test]
fn windows_in_both_directions() {
    let pair = Pair::new(link());
    let (ranks, mut random) = (&pair.ranks, 7_u32);
    let mut next = |below: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as usize % below
    };
    for round in 0..120 {
        let window = [1, 1, 1, 2, 4, 6][next(6)];
        let lens: Vec<usize> = (0..2 * window).map(|_| [8, 3000, 50_000][next(3)]).collect();
        let mut sources: Vec<Memory> =
            lens.iter().enumerate().map(|(at, &len)| pair.memory(&pattern(len, (round + at) as u8))).collect();
        let mut targets: Vec<Memory> = lens.iter().map(|&len| pair.memory(&vec![0; len])).collect();
        let requests: Vec<Request> = (0..4 * window).map(|_| Request::new()).collect();
        let (sends, receives) = requests.split_at(2 * window);
        let mut steps: Vec<(usize, bool)> = (0..2 * window).flat_map(|at| [(at, true), (at, false)]).collect();
        for at in (1..steps.len()).rev() {
            steps.swap(at, next(at + 1));
        }
        let mut waits = Vec::new();
        for (at, is_send) in steps {
            // Every other message goes back. Each has its own tag, because receives are posted in any order.
            let (rank, peer, tag) = (at % 2, 1 - at % 2, at as i32);
            // SAFETY: memory and requests live until all is done.
            unsafe {
                if is_send {
                    let buffer = Buffer::bytes(sources[at].address(), lens[at] as u64);
                    let (engine, world) = (&ranks.engines[rank], &ranks.world[rank]);
                    if engine.isend(world, peer as i32, tag, buffer, &SendMode::Standard, &sends[at]).unwrap()
                        == Outcome::Started
                    {
                        waits.push(&sends[at]);
                    }
                } else {
                    let buffer = Buffer::bytes(targets[at].address(), lens[at] as u64);
                    let (engine, world) = (&ranks.engines[peer], &ranks.world[peer]);
                    // In every other round the sender sees invitations at once; otherwise later, or not at all.
                    let location = pair.devices.classify(targets[at].address(), lens[at]);
                    while round % 2 == 0 && !pair.devices.ask_default_stream(&location).unwrap() {}
                    engine.irecv(world, rank as i32, tag, buffer, &receives[at]).unwrap();
                    waits.push(&receives[at]);
                }
            }
            if next(3) == 0 {
                ranks.engines[next(2)].progress();
            }
        }
        ranks.finish(&waits);
        for (at, target) in targets.iter().enumerate() {
            assert!(receives[at].result().is_ok() && target.read(lens[at]) == pattern(lens[at], (round + at) as u8));
        }
    }
    assert!(pair.invitations() > 10, "{}", pair.invitations());
    pair.nothing_is_left();
}
