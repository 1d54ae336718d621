//! The signals of gets: the owner may write its memory again once it has seen one.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cableway_btl::Flags;
use cableway_pml::{
    ActiveMessages, AtomicOperation, Error, OneSided, Refusal, RemoteKey, Request, Signal, SignalUpdate, Width,
};
use zerocopy::{FromBytes, IntoBytes};

use common::sides::{CONTEXT, Sides, Window, memory};
use common::{Link, Ranks, bytes, pattern, space};

const RDMA: Flags = Flags::GET.union(Flags::PUT);

/// More than travels with an answer.
const LARGE: usize = 100_000;

const SIZES: [usize; 6] = [8, LARGE, 0, 8192, 8193, 65_536];

fn links() -> [Link; 4] {
    let (link, rdma) = (Link::new("net", Flags::empty()), Link::new("net", RDMA));
    let late = rdma.with(|link| link.asynchronous = true);
    [link, rdma, late, late.with(|link| link.busy = 600)]
}

fn add(key: &RemoteKey) -> Option<Signal<'_>> {
    Some(Signal { at: key.at(8), update: SignalUpdate::Add(1) })
}

/// Lets all ranks make progress until the word has a value.
fn wait_for(sides: &Sides, signals: &Window<'_>, value: u64) {
    while signals.load(8).unwrap() != value {
        for engine in &sides.ranks.engines {
            engine.progress();
        }
    }
}

#[test]
fn the_owner_may_write_once_it_has_seen_the_signal() {
    for link in links() {
        let sides = Sides::new(2, &[link]);
        let (mut words, mut counter) = (memory(LARGE), [0_u64; 2]);
        let window = sides.register(1, words.as_mut_bytes());
        let signals = sides.register(1, counter.as_mut_bytes());
        for round in 1..=18_u8 {
            let len = SIZES[usize::from(round) % SIZES.len()];
            let (data, mut room) = (pattern(len, round), vec![0; len]);
            sides.put(1, &data, window.key().at(0), None).unwrap();
            let get = sides.start_get(0, &mut room, window.key().at(0), add(signals.key()));
            wait_for(&sides, &signals, u64::from(round));
            // SAFETY: nothing reads the memory once the signal is there.
            unsafe { window.address().write_bytes(0xff, len) };
            sides.ranks.finish(&[&get]);
            assert_eq!(get.result().unwrap().len, len as u64);
            assert!(room == data, "round {round}, {len} bytes");
            assert_eq!(signals.load(8).unwrap(), u64::from(round), "one signal for each get");
        }
        let set = Signal { at: signals.key().at(0), update: SignalUpdate::Set(u64::MAX) };
        let get = sides.start_get(0, &mut [], window.key().at(0), Some(set));
        sides.ranks.finish(&[&get]);
        get.result().unwrap();
        assert_eq!((signals.load(0).unwrap(), signals.load(8).unwrap()), (u64::MAX, 18));
        assert_eq!(sides.direct(0) > 0, link.capabilities.flags.contains(RDMA));
    }
}

#[test]
fn a_get_is_complete_after_its_signal() {
    for link in links() {
        let sides = Sides::new(2, &[link]);
        let (mut words, mut counter) = (memory(LARGE), [0_u64; 2]);
        let window = sides.register(1, words.as_mut_bytes());
        let signals = sides.register(1, counter.as_mut_bytes());
        for round in 1..=12 {
            let mut room = vec![0; SIZES[round as usize % SIZES.len()]];
            let get = sides.start_get(0, &mut room, window.key().at(0), add(signals.key()));
            // The owner does nothing: the bytes may have been read, but the word is its own to change.
            for _ in 0..1000 {
                sides.ranks.engines[0].progress();
            }
            assert_eq!(signals.load(8).unwrap(), round - 1);
            while !get.is_complete() {
                sides.ranks.engines[0].progress();
                let given = signals.load(8).unwrap() == round;
                assert!(given || !get.is_complete(), "round {round}");
                sides.ranks.engines[1].progress();
            }
            get.result().unwrap();
            assert_eq!(signals.load(8).unwrap(), round);
        }
    }
}

#[test]
fn a_small_get_with_a_signal_is_one_round_trip() {
    let sides = Sides::new(2, &links()[..1]);
    let (mut words, mut counter) = (memory(LARGE), [0_u64; 2]);
    let window = sides.register(1, words.as_mut_bytes());
    let signals = sides.register(1, counter.as_mut_bytes());
    let sent = || [0, 1].map(|rank| sides.ranks.counter(rank, "sends_eager"));
    for (len, messages) in [(0, 1), (8, 1), (8192, 1), (8193, 2)] {
        let (before, mut room) = (sent(), vec![0; len]);
        sides.get_into(0, space(&mut room), window.key().at(0), add(signals.key())).unwrap();
        sides.ranks.settle();
        assert_eq!(sent()[0] - before[0], messages, "{len} bytes");
    }
}

