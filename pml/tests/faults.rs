//! Peers that die, links that break, bytes that make no sense.

mod common;

use cableway_btl::Flags;
use cableway_pml::{Buffer, Error, FastPath, Request, SendMode};

use common::{ANY_, Link, Ranks, bytes, pattern};

fn links() -> [Vec<Link>; 4] {
    let asynchronous = |flags| vec![Link::new("net", flags).with(|link| link.asynchronous = true)];
    [
        vec![Link::new("net", Flags::empty())],
        asynchronous(Flags::GET),
        asynchronous(Flags::PUT),
        asynchronous(Flags::SEND_IN_PLACE),
    ]
}

#[test]
fn a_death_ends_every_request_that_involves_it() {
    for links in links() {
        let ranks = Ranks::new(3, &links);
        ranks.carry(100_000, 1);
        let (data, mut rooms) = (pattern(200_000, 1), vec![vec![0; 200_000]; 5]);
        let mut rooms = rooms.iter_mut();
        let mut room = || rooms.next().unwrap();
        // Rank 1 will die. Ends badly: a send to it that it has not answered, one under way, a receive from it, one
        // from anybody, one under way. Ends well: what has to do with rank 2.
        let mut bad = vec![
            ranks.isend(0, 1, 1, &data, &SendMode::Standard).0.unwrap(),
            ranks.isend(0, 1, 1, &data[..100], &SendMode::Synchronous).0.unwrap(),
            ranks.irecv(0, 1, 1, room()),
            ranks.irecv(0, ANY_, 7, room()),
        ];
        ranks.settle();
        let other = ranks.irecv(1, 0, 2, room());
        let under_way = ranks.isend(0, 1, 2, &data, &SendMode::Standard);
        ranks.engines[1].progress();
        let good = ranks.irecv(0, 2, 1, room());
        ranks.net.kill(1);
        let survivors = || [0, 2].map(|rank| ranks.engines[rank].progress());
        for _ in 0..1000 {
            survivors();
        }
        bad.extend(under_way.0);
        for (which, request) in bad.iter().enumerate() {
            assert!(
                matches!(request.error(), Some(Error::PeerFailed { peer: 1, .. } | Error::Btl(_))),
                "request {which}: {:?}",
                request.error()
            );
        }
        assert!(!good.is_complete());
        // Later operations fail at once; others go on.
        let request = Request::new();
        // SAFETY: nothing is started.
        unsafe {
            let (engine, world) = (&ranks.engines[0], &ranks.world[0]);
            for mode in [SendMode::Standard, SendMode::Synchronous] {
                let sent = engine.isend(world, 1, 1, bytes(&data), &mode, &request);
                assert!(matches!(sent, Err(Error::PeerFailed { peer: 1, .. })));
            }
            assert!(matches!(engine.send_now(world, 1, 1, Buffer::EMPTY), Err(Error::PeerFailed { .. })));
            for source in [1, ANY_] {
                let posted = engine.irecv(world, source, 1, Buffer::EMPTY, &request);
                assert!(matches!(posted, Err(Error::PeerFailed { peer: 1, .. })));
                assert!(matches!(engine.iprobe(world, source, 1), Err(Error::PeerFailed { .. })));
            }
        }
        assert!(!request.is_active());
        let send = ranks.isend(2, 0, 1, &data, &SendMode::Standard);
        for _ in 0..10_000 {
            survivors();
        }
        assert!(good.is_complete() && good.error().is_none() && send.is_complete());
        // A communicator without the dead is as before, one made with it is not.
        let pair = [0, 2].map(|rank| ranks.engines[rank].add_communicator(5, vec![0, 2], rank as u32 / 2).unwrap());
        // SAFETY: nothing is written.
        unsafe {
            ranks.engines[0].irecv(&pair[0], ANY_, 1, Buffer::EMPTY, &request).unwrap();
            assert!(ranks.engines[2].send_now(&pair[1], 0, 1, Buffer::EMPTY).unwrap() == FastPath::Sent);
        }
        for _ in 0..100 {
            survivors();
        }
        assert!(request.is_complete() && request.error().is_none());
        let all = ranks.engines[0].add_communicator(6, vec![0, 1, 2], 0).unwrap();
        // SAFETY: nothing is started.
        let posted = unsafe { ranks.engines[0].irecv(&all, ANY_, 1, Buffer::EMPTY, &request) };
        assert!(matches!(posted, Err(Error::PeerFailed { peer: 1, .. })));
        // The dead one's requests are its own.
        drop(other);
    }
}

