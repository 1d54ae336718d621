//! Peers that die, links that break, and malformed bytes.

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
fn the_death_of_a_peer_ends_its_requests() {
    for links in links() {
        let ranks = Ranks::new(3, &links);
        ranks.carry(100_000, 1);
        let (data, mut buffers) = (pattern(200_000, 1), vec![vec![0; 200_000]; 5]);
        let mut buffers = buffers.iter_mut();
        let mut received = || buffers.next().unwrap();
        // Rank 1 will die. These requests fail: an unanswered send to it, a send under way, a receive from it, a
        // receive from any source, and a receive under way. Requests with rank 2 succeed.
        let mut bad = vec![
            ranks.isend(0, 1, 1, &data, &SendMode::Standard).0.unwrap(),
            ranks.isend(0, 1, 1, &data[..100], &SendMode::Synchronous).0.unwrap(),
            ranks.irecv(0, 1, 1, received()),
            ranks.irecv(0, ANY_, 7, received()),
        ];
        ranks.settle();
        let other = ranks.irecv(1, 0, 2, received());
        let under_way = ranks.isend(0, 1, 2, &data, &SendMode::Standard);
        ranks.engines[1].progress();
        let good = ranks.irecv(0, 2, 1, received());
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
        // Later operations with rank 1 fail at once. Others succeed.
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
        // A communicator without the dead rank works as before. A new one with the dead rank does not.
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
        // The dead rank's own requests are not checked.
        drop(other);
    }
}

#[test]
fn earlier_messages_of_a_dead_peer_can_be_received() {
    let ranks = Ranks::new(2, &[Link::new("net", Flags::GET)]);
    assert!(ranks.isend(0, 1, 1, &[7], &SendMode::Standard).is_complete());
    ranks.settle();
    ranks.net.kill(0);
    ranks.engines[1].progress();
    let mut received = [0];
    assert_eq!(ranks.recv(1, ANY_, 1, &mut received).unwrap().len, 1);
    assert_eq!(received, [7]);
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

/// Returns every message that two ranks exchange for a transfer by each protocol.
fn captured() -> Vec<Vec<u8>> {
    let mut all = vec![];
    for flags in [Flags::empty(), Flags::GET, Flags::PUT] {
        for rank in [0, 1] {
            let ranks = Ranks::new(2, &[Link::new("net", flags)]);
            let (data, mut received) = (pattern(100_000, 1), vec![0; 100_000]);
            let receive = ranks.irecv(1, 0, 1, &mut received);
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
fn a_message_out_of_turn_disconnects_only_its_sender() {
    let captured = captured();
    assert!(captured.len() > 10);
    for message in &captured {
        // For a fresh process, every header but that of a new message is out of turn. A repeated new message is, too.
        let ranks = Ranks::new(3, &[Link::new("net", Flags::GET | Flags::PUT)]);
        let mut received = vec![0; 100];
        let receive = ranks.irecv(1, 0, 9, &mut received);
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
fn transfers_with_flipped_bits_end() {
    // Flip each bit of the header of each message of a transfer. The transfer ends, with or without an error. No memory
    // outside of the buffers is accessed: the network asserts that the memory is registered.
    for flags in [Flags::empty(), Flags::GET, Flags::PUT] {
        for bit in 0..48 * 8 {
            for nth in 0..4 {
                let ranks = Ranks::new(2, &[Link::new("net", flags)]);
                ranks.net.corrupt(nth, bit);
                let (data, mut received) = (pattern(70_000, 1), vec![0xaa; 70_000 + 16]);
                let receive = ranks.irecv(1, 0, 1, &mut received[8..70_008]);
                let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard);
                ranks.settle();
                assert!(received[..8].iter().chain(&received[70_008..]).all(|&byte| byte == 0xaa));
                // A rank that noticed has disconnected the other. Let both sides see it.
                ranks.net.kill(0);
                ranks.net.kill(1);
                ranks.settle();
                assert!(receive.is_complete() && send.is_complete(), "bit {bit} of message {nth}");
            }
        }
    }
}
