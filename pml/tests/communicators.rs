//! Communicators keep their messages apart, also when a context is reused.

mod common;

use cableway_btl::Flags;
use cableway_pml::{Abort, Buffer, Error, FastPath, Outcome, Request, SendMode};

use common::{ANY_, Link, Ranks, bytes, pattern, space};

fn two() -> Ranks {
    Ranks::new(2, &[Link::new("net", Flags::GET)])
}

/// One size for each protocol: inline, eager, rendezvous by fragments, rendezvous by GET.
const WAYS: [usize; 4] = [8, 3000, 6000, 100_000];

#[test]
fn communicators_keep_their_messages_apart() {
    let ranks = two();
    let contexts = [7, 5000];
    let extra: Vec<_> = contexts
        .iter()
        .map(|&context| {
            [0, 1].map(|rank| ranks.engines[rank].add_communicator(context, vec![1, 0], 1 - rank as u32).unwrap())
        })
        .collect();
    assert!(matches!(ranks.engines[0].add_communicator(7, vec![0], 0), Err(Error::ContextInUse { context: 7 })));
    assert!(matches!(ranks.engines[0].add_communicator(8, vec![9], 0), Err(Error::NoSuchRank { rank: 9, size: 2 })));
    let mut received = [0; 1];
    for (value, pair) in (1u8..).zip(&extra) {
        // Rank 0 there is process 1.
        // SAFETY: the buffer is read during the call.
        assert!(unsafe { ranks.engines[0].send_now(&pair[0], 0, 1, bytes(&[value])) }.unwrap() == FastPath::Sent);
    }
    assert!(ranks.isend(0, 1, 1, &[9], &SendMode::Standard).is_complete());
    assert_eq!(ranks.recv(1, ANY_, ANY_, &mut received).unwrap().source, 0);
    assert_eq!(received, [9]);
    for (value, pair) in (1u8..=2).zip(&extra).rev() {
        // SAFETY: the buffer is valid.
        let status = unsafe { ranks.engines[1].recv(&pair[1], ANY_, ANY_, space(&mut received)) }.unwrap();
        assert_eq!((status.source, received[0]), (1, value));
    }
}

#[test]
fn messages_wait_for_their_communicator() {
    let ranks = two();
    let here = ranks.engines[0].add_communicator(9, vec![0, 1], 0).unwrap();
    let data: Vec<Vec<u8>> = WAYS.iter().map(|&len| pattern(len, 4)).collect();
    let requests: Vec<Request> = data.iter().map(|_| Request::new()).collect();
    let mut started = vec![];
    for (data, request) in data.iter().zip(&requests) {
        // SAFETY: buffers and requests live until complete.
        let outcome = unsafe { ranks.engines[0].isend(&here, 1, 1, bytes(data), &SendMode::Standard, request) };
        started.extend((outcome.unwrap() == Outcome::Started).then_some(request));
    }
    ranks.settle();
    let there = ranks.engines[1].add_communicator(9, vec![0, 1], 1).unwrap();
    for data in &data {
        let mut received = vec![0; data.len()];
        let receive = Request::new();
        // SAFETY: buffer and request live until complete.
        unsafe { ranks.engines[1].irecv(&there, 0, ANY_, space(&mut received), &receive) }.unwrap();
        ranks.finish(&[&receive]);
        assert!(receive.status().len == data.len() as u64 && received == *data);
    }
    ranks.finish(&started);
}

#[test]
fn a_peer_with_too_many_early_messages_is_disconnected() {
    let ranks = Ranks::with(2, &[Link::new("net", Flags::GET)], &[("pml_early_messages", "10")], false);
    let here = ranks.engines[0].add_communicator(9, vec![0, 1], 0).unwrap();
    for _ in 0..11 {
        // SAFETY: no buffer.
        assert!(unsafe { ranks.engines[0].send_now(&here, 1, 1, Buffer::EMPTY) }.unwrap() == FastPath::Sent);
    }
    ranks.settle();
    assert_eq!(ranks.counter(1, "malformed"), 1);
}

