//! Invitations: a receiver exposes the buffer of a posted receive before its message is announced. Runs on the
//! simulated driver, or on a real one.
#![cfg(feature = "cuda")]

mod common;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use cableway_pml::{Buffer, Error, Outcome, Request, SendMode};

use common::memory::Memory;
use common::pair::{Pair, ROOM, link};
use common::{ANY_, pattern};

/// Checks both orders of announcement and invitation, and senders that handle them at once or later.
#[test]
fn the_sender_stores_whether_announcement_or_invitation_is_first() {
    let pair = Pair::new(link());
    let data = pattern(ROOM, 3);
    let mut given = 0;
    for (sends_first, looks, len) in
        [1, 8, 1000, ROOM].into_iter().flat_map(|len| [(false, true, len), (false, false, len), (true, false, len)])
    {
        let (mut source, mut target) = (pair.memory(&data[..len]), pair.memory(&[0xee; ROOM]));
        let (send, receive) = (Request::new(), Request::new());
        if sends_first {
            pair.send(&mut source, len, 5, &send);
        }
        pair.receive(&mut target, (0, 5), &receive);
        if looks {
            pair.ranks.engines[0].progress();
        }
        if !sends_first {
            pair.send(&mut source, len, 5, &send);
        }
        pair.ranks.finish(&[&send, &receive]);
        let status = receive.result().unwrap();
        assert_eq!((status.source, status.tag, status.len), (0, 5, len as u64));
        let bytes = target.read(ROOM);
        assert!(bytes[..len] == data[..len] && bytes[len..].iter().all(|&byte| byte == 0xee));
        given += 1;
        assert_eq!(pair.invitations(), given);
    }
    assert_eq!(pair.ranks.counter(0, "device_copies") + pair.ranks.counter(1, "device_copies"), 0);
    pair.nothing_is_left();
}

/// Checks that the receiver sends no answer to an announcement that it has invited.
#[test]
fn an_invited_announcement_needs_no_answer() {
    let pair = Pair::new(link());
    let (mut source, mut target) = (pair.memory(&[7; 8]), pair.memory(&[0; 8]));
    let before = pair.ranks.net.carried(0);
    let (send, receive) = (Request::new(), Request::new());
    pair.receive(&mut target, (0, 5), &receive);
    pair.send(&mut source, 8, 5, &send);
    pair.ranks.finish(&[&send, &receive]);
    assert_eq!(pair.ranks.net.carried(0) - before, 3, "invitation, announcement, FIN");
    pair.nothing_is_left();
}

/// Checks that only a receive whose next message is certain invites, and that other messages arrive without invitation.
#[test]
fn only_receives_certain_of_their_message_invite() {
    let carried = |pattern: &[(i32, i32)], tags: &[i32], invited: u64| {
        let pair = Pair::new(link());
        let mut sources: Vec<Memory> = tags.iter().map(|&tag| pair.memory(&[tag as u8; 50])).collect();
        let mut targets: Vec<Memory> = pattern.iter().map(|_| pair.memory(&[0; 100])).collect();
        let requests: Vec<Request> = (0..2 * tags.len()).map(|_| Request::new()).collect();
        let (sends, receives) = requests.split_at(tags.len());
        for ((target, &pattern), request) in targets.iter_mut().zip(pattern).zip(receives) {
            pair.receive(target, pattern, request);
        }
        for ((source, &tag), request) in sources.iter_mut().zip(tags).zip(sends) {
            pair.send(source, 50, tag, request);
        }
        pair.ranks.finish(&requests.iter().collect::<Vec<_>>());
        for (target, request) in targets.iter().zip(receives) {
            let status = request.result().unwrap();
            assert_eq!(target.read(50), [status.tag as u8; 50]);
        }
        assert_eq!(pair.invitations(), invited, "{pattern:?}");
        // The last invitation stays open until the next one.
        let (mut source, mut target) = (pair.memory(&[9; 8]), pair.memory(&[0; 8]));
        let (send, receive) = (Request::new(), Request::new());
        pair.receive(&mut target, (0, 4), &receive);
        pair.send(&mut source, 8, 4, &send);
        pair.ranks.finish(&[&send, &receive]);
        assert_eq!(target.read(8), [9; 8]);
        pair.nothing_is_left();
        receives.iter().map(|request| request.result().unwrap().tag).collect::<Vec<i32>>()
    };
    assert_eq!(carried(&[(0, 4)], &[4], 1), [4]);
    assert_eq!(carried(&[(0, ANY_)], &[4], 1), [4]);
    assert_eq!(carried(&[(ANY_, 4)], &[4], 0), [4]);
    assert_eq!(carried(&[(0, 4), (0, 4)], &[4, 4], 1), [4, 4]);
    assert_eq!(carried(&[(0, 4), (0, 5)], &[5, 4], 2), [4, 5]);
    assert_eq!(carried(&[(0, 4), (0, ANY_)], &[5, 4], 1), [4, 5]);
    assert_eq!(carried(&[(0, ANY_), (0, 4)], &[5, 4], 1), [5, 4]);
    assert_eq!(carried(&[(ANY_, 4), (0, 4)], &[4, 4], 0), [4, 4]);
    // A message with another tag than the invited one arrives first.
    assert_eq!(carried(&[(0, 4), (0, 5), (0, 6)], &[6, 5, 4], 3), [4, 5, 6]);
}