#[test]
fn fences_and_flushes_cover_signals() {
    for link in links() {
        let sides = Sides::new(2, &[link]);
        let (mut words, mut counter) = (memory(LARGE), [0_u64; 2]);
        let window = sides.register(1, words.as_mut_bytes());
        let signals = sides.register(1, counter.as_mut_bytes());
        let over = AtomicBool::new(false);
        let mut rooms = vec![vec![0; LARGE]; 6];
        for (round, room) in rooms.iter_mut().enumerate() {
            let get = sides.start_get(0, room, window.key().at(0), add(signals.key()));
            sides.sides[0].fence(Some(1));
            let before = sides.atomic(0, AtomicOperation::Add(0), Width::Eight, signals.key().at(8)).unwrap();
            assert_eq!(before, round as u64 + 1);
            get.result().unwrap();
        }
        let gets: Vec<_> =
            rooms.iter_mut().map(|room| sides.start_get(0, room, window.key().at(0), add(signals.key()))).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    sides.ranks.engines[1].progress();
                }
            });
            sides.sides[0].flush(Some(1));
            assert_eq!(signals.load(8).unwrap(), 12);
            over.store(true, Ordering::Release);
        });
        assert!(gets.iter().all(|get| get.is_complete()));
    }
}

/// Returns the key with one byte changed.
fn forged(key: &RemoteKey, at: usize) -> RemoteKey {
    let mut bytes = [0; size_of::<RemoteKey>()];
    bytes.copy_from_slice(key.as_bytes());
    bytes[at] ^= 0x10;
    RemoteKey::read_from_bytes(&bytes).unwrap()
}

#[test]
fn a_refused_get_gives_no_signal() {
    const LEN: usize = 8;
    const AUTHENTICATOR: usize = 48;
    for link in links() {
        let sides = Sides::new(2, &[link]);
        let (mut words, mut counter, mut old) = (memory(LARGE), [0_u64; 2], [0_u64; 2]);
        let window = sides.register(1, words.as_mut_bytes());
        let signals = sides.register(1, counter.as_mut_bytes());
        let stale = *sides.register(1, old.as_mut_bytes()).key();
        let refused = |key: &RemoteKey, at: u64, signal: &RemoteKey, word: u64, len: usize| {
            let mut room = vec![0; len];
            let signal = Signal { at: signal.at(word), update: SignalUpdate::Set(7) };
            match sides.get_into(0, space(&mut room), key.at(at), Some(signal)) {
                Err(Error::Refused { peer: 1, refusal, .. }) => refusal,
                other => panic!("{len} bytes: {other:?}"),
            }
        };
        // The first gets go by the owner. Later ones may be direct.
        for len in [8, LARGE].into_iter().cycle().take(6) {
            let (data, word) = (window.key(), signals.key());
            assert_eq!(refused(&forged(data, AUTHENTICATOR), 0, word, 0, len), Refusal::UnknownKey);
            assert_eq!(refused(&forged(data, LEN + 3), LARGE as u64 - 7, word, 0, len), Refusal::OutOfRange);
            assert_eq!(refused(data, 0, &forged(word, AUTHENTICATOR), 0, len), Refusal::UnknownKey);
            assert_eq!(refused(data, 0, &forged(word, LEN + 3), 16, len), Refusal::OutOfRange);
            // The key tells an odd base, so the owner alone sees that the word is misaligned.
            let odd = RemoteKey::read_from_bytes(&with_odd_base(word)).unwrap();
            assert_eq!(refused(data, 0, &odd, 7, len), Refusal::Misaligned);
            assert_eq!(refused(data, 0, &stale, 0, len), Refusal::Deregistered);
            let mut room = vec![0; len];
            sides.get(0, &mut room, data.at(0)).unwrap();
        }
        let foreign = [0_u64; 2];
        let own = sides.register_at(0, foreign.as_ptr().cast_mut().cast(), 16);
        let error = sides.get_into(0, space(&mut [0; 8]), window.key().at(0), add(own.key())).unwrap_err();
        assert!(matches!(error, Error::ForeignSignal { owner: 0, target: 1 }), "{error}");
        let misaligned = Signal { at: signals.key().at(4), update: SignalUpdate::Set(1) };
        let error = sides.get_into(0, space(&mut [0; 8]), window.key().at(0), Some(misaligned)).unwrap_err();
        assert!(matches!(error, Error::MisalignedWord { offset: 4, width: 8 }), "{error}");
        assert_eq!([signals.load(0).unwrap(), signals.load(8).unwrap()], [0, 0]);
        assert_eq!(own.load(8).unwrap(), 0);
    }
}

