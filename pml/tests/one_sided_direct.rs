//! One-sided operations that the caller makes without the owner of the memory.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use cableway_btl::Flags;
use cableway_pml::{Error, Refusal, RemoteKey, Request, Signal, SignalUpdate};
use zerocopy::{FromBytes, IntoBytes};

use common::sides::{Sides, Window, memory};
use common::{Link, bytes, pattern};

const RDMA: Flags = Flags::GET.union(Flags::PUT);

/// More than travels with a request.
const LARGE: usize = 100_000;

fn links() -> Vec<Link> {
    let link = Link::new("net", RDMA);
    vec![link, link.with(|link| link.asynchronous = true), {
        link.with(|link| (link.asynchronous, link.busy) = (true, 600))
    }]
}

/// Lets a rank fetch the exposure of a window: its first access asks for it.
fn fetch(sides: &Sides, caller: usize, window: &Window<'_>) {
    let mut room = vec![0; window.key().len() as usize];
    sides.get(caller, &mut room, window.key().at(0)).unwrap();
    sides.ranks.settle();
}

/// Lets only one rank make progress until the request is complete.
fn finish_alone(sides: &Sides, rank: usize, request: &Request) {
    for _ in 0..2_000_000 {
        if request.is_complete() {
            return;
        }
        sides.ranks.engines[rank].progress();
    }
    panic!("the operation waits for its target");
}

#[test]
fn the_owner_takes_no_part() {
    for link in links() {
        let sides = Sides::new(2, &[link]);
        let mut words = memory(300_000);
        let window = sides.register(1, words.as_mut_bytes());
        fetch(&sides, 0, &window);
        assert_eq!(sides.direct(0), 0, "the first access goes by the owner");
        for (round, len) in [8193, 65_536, 100_001, 299_999].into_iter().enumerate() {
            let data = pattern(len, round as u8);
            let put = sides.start_put(0, &data, window.key().at(1), None);
            finish_alone(&sides, 0, &put);
            put.result().unwrap();
            let mut room = vec![0; len];
            let get = sides.start_get(0, &mut room, window.key().at(1), None);
            finish_alone(&sides, 0, &get);
            assert_eq!(get.result().unwrap().len, len as u64);
            assert!(room == data, "{len} bytes");
            assert_eq!(sides.direct(0), 2 * round as u64 + 2);
        }
        sides.sides[0].flush(None);
        let bytes = words.as_bytes();
        assert!(bytes[1..] == pattern(299_999, 3) && bytes[0] == 0);
        drop(window);
    }
}

/// Checks that operations that follow each other do not make a turn each: copies of devices could not start together.
#[test]
fn operations_that_follow_each_other_make_no_turn_each() {
    let sides = Sides::new(2, &[Link::new("net", RDMA).with(|link| link.asynchronous = true)]);
    let mut words = memory(LARGE);
    let window = sides.register(1, words.as_mut_bytes());
    fetch(&sides, 0, &window);
    let data = pattern(LARGE, 1);
    let started: Vec<_> = (0..40).map(|_| sides.start_put(0, &data, window.key().at(0), None)).collect();
    assert_eq!(started.iter().filter(|put| put.is_complete()).count(), 0);
    // A program that starts operations and waits for none progresses nevertheless.
    let more: Vec<_> = (0..40).map(|_| sides.start_put(0, &data, window.key().at(0), None)).collect();
    assert!(started.iter().all(|put| put.is_complete()));
    sides.ranks.finish(&more.iter().map(|put| &**put).collect::<Vec<_>>());
    assert_eq!(sides.direct(0), 80);
    drop(window);
}

