//! Receivers that tell a sender the address of a posted receive before its message is announced. Runs on the simulated
//! driver, or on a real one.
#![cfg(feature = "cuda")]

mod common;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cableway_btl::Flags;
use cableway_common_cuda::{BufferKind, Devices};
use cableway_pml::{Buffer, Error, Outcome, Request, SendMode};

use common::memory::Memory;
use common::{ANY_, Link, Ranks, pattern};
use test_nodes::devices;

const ALL: Flags = Flags::GET.union(Flags::PUT).union(Flags::DEVICE_GET).union(Flags::DEVICE_PUT).union(Flags::OFFER);
const ROOM: usize = 20_000;

/// A link whose senders store.
fn link() -> Link {
    Link::new("net", ALL | Flags::DEVICE_TO_DEVICE).with(|link| {
        link.capabilities.device_min_rdma_size = 1;
        (link.asynchronous, link.push) = (true, true);
    })
}

/// Two ranks, of which the second knows that the first stores. One pair at a time: the process has one default stream.
struct Pair {
    _alone: MutexGuard<'static, ()>,
    devices: Devices,
    ranks: Ranks,
}

impl Pair {
    fn new(link: Link) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = devices();
        let ranks = Ranks::on(&devices, 2, &[link], &[("device_invitations", "yes")], false);
        let pair = Pair { _alone, devices, ranks };
        let (mut source, mut target) = (pair.memory(&pattern(100, 1)), pair.memory(&[0; 100]));
        let (send, receive) = (Request::new(), Request::new());
        pair.send(&mut source, 100, 1, &send);
        pair.receive(&mut target, (0, 1), &receive);
        pair.ranks.finish(&[&send, &receive]);
        assert_eq!(pair.invitations(), 0, "nothing was known of the sender");
        pair
    }

    fn memory(&self, content: &[u8]) -> Memory {
        Memory::new(&self.devices, Some(BufferKind::Device), content)
    }

    fn send(&self, from: &mut Memory, len: usize, tag: i32, request: &Request) {
        let buffer = Buffer::bytes(from.address(), len as u64);
        let (engine, world) = (&self.ranks.engines[0], &self.ranks.world[0]);
        // SAFETY: tests keep memory and request until the message is received.
        let outcome = unsafe { engine.isend(world, 1, tag, buffer, &SendMode::Standard, request) }.unwrap();
        assert_eq!(outcome, Outcome::Started);
    }

    /// From a rank, with a tag; all of the memory. The default stream is idle: nobody is invited before.
    fn receive(&self, to: &mut Memory, (source, tag): (i32, i32), request: &Request) {
        let len = match to {
            Memory::Host(bytes) => bytes.len(),
            Memory::Device(buffer) => buffer.len(),
        };
        let at = self.devices.classify(to.address(), len);
        while !self.devices.ask_default_stream(&at).unwrap() {}
        let buffer = Buffer::bytes(to.address(), len as u64);
        // SAFETY: as above.
        unsafe { self.ranks.engines[1].irecv(&self.ranks.world[1], source, tag, buffer, request) }.unwrap();
    }

    fn invitations(&self) -> u64 {
        self.ranks.counter(1, "invitations")
    }

    fn nothing_is_left(&self) {
        self.ranks.settle();
        let net = &self.ranks.net;
        assert_eq!((net.offers(), net.registered(), net.fragments()), (0, 0, 0));
        assert_eq!(self.ranks.counter(0, "malformed") + self.ranks.counter(1, "malformed"), 0);
    }
}

/// Whichever comes first, the announcement or the invitation; the sender has looked at neither, or at once.
#[test]
fn whoever_is_first_the_sender_stores_where_it_was_told() {
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

/// An announcement that is answered beforehand costs the receiver no message.
#[test]
fn what_was_told_is_not_answered() {
    let pair = Pair::new(link());
    let (mut source, mut target) = (pair.memory(&[7; 8]), pair.memory(&[0; 8]));
    let before = pair.ranks.net.carried(0);
    let (send, receive) = (Request::new(), Request::new());
    pair.receive(&mut target, (0, 5), &receive);
    pair.send(&mut source, 8, 5, &send);
    pair.ranks.finish(&[&send, &receive]);
    assert_eq!(pair.ranks.net.carried(0) - before, 3, "invitation, announcement, report");
    pair.nothing_is_left();
}

/// Only where it is known that the next message goes there; and what does not fit goes as it would have.
#[test]
fn only_who_is_sure_of_the_message_invites() {
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
        // What was told last stands until something else is.
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
    // Another tag than the one that was told of comes first.
    assert_eq!(carried(&[(0, 4), (0, 5), (0, 6)], &[6, 5, 4], 3), [4, 5, 6]);
}

/// Host memory, and more than there is room for.
#[test]
fn what_is_not_to_be_stored_there_comes_as_ever() {
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
    assert!(matches!(receive.result(), Err(Error::Truncated { sent: 100, room: 99, .. })));
    assert_eq!(target.read(99), data[..99]);
    assert_eq!(pair.invitations(), 3);
    pair.nothing_is_left();
}

/// A request that was posted once, and is used again for a message that is here already: what was told of its receive is
/// no answer to that message.
#[test]
fn a_request_used_again_is_another_receive() {
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
    // The next one takes the old invitation back.
    pair.receive(&mut first, (0, 1), &receive);
    pair.send(&mut source, 50, 1, &send);
    pair.ranks.finish(&[&receive, &send]);
    assert_eq!(first.read(50), [7; 50]);
    pair.nothing_is_left();
}

/// While one thread posts, another matches.
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

#[test]
fn a_cancelled_receive_is_written_by_nobody() {
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
    // Too late: the sender has begun.
    let (mut source, mut target) = (pair.memory(&[7; 8]), pair.memory(&[0; 8]));
    let (send, receive) = (Request::new(), Request::new());
    pair.receive(&mut target, (0, 5), &receive);
    pair.send(&mut source, 8, 5, &send);
    pair.ranks.engines[0].progress();
    // SAFETY: as above.
    assert!(!unsafe { pair.ranks.engines[1].cancel(&receive) });
    // SAFETY: as above.
    assert!(!unsafe { pair.ranks.engines[1].cancel(&receive) }, "asked again");
    pair.ranks.finish(&[&send, &receive]);
    assert!(!receive.result().unwrap().cancelled);
    assert_eq!(target.read(8), [7; 8]);
    pair.nothing_is_left();
}

#[test]
fn a_communicator_goes_with_its_invitations() {
    for sends in [false, true] {
        let pair = Pair::new(link());
        let (mut source, mut target) = (pair.memory(&[7; 8]), pair.memory(&[0; 8]));
        let (send, receive) = (Request::new(), Request::new());
        pair.receive(&mut target, (0, 5), &receive);
        if sends {
            // It has been told, and stores.
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
fn a_peer_that_dies_leaves_nothing_of_them() {
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

/// Links that are busy take invitations late, and memory that cannot be reached after all comes through the host.
#[test]
fn what_cannot_be_stored_at_once_comes_later_or_otherwise() {
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

/// Of a window the first receive gets no copy of its own, once it is known for one.
#[test]
fn windows_are_left_together() {
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
    // After 1, and after 64, 128 and 256 messages more.
    assert_eq!(pair.invitations(), 4);
    // One by one again, they come to pay.
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

/// Both ranks send and receive at once, in both directions and in windows, whichever way each message goes.
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
            // Every other message goes back. A tag each, for they are posted in any order.
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
                    // Every other round the sender is told at once, if it is to be; else maybe later, or not.
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