/// Checks messages from host memory, and messages longer than the buffer.
#[test]
fn messages_that_do_not_fit_the_invitation_arrive_without_it() {
    let pair = Pair::new(link());
    let data = pattern(100, 9);
    for len in [10, ROOM + 1] {
        let mut host = Memory::Host(pattern(len, 2));
        let mut target = pair.memory(&[0; 100]);
        let (send, receive) = (Request::new(), Request::new());
        pair.receive(&mut target, (0, 5), &receive);
        let buffer = Buffer::bytes(host.address(), len as u64);
        let (engine, world) = (&pair.ranks.engines[0], &pair.ranks.world[0]);
        // SAFETY: memory and request live until all is done.
        let outcome = unsafe { engine.isend(world, 1, 5, buffer, &SendMode::Standard, &send) }.unwrap();
        pair.ranks.finish(&[&receive]);
        if outcome == Outcome::Started {
            pair.ranks.finish(&[&send]);
        }
        assert_eq!(receive.result().is_ok(), len <= 100);
        assert_eq!(target.read(len.min(100)), pattern(len, 2)[..len.min(100)]);
    }
    let (mut source, mut target) = (pair.memory(&data), pair.memory(&[0; 99]));
    let (send, receive) = (Request::new(), Request::new());
    pair.receive(&mut target, (0, 5), &receive);
    pair.send(&mut source, 100, 5, &send);
    pair.ranks.finish(&[&send, &receive]);
    assert!(matches!(receive.result(), Err(Error::Truncated { sent: 100, capacity: 99, .. })));
    assert_eq!(target.read(99), data[..99]);
    assert_eq!(pair.invitations(), 3);
    pair.nothing_is_left();
}

/// Checks a request that is reused for an unexpected message: the invitation for the earlier receive is no answer to
/// that message.
#[test]
fn an_invitation_does_not_apply_to_a_reused_request() {
    let pair = Pair::new(link());
    let (mut source, mut host) = (pair.memory(&[7; 50]), Memory::Host(vec![9; 10]));
    let (mut first, mut second) = (pair.memory(&[0; 100]), pair.memory(&[0; 100]));
    let (send, host_send, receive) = (Request::new(), Request::new(), Request::new());
    pair.receive(&mut first, (0, 1), &receive);
    assert_eq!(pair.invitations(), 1);
    pair.send(&mut source, 50, 2, &send);
    let buffer = Buffer::bytes(host.address(), 10);
    let (engine, world) = (&pair.ranks.engines[0], &pair.ranks.world[0]);
    // SAFETY: memory and request live until all is done.
    let outcome = unsafe { engine.isend(world, 1, 1, buffer, &SendMode::Standard, &host_send) }.unwrap();
    assert_eq!(outcome, Outcome::Complete);
    pair.ranks.finish(&[&receive]);
    assert_eq!((receive.result().unwrap().tag, first.read(10)), (1, vec![9; 10]));
    pair.receive(&mut second, (0, 2), &receive);
    pair.ranks.finish(&[&receive, &send]);
    assert_eq!((second.read(50), first.read(100)[10..].to_vec()), (vec![7; 50], vec![0; 90]));
    // The next receive withdraws the old invitation.
    pair.receive(&mut first, (0, 1), &receive);
    pair.send(&mut source, 50, 1, &send);
    pair.ranks.finish(&[&receive, &send]);
    assert_eq!(first.read(50), [7; 50]);
    pair.nothing_is_left();
}

/// Checks a thread that posts receives while another thread matches them.
#[test]
fn threads_post_and_match_at_once() {
    const COUNT: u8 = 200;
    let pair = Pair::new(link());
    let (ranks, over) = (&pair.ranks, AtomicBool::new(false));
    let (mut source, mut target) = (pair.memory(&[0; 256]), pair.memory(&[0; 256]));
    let (from, to) = (source.address() as usize, target.address() as usize);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                ranks.engines[1].progress();
            }
        });
        scope.spawn(|| {
            let (engine, world) = (&ranks.engines[0], &ranks.world[0]);
            for at in 0..COUNT {
                let buffer = Buffer::bytes((from + usize::from(at)) as *const u8, 1);
                // SAFETY: the memory lives until the threads have ended; the call returns when the message is sent.
                unsafe { engine.send(world, 1, i32::from(at % 3), buffer, &SendMode::Standard) }.unwrap();
            }
        });
        let (engine, world) = (&ranks.engines[1], &ranks.world[1]);
        for at in 0..COUNT {
            let buffer = Buffer::bytes((to + usize::from(at)) as *const u8, 1);
            // SAFETY: as above.
            let status = unsafe { engine.recv(world, 0, i32::from(at % 3), buffer) }.unwrap();
            assert_eq!(status.len, 1);
        }
        over.store(true, Relaxed);
    });
    pair.nothing_is_left();
}