#[test]
fn the_signal_of_a_direct_put_follows_its_data() {
    for link in links() {
        let sides = Sides::new(2, &[link]);
        let (mut words, mut counter) = (memory(LARGE), memory(LARGE));
        let window = sides.register(1, words.as_mut_bytes());
        let signals = sides.register(1, counter.as_mut_bytes());
        fetch(&sides, 0, &window);
        for round in 1..=20_u64 {
            let data = pattern(LARGE, round as u8);
            let signal = Signal { at: signals.key().at(8), update: SignalUpdate::Add(1) };
            let put = sides.start_put(0, &data, window.key().at(0), Some(signal));
            // Until the owner makes progress the word does not change.
            for _ in 0..100 {
                sides.ranks.engines[0].progress();
            }
            assert_eq!(signals.load(8).unwrap(), round - 1);
            while signals.load(8).unwrap() != round {
                for engine in &sides.ranks.engines {
                    engine.progress();
                }
            }
            // SAFETY: nothing writes the memory once the signal is there.
            let landed = unsafe { std::slice::from_raw_parts(window.address(), LARGE) };
            assert!(landed == data, "round {round}");
            sides.ranks.finish(&[&put]);
            put.result().unwrap();
        }
        // The first put asked for the memory of the word.
        assert_eq!(sides.direct(0), 19);
    }
}

#[test]
fn a_put_whose_signal_is_wrong_writes_nothing() {
    let sides = Sides::new(2, &[Link::new("net", RDMA)]);
    let (mut words, mut counter) = (memory(LARGE), memory(64));
    let window = sides.register(1, words.as_mut_bytes());
    let signals = sides.register(1, counter.as_mut_bytes());
    fetch(&sides, 0, &window);
    let data = pattern(LARGE, 1);
    let good = Signal { at: signals.key().at(0), update: SignalUpdate::Set(1) };
    sides.put(0, &[], window.key().at(0), Some(good)).unwrap();
    for key in [longer(signals.key()), longer(window.key()), forged(signals.key(), AUTHENTICATOR)] {
        let signal = Signal { at: key.at(1 << 20), update: SignalUpdate::Set(1) };
        for _ in 0..3 {
            let signal = if key.len() > 1 << 20 { signal } else { Signal { at: key.at(0), ..signal } };
            let error = sides.put(0, &data, window.key().at(0), Some(signal)).unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error}");
        }
    }
    drop(window);
    assert!(words.iter().all(|&word| word == 0));
}

#[test]
fn what_a_link_refuses_goes_by_the_owner() {
    let refusing = Link::new("net", RDMA).with(|link| link.refuses = true);
    let unable = Link::new("net", Flags::empty());
    for link in [refusing, unable, Link::new("net", Flags::GET), Link::new("net", Flags::PUT)] {
        let sides = Sides::new(2, &[link]);
        let (mut words, mut counter) = (memory(LARGE), [0_u64]);
        let window = sides.register(1, words.as_mut_bytes());
        let signals = sides.register(1, counter.as_mut_bytes());
        for round in 0..4 {
            let data = pattern(LARGE, round);
            let signal = Signal { at: signals.key().at(0), update: SignalUpdate::Add(1) };
            sides.put(0, &data, window.key().at(0), Some(signal)).unwrap();
            sides.put(0, &data[..50_000], window.key().at(50_000), None).unwrap();
            let mut room = vec![0; LARGE];
            sides.get(0, &mut room, window.key().at(0)).unwrap();
            assert!(room == [&data[..50_000], &data[..50_000]].concat(), "round {round}");
            assert_eq!(signals.load(0).unwrap(), u64::from(round) + 1);
        }
        let able = !link.refuses && link.capabilities.flags.intersects(RDMA);
        assert_eq!(sides.direct(0) > 0, able);
    }
}

const LEN: usize = 8;
const AUTHENTICATOR: usize = 48;

/// Returns the key with one byte changed.
fn forged(key: &RemoteKey, at: usize) -> RemoteKey {
    let mut bytes = [0; size_of::<RemoteKey>()];
    bytes.copy_from_slice(key.as_bytes());
    bytes[at] ^= 0x10;
    RemoteKey::read_from_bytes(&bytes).unwrap()
}

/// Returns the key with a length that the owner did not register.
fn longer(key: &RemoteKey) -> RemoteKey {
    forged(key, LEN + 3)
}