#[test]
fn a_context_can_be_reused_while_old_messages_arrive() {
    let ranks = two();
    let group = || vec![0, 1];
    let old = [0, 1].map(|rank| ranks.engines[rank].add_communicator(3, group(), rank as u32).unwrap());
    // No receive matches these: a small message, one that waits for a GET, and one that is on the wire until the end.
    let data = pattern(100_000, 1);
    let (lost, late) = (Request::new(), Request::new());
    // SAFETY: buffers and requests live until complete.
    unsafe {
        assert!(ranks.engines[0].send_now(&old[0], 1, 1, bytes(&data[..8])).unwrap() == FastPath::Sent);
        let send = |request| ranks.engines[0].isend(&old[0], 1, 1, bytes(&data), &SendMode::Standard, request).unwrap();
        assert_eq!(send(&lost), Outcome::Started);
        ranks.settle();
        assert_eq!(send(&late), Outcome::Started);
    }
    // A receive that is still posted fails.
    let mut received = [0; 8];
    let posted = Request::new();
    // SAFETY: buffer and request live until complete.
    unsafe { ranks.engines[1].irecv(&old[1], 0, 77, space(&mut received), &posted) }.unwrap();
    for (engine, communicator) in ranks.engines.iter().zip(&old) {
        engine.remove_communicator(communicator);
    }
    assert!(matches!(posted.error(), Some(Error::CommunicatorRemoved { context: 3 })));
    let new = [0, 1].map(|rank| ranks.engines[rank].add_communicator(3, group(), rank as u32).unwrap());
    // SAFETY: the buffer is valid.
    unsafe {
        assert!(ranks.engines[0].send_now(&new[0], 1, 1, bytes(&[42])).unwrap() == FastPath::Sent);
        ranks.settle();
        let status = ranks.engines[1].recv(&new[1], ANY_, ANY_, space(&mut received)).unwrap();
        assert_eq!((status.len, received[0]), (1, 42), "not a message of the old communicator");
    }
    ranks.finish(&[&lost, &late]);
    for request in [&lost, &late] {
        assert!(matches!(request.error(), Some(Error::PeerAborted { reason: Abort::CommunicatorRemoved, .. })));
    }
    // SAFETY: no buffer.
    let refused = unsafe { ranks.engines[1].irecv(&old[1], 0, 1, Buffer::EMPTY, &posted) };
    assert!(matches!(refused, Err(Error::CommunicatorRemoved { .. })));
    assert_eq!(ranks.net.registered(), 0);
}

#[test]
fn a_context_can_be_reused_with_other_members() {
    for len in WAYS {
        let ranks = Ranks::new(3, &[Link::new("net", Flags::GET)]);
        let add = |rank: usize, group: &[u32]| {
            let own = group.iter().position(|&process| process as usize == rank).unwrap() as u32;
            ranks.engines[rank].add_communicator(3, group.to_vec(), own).unwrap()
        };
        let old = [add(0, &[0, 1]), add(1, &[0, 1])];
        // Rank 0 frees it and uses its context with rank 2. Rank 1 has not freed it yet, and sends.
        ranks.engines[0].remove_communicator(&old[0]);
        let other = [add(0, &[0, 2]), add(2, &[0, 2])];
        let data = pattern(len, 1);
        let late = Request::new();
        // SAFETY: buffer and request live until complete.
        let sent = unsafe { ranks.engines[1].isend(&old[1], 0, 1, bytes(&data), &SendMode::Standard, &late) }.unwrap();
        ranks.settle();
        assert_eq!(ranks.counter(0, "malformed"), 0, "{len} bytes");
        if sent == Outcome::Started {
            let removed = Some(Error::PeerAborted { peer: 0, len: len as u64, reason: Abort::CommunicatorRemoved });
            assert_eq!(format!("{:?}", late.error()), format!("{:?}", removed.as_ref()));
        }
        // The late message matched no receive, and all ranks still exchange messages.
        assert_eq!(ranks.engines[0].iprobe(&other[0], ANY_, ANY_).unwrap(), None);
        ranks.isend(1, 0, 1, &[8], &SendMode::Standard).finish(&ranks);
        let mut received = [0];
        assert_eq!(ranks.recv(0, 1, 1, &mut received).unwrap().source, 1);
        // SAFETY: the buffers are valid.
        unsafe {
            assert!(ranks.engines[2].send_now(&other[1], 0, 1, bytes(&[9])).unwrap() == FastPath::Sent);
            assert_eq!(ranks.engines[0].recv(&other[0], ANY_, 1, space(&mut received)).unwrap().source, 1);
        }
        assert_eq!(received, [9]);
    }
}

#[test]
fn a_message_waits_for_a_later_communicator_with_its_sender() {
    let ranks = Ranks::new(3, &[Link::new("net", Flags::GET)]);
    let held = ranks.engines[0].add_communicator(3, vec![0, 2], 0).unwrap();
    // Rank 1 has already created the next communicator, of ranks 0 and 1.
    let ahead = ranks.engines[1].add_communicator(3, vec![0, 1], 1).unwrap();
    // SAFETY: the buffer is read during the call.
    assert!(unsafe { ranks.engines[1].send_now(&ahead, 0, 1, bytes(&[5])) }.unwrap() == FastPath::Sent);
    ranks.settle();
    assert_eq!(ranks.engines[0].iprobe(&held, ANY_, ANY_).unwrap(), None);
    ranks.engines[0].remove_communicator(&held);
    let new = ranks.engines[0].add_communicator(3, vec![0, 1], 0).unwrap();
    let mut received = [0; 1];
    // SAFETY: the buffer is valid.
    unsafe { ranks.engines[0].recv(&new, 1, 1, space(&mut received)) }.unwrap();
    assert_eq!(received, [5]);
}