#[test]
fn what_a_dead_peer_had_sent_can_still_be_received() {
    let ranks = Ranks::new(2, &[Link::new("net", Flags::GET)]);
    assert!(ranks.isend(0, 1, 1, &[7], &SendMode::Standard).is_complete());
    ranks.settle();
    ranks.net.kill(0);
    ranks.engines[1].progress();
    let mut room = [0];
    assert_eq!(ranks.recv(1, ANY_, 1, &mut room).unwrap().len, 1);
    assert_eq!(room, [7]);
}

#[test]
fn a_link_that_never_worked_is_replaced() {
    let better = Link::new("broken", Flags::GET).with(|link| link.capabilities.exclusivity = 9999);
    let ranks = Ranks::new(2, &[better, Link::new("net", Flags::GET)]);
    ranks.net.break_btl(0);
    for len in [0, 8, 3000, 100_000] {
        ranks.carry(len, 1);
    }
}

#[test]
fn the_transport_of_highest_exclusivity_carries_all() {
    let better = Link::new("better", Flags::GET).with(|link| link.capabilities.exclusivity = 9999);
    let ranks = Ranks::new(2, &[Link::new("net", Flags::PUT), better]);
    for len in [0, 8, 3000, 100_000] {
        ranks.carry(len, 1);
    }
    assert_eq!(ranks.net.carried(0), 0);
    assert!(ranks.net.carried(1) > 4);
}

/// What rank 0 of two sends in the course of a message, and a rank 1 that has seen a part of it.
fn captured() -> Vec<Vec<u8>> {
    let mut all = vec![];
    for flags in [Flags::empty(), Flags::GET, Flags::PUT] {
        for rank in [0, 1] {
            let ranks = Ranks::new(2, &[Link::new("net", flags)]);
            let (data, mut room) = (pattern(100_000, 1), vec![0; 100_000]);
            let receive = ranks.irecv(1, 0, 1, &mut room);
            let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
            while !(receive.is_complete() && send.is_complete()) {
                while let Some(message) = ranks.net.intercept(rank, 1 - rank) {
                    ranks.net.inject(rank, 1 - rank, &message);
                    all.push(message.to_vec());
                    ranks.engines[1 - rank as usize].progress();
                }
                ranks.engines[0].progress();
                ranks.engines[1].progress();
            }
        }
    }
    all
}

#[test]
fn a_message_out_of_turn_ends_its_sender_and_nothing_else() {
    let captured = captured();
    assert!(captured.len() > 10);
    for message in &captured {
        // To a fresh process, everything but a new message is out of turn; twice, a new message is too.
        let ranks = Ranks::new(3, &[Link::new("net", Flags::GET | Flags::PUT)]);
        let mut room = vec![0; 100];
        let receive = ranks.irecv(1, 0, 9, &mut room);
        ranks.net.inject(0, 1, message);
        ranks.net.inject(0, 1, message);
        for _ in 0..100 {
            ranks.engines[1].progress();
        }
        assert_eq!(ranks.counter(1, "malformed"), 1, "{:?}", &message[..16]);
        assert!(matches!(receive.error(), Some(Error::PeerFailed { peer: 0, .. })));
        let send = ranks.isend(2, 1, 1, &[1; 8], &SendMode::Standard);
        assert_eq!(ranks.engines[1].probe(&ranks.world[1], 2, 1).unwrap().len, 8);
        send.finish(&ranks);
    }
}

#[test]
fn flipped_bits_do_no_harm() {
    // Each message of a transfer, with each of its header's bits flipped: the transfer ends one way or another, and
    // memory outside of the buffers is not touched (the network asserts that only registered memory is reached).
    for flags in [Flags::empty(), Flags::GET, Flags::PUT] {
        for bit in 0..48 * 8 {
            for nth in 0..4 {
                let ranks = Ranks::new(2, &[Link::new("net", flags)]);
                ranks.net.corrupt(nth, bit);
                let (data, mut room) = (pattern(70_000, 1), vec![0xaa; 70_000 + 16]);
                let receive = ranks.irecv(1, 0, 1, &mut room[8..70_008]);
                let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
                ranks.settle();
                assert!(room[..8].iter().chain(&room[70_008..]).all(|&byte| byte == 0xaa));
                // Whoever noticed has cut the other off; let both sides see it.
                ranks.net.kill(0);
                ranks.net.kill(1);
                ranks.settle();
                assert!(receive.is_complete() && send.is_complete(), "bit {bit} of message {nth}");
            }
        }
    }
}