#[test]
fn wrong_and_stale_keys_reach_nothing() {
    let sides = Sides::new(2, &[Link::new("net", RDMA)]);
    let (mut words, mut later) = (memory(LARGE), memory(LARGE));
    let window = sides.register(1, words.as_mut_bytes());
    let key = *window.key();
    let data = pattern(LARGE, 1);
    let refused = |result: Result<(), Error>| match result {
        Err(Error::Refused { peer: 1, refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    };
    // Before this process holds the exposure, and while it does.
    for round in 0..2 {
        for _ in 0..3 {
            assert_eq!(refused(sides.put(0, &data, forged(&key, AUTHENTICATOR).at(0), None)), Refusal::UnknownKey);
            assert_eq!(refused(sides.put(0, &data, longer(&key).at(8), None)), Refusal::OutOfRange);
            assert_eq!(refused(sides.get(0, &mut vec![0; LARGE], longer(&key).at(8))), Refusal::OutOfRange);
        }
        assert_eq!(sides.direct(0), 2 * round);
        // The key with a wrong length has asked for the exposure.
        fetch(&sides, 0, &window);
        fetch(&sides, 0, &window);
    }
    drop(window);
    assert!(words.iter().all(|&word| word == 0));
    for _ in 0..2 {
        assert_eq!(refused(sides.put(0, &data, key.at(0), None)), Refusal::Deregistered);
        // The same place in the owner's table.
        let next = sides.register(1, later.as_mut_bytes());
        assert_eq!(refused(sides.put(0, &data, key.at(0), None)), Refusal::Deregistered);
        fetch(&sides, 0, &next);
        assert_eq!(refused(sides.put(0, &data, key.at(0), None)), Refusal::Deregistered);
        drop(next);
        assert!(words.iter().chain(&later).all(|&word| word == 0));
    }
}

#[test]
fn the_end_of_a_registration_waits_for_a_direct_put() {
    let sides = Sides::new(2, &[Link::new("net", RDMA).with(|link| link.asynchronous = true)]);
    let mut words = memory(LARGE);
    let window = sides.register(1, words.as_mut_bytes());
    fetch(&sides, 0, &window);
    let (key, data, ended) = (*window.key(), pattern(LARGE, 9), AtomicBool::new(false));
    // Its bytes move when rank 0 makes progress.
    let put = sides.start_put(0, &data, key.at(0), None);
    let landed = std::thread::scope(|scope| {
        let ending = scope.spawn(|| {
            window.end();
            ended.store(true, Ordering::Release);
            // SAFETY: nothing writes the memory any more.
            unsafe { std::slice::from_raw_parts(window.address(), LARGE) == data }
        });
        // The revocation is on its way.
        while sides.ranks.net.in_flight() == 0 {
            std::thread::yield_now();
        }
        assert!(!ended.load(Ordering::Acquire));
        while !ended.load(Ordering::Acquire) {
            sides.ranks.engines[0].progress();
        }
        ending.join().unwrap()
    });
    assert!(landed, "the end waits for the put");
    put.result().unwrap();
    assert_eq!(sides.direct(0), 1);
    drop(window);
    words.fill(0);
    let error = sides.put(0, &data, key.at(0), None).unwrap_err();
    assert!(matches!(error, Error::Refused { refusal: Refusal::Deregistered, .. }), "{error}");
    assert!(words.iter().all(|&word| word == 0));
}

#[test]
fn nothing_is_written_after_the_end_of_a_registration_under_fire() {
    for link in links() {
        let sides = Sides::new(2, &[link]);
        for round in 0..20 {
            let mut words = memory(LARGE);
            let window = sides.register(1, words.as_mut_bytes());
            let (key, fired, ended) = (*window.key(), AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let firing = scope.spawn(|| {
                    let data = pattern(LARGE, round);
                    let engine = &sides.ranks.engines[0];
                    loop {
                        let puts: Vec<_> = (0..4).map(|_| sides.start_put(0, &data, key.at(0), None)).collect();
                        engine.wait(&puts.iter().map(|put| &**put).collect::<Vec<_>>());
                        let failed = puts.iter().find_map(|put| put.result().err());
                        fired.fetch_or(sides.direct(0) > 0, Ordering::AcqRel);
                        match failed {
                            None => {}
                            Some(Error::Refused { refusal: Refusal::Deregistered, .. }) => break,
                            Some(error) => panic!("{error}"),
                        }
                    }
                    // The owner waits until this rank has released the memory.
                    while !ended.load(Ordering::Acquire) {
                        engine.progress();
                    }
                });
                // Some puts went directly.
                while !fired.load(Ordering::Acquire) && !firing.is_finished() {
                    sides.ranks.engines[1].progress();
                }
                window.end();
                ended.store(true, Ordering::Release);
                // SAFETY: the memory lives; nothing writes it any more.
                unsafe { window.address().write_bytes(0x77, LARGE) };
                while !firing.is_finished() {
                    sides.ranks.engines[1].progress();
                }
                firing.join().unwrap();
            });
            drop(window);
            assert!(words.as_bytes()[..LARGE].iter().all(|&byte| byte == 0x77), "round {round}");
        }
        assert!(sides.direct(0) > 0);
    }
}

#[test]
fn the_end_of_a_registration_does_not_wait_for_the_dead_or_for_those_who_closed() {
    let sides = Sides::new(3, &[Link::new("net", RDMA)]);
    let (mut words, mut others) = (memory(LARGE), memory(LARGE));
    let (window, other) = (sides.register(1, words.as_mut_bytes()), sides.register(1, others.as_mut_bytes()));
    for caller in [0, 2] {
        fetch(&sides, caller, &window);
        fetch(&sides, caller, &other);
    }
    // Rank 2 gives everything back.
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| sides.sides[2].close());
        while !closing.is_finished() {
            sides.ranks.engines[1].progress();
        }
    });
    // Rank 0 dies before the revocation reaches it, and after another reached it.
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| window.end());
        while sides.ranks.net.in_flight() == 0 {
            std::thread::yield_now();
        }
        assert!(!ending.is_finished(), "rank 0 has not released it");
        sides.ranks.net.kill(0);
    });
    other.end();
    drop((window, other));
    assert_eq!(sides.ranks.net.registered(), 0);
}