#[test]
fn a_new_communicators_messages_do_not_reach_an_old_one() {
    let ranks = two();
    let old = [0, 1].map(|rank| ranks.engines[rank].add_communicator(3, vec![0, 1], rank as u32).unwrap());
    // Rank 0 has already freed the context and reused it.
    ranks.engines[0].remove_communicator(&old[0]);
    let ahead = ranks.engines[0].add_communicator(3, vec![0, 1], 0).unwrap();
    // SAFETY: the buffer is read during the call.
    assert!(unsafe { ranks.engines[0].send_now(&ahead, 1, 1, bytes(&[5])) }.unwrap() == FastPath::Sent);
    ranks.settle();
    assert_eq!(ranks.engines[1].iprobe(&old[1], ANY_, ANY_).unwrap(), None);
    ranks.engines[1].remove_communicator(&old[1]);
    let new = ranks.engines[1].add_communicator(3, vec![0, 1], 1).unwrap();
    let mut received = [0; 1];
    // SAFETY: the buffer is valid.
    unsafe { ranks.engines[1].recv(&new, 0, 1, space(&mut received)) }.unwrap();
    assert_eq!(received, [5]);
}

#[test]
fn messages_of_joint_operations_are_refused_after_a_death() {
    for early in [false, true] {
        let ranks = Ranks::new(3, &[Link::new("net", Flags::GET)]);
        let world = [0, 1].map(|rank| ranks.engines[rank].add_communicator(7, vec![0, 1, 2], rank as u32).unwrap());
        ranks.engines[1].set_joint_tags(&world[1], -200..=-100);
        let data = pattern(100_000, 1);
        let send = |tag: i32| {
            let request = Box::new(Request::new());
            // SAFETY: buffers and requests live until complete.
            let sent = unsafe {
                ranks.engines[0].isend(&world[0], 1, tag, bytes(&data), &SendMode::Standard, &raw const *request)
            };
            assert_eq!(sent.unwrap(), Outcome::Started);
            request
        };
        // A message to rank 2 makes its peers notice the death.
        ranks.isend(1, 2, 1, &[1], &SendMode::Standard).finish(&ranks);
        let receive = Request::new();
        let mut received = vec![0; data.len()];
        // SAFETY: buffer and request live until complete.
        unsafe { ranks.engines[1].irecv(&world[1], 0, -150, space(&mut received), &receive) }.unwrap();
        let others = |kept: &mut Vec<Box<Request>>| kept.extend([-201, -99].map(send));
        let (mut kept, mut refused) = (Vec::new(), Vec::new());
        if early {
            others(&mut kept);
            refused.extend([-200, -100].map(send));
            ranks.settle();
        }
        ranks.net.kill(2);
        ranks.settle();
        assert!(ranks.engines[1].check_members(&world[1]).is_err());
        if !early {
            others(&mut kept);
            refused.extend([-200, -100].map(send));
        }
        ranks.finish(&refused.iter().map(|request| &**request).collect::<Vec<_>>());
        for request in &refused {
            let reason = request.error();
            assert!(matches!(reason, Some(Error::PeerAborted { reason: Abort::MemberFailed(2), .. })), "{reason:?}");
        }
        // A message that has come whole is received as ever.
        let mut small = [0];
        // SAFETY: the buffers are valid.
        unsafe {
            assert!(ranks.engines[0].send_now(&world[0], 1, -170, bytes(&[7])).unwrap() == FastPath::Sent);
            assert_eq!(ranks.engines[1].recv(&world[1], 0, -170, space(&mut small)).unwrap().len, 1);
        }
        // A posted receive still gets its message, and other tags wait as ever.
        let matched = send(-150);
        ranks.finish(&[&receive, &matched]);
        assert!(matched.error().is_none() && received == data);
        for (tag, request) in [-201, -99].into_iter().zip(&kept) {
            assert!(!request.is_complete());
            let mut received = vec![0; data.len()];
            let receive = Request::new();
            // SAFETY: buffer and request live until complete.
            unsafe { ranks.engines[1].irecv(&world[1], 0, tag, space(&mut received), &receive) }.unwrap();
            ranks.finish(&[&receive, request]);
            assert!(received == data);
        }
    }
}

#[test]
fn a_rank_that_is_told_of_a_failure_acts_as_if_it_knew() {
    let ranks = two();
    let world = [0, 1].map(|rank| ranks.engines[rank].add_communicator(7, vec![0, 1], rank as u32).unwrap());
    ranks.engines[1].set_joint_tags(&world[1], -200..=-100);
    let data = pattern(100_000, 1);
    let waiting = Request::new();
    // SAFETY: buffer and request live until complete.
    let sent = unsafe { ranks.engines[0].isend(&world[0], 1, -150, bytes(&data), &SendMode::Standard, &waiting) };
    assert_eq!(sent.unwrap(), Outcome::Started);
    ranks.settle();
    assert!(!waiting.is_complete() && ranks.engines[1].check_members(&world[1]).is_ok());
    ranks.engines[1].note_told_of_failure(&world[1], 5);
    ranks.finish(&[&waiting]);
    assert!(matches!(waiting.error(), Some(Error::PeerAborted { reason: Abort::MemberFailed(5), .. })));
    let known = ranks.engines[1].check_members(&world[1]);
    assert!(matches!(known, Err(Error::PeerFailed { peer: 5, .. })), "{known:?}");
}