/// Returns the key with a base that is one byte more.
fn with_odd_base(key: &RemoteKey) -> [u8; size_of::<RemoteKey>()] {
    let mut bytes = [0; size_of::<RemoteKey>()];
    bytes.copy_from_slice(key.as_bytes());
    bytes[0] += 1;
    bytes
}

#[test]
fn a_get_fails_if_its_owner_dies_before_the_signal() {
    let sides = Sides::new(2, &[Link::new("net", RDMA)]);
    let (mut words, mut counter) = (memory(LARGE), [0_u64; 2]);
    let window = sides.register(1, words.as_mut_bytes());
    let signals = sides.register(1, counter.as_mut_bytes());
    sides.get(0, &mut vec![0; LARGE], window.key().at(0)).unwrap();
    sides.ranks.settle();
    let mut room = vec![0; LARGE];
    let get = sides.start_get(0, &mut room, window.key().at(0), add(signals.key()));
    // The bytes are read without the owner.
    while sides.direct(0) == 0 {
        sides.ranks.engines[0].progress();
    }
    assert!(!get.is_complete());
    sides.ranks.net.kill(1);
    sides.ranks.engines[0].wait(&[&get]);
    assert!(matches!(get.result(), Err(Error::PeerFailed { peer: 1, .. })), "{:?}", get.result());
    assert_eq!(signals.load(8).unwrap(), 0);
    // The dead rank ends its registrations, so it learns that nobody is left.
    sides.ranks.net.kill(0);
}

/// Rank 1 speaks the protocol by itself: it answers a get with data, and then not at all, or wrongly.
#[test]
fn an_owner_that_answers_wrongly_harms_nothing() {
    const ASK: u32 = 1;
    const ANSWER: u32 = 2;
    /// What rank 1 sends: the data of each answer to the first ask, and then to the second one.
    type Answers = [&'static [&'static [u8]]; 2];
    let data: &[u8] = &[7; 64];
    /// Says whether an end of the get is the right one.
    type Expected = fn(Result<(), Error>) -> bool;
    let cases: [(Answers, Expected); 4] = [
        // The signal never comes.
        ([&[&[7; 64]], &[]], |result| matches!(result, Err(Error::PeerFailed { peer: 1, .. }))),
        ([&[&[7; 64]], &[&[]]], |result| result.is_ok()),
        ([&[&[7; 64]], &[&[7; 64]]], |result| matches!(result, Err(Error::BadAnswer { sent: 64, expected: 0, .. }))),
        // The data comes twice: the second time in place of the signal.
        ([&[&[7; 64], &[7; 64]], &[]], |result| matches!(result, Err(Error::BadAnswer { expected: 0, .. }))),
    ];
    for (answers, expected) in cases {
        let ranks = Ranks::new(2, &[Link::new("net", Flags::empty())]);
        let caller = OneSided::new(&ranks.engines[0], CONTEXT, 2, 0).unwrap();
        let hostile = ActiveMessages::new(&ranks.engines[1], CONTEXT, vec![0, 1], 1).unwrap();
        let (asks, headers) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, heard) = (asks.clone(), headers.clone());
        hostile
            .register(ASK, move |arrival| {
                heard.lock().unwrap().push(arrival.header().to_vec());
                for data in answers[counted.fetch_add(1, Ordering::Relaxed)] {
                    let mut header = [0; 24];
                    header[..8].copy_from_slice(&arrival.header()[8..16]);
                    // SAFETY: little data is copied.
                    assert!(unsafe { arrival.poster().post_inline(0, ANSWER, &header, bytes(data)) }.unwrap());
                }
            })
            .unwrap();
        // A key of rank 1, which a process that registers memory made.
        let (key, mut room, get) = (key_of_rank_1(), vec![0; 64], Request::new());
        // SAFETY: the request is waited for.
        let _ = unsafe { caller.get(space(&mut room), key.at(0), add(&key), &get) }.unwrap();
        ranks.settle();
        if answers[0].len() == 1 {
            assert_eq!(asks.load(Ordering::Relaxed), 2, "the signal is asked for once the data is there");
            let headers = headers.lock().unwrap();
            assert_eq!(headers[1][48..56], [0; 8], "without data");
            assert_eq!((&headers[0][..48], &headers[0][56..]), (&headers[1][..48], &headers[1][56..]));
        }
        if !get.is_complete() {
            ranks.net.kill(1);
            ranks.engines[0].wait(&[&get]);
        }
        assert!(expected(get.result().map(drop)), "{:?}", get.result());
        assert!(room == data);
        caller.close();
        hostile.close();
    }
}

fn key_of_rank_1() -> RemoteKey {
    let (sides, mut words) = (Sides::new(2, &[Link::new("net", Flags::empty())]), memory(64));
    let window = sides.register(1, words.as_mut_bytes());
    *window.key()
}