#[test]
fn a_direct_put_fails_when_its_target_dies() {
    let late = Link::new("net", RDMA).with(|link| link.asynchronous = true);
    let sides = Sides::new(2, &[late.with(|link| link.capabilities.put_limit = 1000)]);
    let mut words = memory(1 << 20);
    let window = sides.register(1, words.as_mut_bytes());
    fetch(&sides, 0, &window);
    // More pieces than are under way at a time.
    let data = pattern(1 << 20, 1);
    let put = sides.start_put(0, &data, window.key().at(0), None);
    sides.sides[0].fence(None);
    let held = sides.start_put(0, &data, window.key().at(0), None);
    sides.ranks.net.kill(1);
    sides.ranks.engines[0].wait(&[&put, &held]);
    for request in [&put, &held] {
        assert!(matches!(request.result(), Err(Error::PeerFailed { peer: 1, .. })), "{:?}", request.result());
    }
    let late = Request::new();
    // SAFETY: it is not started.
    let error = unsafe { sides.sides[0].put(bytes(&data), window.key().at(0), None, &late) };
    assert!(matches!(error, Err(Error::PeerFailed { peer: 1, .. })), "{error:?}");
    // In this process the dead rank still ends its registration, so it learns that nobody is left.
    sides.ranks.net.kill(0);
    drop(window);
}

#[test]
fn threads_put_at_the_same_time() {
    const THREADS: usize = 10;
    for link in links() {
        let sides = Sides::new(2, &[link]);
        let mut words = memory(THREADS * LARGE);
        let window = sides.register(1, words.as_mut_bytes());
        fetch(&sides, 0, &window);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (sides, key) = (&sides, *window.key());
                scope.spawn(move || {
                    for round in 0..30 {
                        let data = pattern(LARGE, round ^ thread as u8);
                        let at = key.at((thread * LARGE) as u64);
                        let put = sides.start_put(0, &data, at, None);
                        sides.ranks.engines[0].wait(&[&put]);
                        put.result().unwrap();
                        let mut room = vec![0; LARGE];
                        let get = sides.start_get(0, &mut room, at, None);
                        sides.ranks.engines[0].wait(&[&get]);
                        get.result().unwrap();
                        assert!(room == data, "thread {thread}, round {round}");
                    }
                });
            }
        });
        assert_eq!(sides.direct(0), 2 * 30 * THREADS as u64);
        drop(window);
        for (thread, part) in words.as_bytes()[..THREADS * LARGE].chunks(LARGE).enumerate() {
            assert!(part == pattern(LARGE, 29 ^ thread as u8), "thread {thread}");
        }
    }
}
