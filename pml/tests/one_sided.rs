//! One-sided operations between engines in one thread, over links with and without abilities.

mod common;

use std::sync::{Arc, Mutex};

use cableway_btl::Flags;
use cableway_pml::{
    ActiveMessages, AtomicOperation, Buffer, Error, OneSided, Refusal, RemoteKey, Request, Signal, SignalUpdate, Width,
};
use zerocopy::{FromBytes, IntoBytes};

use common::sides::{CONTEXT, Sides, memory};
use common::{Link, Ranks, bytes, pattern, space};

fn links() -> Vec<Link> {
    let rdma = Flags::GET.union(Flags::PUT);
    vec![Link::new("net", Flags::empty()), Link::new("net", rdma), Link::new("net", rdma).with(|link| link.busy = 600)]
}

#[test]
fn puts_and_gets_move_every_byte_and_no_other() {
    for link in links() {
        let sides = Sides::new(3, &[link]);
        for len in [0, 1, 8, 8116, 8117, 65_536, 1 << 20] {
            let mut words = memory(len + 64);
            let window = words.as_mut_bytes();
            window.fill(0xee);
            let registered = sides.register(1, window);
            let data = pattern(len, len as u8);
            sides.put(0, &data, registered.key().at(13), None).unwrap();
            assert!(window[13..13 + len] == data, "{len} bytes");
            assert!(window[..13].iter().chain(&window[13 + len..]).all(|&byte| byte == 0xee), "{len} bytes");
            let mut room = vec![0x11; len + 2];
            sides.get(2, &mut room[1..=len], registered.key().at(13)).unwrap();
            assert!(room[1..=len] == data && (room[0], room[len + 1]) == (0x11, 0x11), "{len} bytes");
            // From and to a rank's own memory.
            sides.put(1, &pattern(len, 3), registered.key().at(1), None).unwrap();
            assert!(window[1..=len] == pattern(len, 3), "{len} bytes");
        }
    }
}

#[test]
fn a_signal_follows_its_data() {
    for link in links() {
        let sides = Sides::new(2, &[link]);
        let (mut words, mut counter) = (memory(300_000), [0_u64; 2]);
        let window = sides.register(1, words.as_mut_bytes());
        let signals = sides.register(1, counter.as_mut_bytes());
        for (round, len) in [8, 300_000, 0, 8192, 8193, 100_000].into_iter().enumerate() {
            let data = pattern(len, round as u8);
            let signal = Signal { at: signals.key().at(8), update: SignalUpdate::Add(1) };
            let request = sides.start_put(0, &data, window.key().at(0), Some(signal));
            while signals.load(8).unwrap() != round as u64 + 1 {
                for engine in &sides.ranks.engines {
                    engine.progress();
                }
            }
            // SAFETY: nothing is under way at rank 1 once the signal is there.
            let landed = unsafe { std::slice::from_raw_parts(window.address(), len) };
            assert!(landed == data, "round {round}");
            sides.ranks.finish(&[&request]);
        }
        let set = Signal { at: signals.key().at(0), update: SignalUpdate::Set(u64::MAX) };
        sides.put(0, &[], window.key().at(0), Some(set)).unwrap();
        assert_eq!((signals.load(0).unwrap(), signals.load(8).unwrap()), (u64::MAX, 6));
    }
}

#[test]
fn atomic_operations_return_the_word_before() {
    let sides = Sides::new(2, &[Link::new("net", Flags::empty())]);
    let mut words = [10_u64, 0xffff_ffff_0000_0001];
    let window = sides.register(0, words.as_mut_bytes());
    use AtomicOperation::{Add, And, CompareSwap, Or, Swap, Xor};
    let steps = [
        (Add(5), 10, 15),
        (Swap(7), 15, 7),
        (CompareSwap { expected: 8, new: 1 }, 7, 7),
        (CompareSwap { expected: 7, new: 0xff }, 7, 0xff),
        (And(0xf0), 0xff, 0xf0),
        (Or(0x0f), 0xf0, 0xff),
        (Xor(0xff), 0xff, 0),
    ];
    for (operation, before, after) in steps {
        assert_eq!(sides.atomic(1, operation, Width::Eight, window.key().at(0)).unwrap(), before, "{operation:?}");
        assert_eq!(window.load(0).unwrap(), after, "{operation:?}");
    }
    // A word of 4 bytes beside others.
    assert_eq!(sides.atomic(1, Add(u64::MAX), Width::Four, window.key().at(8)).unwrap(), 1);
    assert_eq!(sides.atomic(1, Add(u64::MAX), Width::Four, window.key().at(8)).unwrap(), 0);
    assert_eq!(window.load(8).unwrap(), 0xffff_ffff_ffff_ffff);
    assert_eq!(sides.atomic(1, Swap(3), Width::Four, window.key().at(12)).unwrap(), 0xffff_ffff);
    assert_eq!(window.load(8).unwrap(), 0x0000_0003_ffff_ffff);
}

/// Returns the key with one byte changed.
fn forged(key: &RemoteKey, at: usize, byte: u8) -> RemoteKey {
    let mut bytes = [0; size_of::<RemoteKey>()];
    bytes.copy_from_slice(key.as_bytes());
    assert_ne!(bytes[at], byte);
    bytes[at] = byte;
    RemoteKey::read_from_bytes(&bytes).unwrap()
}

#[test]
fn wrong_keys_are_refused_and_nothing_is_written() {
    let sides = Sides::new(2, &[Link::new("net", Flags::GET.union(Flags::PUT))]);
    let (mut words, mut others) = (memory(4096), memory(100_000));
    let window = sides.register(1, words.as_mut_bytes());
    let other = sides.register(1, others.as_mut_bytes());
    let key = *window.key();
    let refused = |result: Result<(), Error>| match result {
        Err(Error::Refused { peer, refusal, .. }) => (peer, refusal),
        other => panic!("{other:?}"),
    };
    let authenticator = 48;
    for len in [8, 3000, 100_000] {
        let (data, mut room) = (pattern(len, 1), vec![7; len]);
        // The authenticator, the generation, the slot, and a length that the owner did not register.
        let wrong = [
            (forged(&key, authenticator, !key.as_bytes()[authenticator]), Refusal::UnknownKey),
            (forged(&key, authenticator + 15, !key.as_bytes()[authenticator + 15]), Refusal::UnknownKey),
            (forged(&key, 44, 77), Refusal::UnknownKey),
            (forged(&key, 40, 200), Refusal::UnknownKey),
            (forged(&key, 40, other.key().as_bytes()[40]), Refusal::UnknownKey),
        ];
        // The keys tell of more memory than there is, so that only the owner can refuse.
        let larger = forged(&key, 11, 0x10);
        // A rank that never registered any.
        let elsewhere = forged(&larger, 16, 0);
        for (wrong, reason) in wrong {
            let wrong = forged(&wrong, 11, 0x10);
            assert_eq!(refused(sides.put(0, &data, wrong.at(0), None)), (1, reason));
            assert_eq!(refused(sides.get(0, &mut room, wrong.at(0))), (1, reason));
        }
        assert_eq!(refused(sides.put(0, &data, elsewhere.at(0), None)), (0, Refusal::UnknownKey));
        assert_eq!(refused(sides.put(0, &data, larger.at(4090), None)), (1, Refusal::OutOfRange));
        assert_eq!(refused(sides.get(0, &mut room, larger.at(4090))), (1, Refusal::OutOfRange));
        // A good place, but a signal that is refused: the data is not written.
        let signal = Signal { at: larger.at(1 << 20), update: SignalUpdate::Set(1) };
        assert_eq!(refused(sides.put(0, &data, other.key().at(0), Some(signal))), (1, Refusal::OutOfRange));
        assert!(room.iter().all(|&byte| byte == 7));
    }
    drop((window, other));
    assert!(words.iter().chain(&others).all(|&word| word == 0));
}

#[test]
fn mistakes_are_found_before_anything_is_sent() {
    let sides = Sides::new(2, &[Link::new("net", Flags::empty())]);
    let (mut words, mut mine) = (memory(64), memory(64));
    let (window, own) = (sides.register(1, words.as_mut_bytes()), sides.register(0, mine.as_mut_bytes()));
    let key = window.key();
    sides.ranks.settle();
    for (offset, len) in [(0, 65), (64, 1), (u64::MAX, 8), (57, 8)] {
        let error = sides.put(0, &vec![1; len], key.at(offset), None).unwrap_err();
        assert!(matches!(error, Error::OutsideRegistration { registered: 64, .. }), "{error}");
    }
    let error = sides.atomic(0, AtomicOperation::Add(1), Width::Eight, key.at(4)).unwrap_err();
    assert!(matches!(error, Error::MisalignedWord { offset: 4, width: 8 }), "{error}");
    let foreign = Signal { at: own.key().at(0), update: SignalUpdate::Set(1) };
    let error = sides.put(0, &[1], key.at(0), Some(foreign)).unwrap_err();
    assert!(matches!(error, Error::ForeignSignal { owner: 0, target: 1 }), "{error}");
    let error = sides.put(0, &[1], forged(key, 16, 2).at(0), None).unwrap_err();
    assert!(matches!(error, Error::NoSuchRank { rank: 2, size: 2 }), "{error}");
    assert_eq!(sides.ranks.net.in_flight(), 0, "nothing was sent");
    let layout = cableway_datatype::Datatype::vector(2, 1, 2, &cableway_datatype::Predefined::Byte.datatype());
    let layout = layout.unwrap().commit();
    let data = [1_u8; 4];
    let error = sides.put_from(0, Buffer::bytes(data.as_ptr(), 3), key.at(0).typed(1, &layout), None);
    assert!(matches!(error, Err(Error::UnequalBuffers { origin: 3, target: 2 })), "{error:?}");
    let error = sides.put_from(0, Buffer::bytes(data.as_ptr(), 2), key.at(62).typed(1, &layout), None);
    assert!(matches!(error, Err(Error::OutsideRegistration { registered: 64, .. })), "{error:?}");
    assert_eq!(sides.ranks.net.in_flight(), 0, "nothing was sent");
}

#[test]
fn a_fence_orders_operations() {
    let sides = Sides::new(2, &[Link::new("net", Flags::GET.union(Flags::PUT))]);
    let mut words = memory(1 << 20);
    let window = sides.register(1, words.as_mut_bytes());
    let (large, small) = (pattern(1 << 20, 1), pattern(100, 2));
    // Without the fence the small put arrives first, and the large one overwrites it.
    let first = sides.start_put(0, &large, window.key().at(0), None);
    sides.sides[0].fence(Some(1));
    let second = sides.start_put(0, &small, window.key().at(0), None);
    sides.sides[0].fence(None);
    let (request, mut seen) = (Request::new(), vec![0; 1 << 20]);
    // SAFETY: the request is waited for.
    let _ = unsafe { sides.sides[0].get(space(&mut seen), window.key().at(0), None, &request) }.unwrap();
    sides.ranks.finish(&[&request]);
    assert!(first.is_complete() && second.is_complete());
    assert!(seen[..100] == small && seen[100..] == large[100..]);
}

#[test]
fn the_end_of_a_registration_waits_for_puts_and_refuses_later_ones() {
    let sides = Sides::new(2, &[Link::new("net", Flags::empty())]);
    let mut words = memory(1 << 20);
    let window = sides.register(1, words.as_mut_bytes());
    let (key, data) = (*window.key(), pattern(1 << 20, 9));
    let put = sides.start_put(0, &data, key.at(0), None);
    // Rank 1 admits the put. Its data waits for rank 0 to make progress.
    for _ in 0..1000 {
        sides.ranks.engines[1].progress();
    }
    let engine = &sides.ranks.engines[0];
    let landed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !put.is_complete() {
                engine.progress();
            }
        });
        drop(window);
        let landed = words.as_bytes() == data;
        // The answer leaves.
        while !put.is_complete() {
            sides.ranks.engines[1].progress();
        }
        landed
    });
    assert!(landed, "the drop waits for the put");
    put.result().unwrap();
    let before = words.clone();
    for len in [8, 100_000] {
        let error = sides.put(0, &pattern(len, 1), key.at(0), None).unwrap_err();
        assert!(matches!(error, Error::Refused { refusal: Refusal::Deregistered, .. }), "{error}");
    }
    assert!(words == before);
}

#[test]
fn operations_end_when_their_target_dies() {
    let sides = Sides::new(3, &[Link::new("net", Flags::GET.union(Flags::PUT))]);
    let mut words = memory(1 << 20);
    let window = sides.register(1, words.as_mut_bytes());
    let (data, mut room) = (pattern(1 << 20, 9), vec![0; 1 << 20]);
    sides.put(0, &[1], window.key().at(0), None).unwrap();
    let put = sides.start_put(0, &data, window.key().at(0), None);
    let small = sides.start_put(0, &data[..8], window.key().at(0), None);
    sides.sides[0].fence(None);
    let held = sides.start_put(0, &data[..8], window.key().at(0), None);
    let get = Request::new();
    // SAFETY: the request is waited for.
    let _ = unsafe { sides.sides[0].get(space(&mut room), window.key().at(0), None, &get) }.unwrap();
    sides.ranks.net.kill(1);
    let engine = &sides.ranks.engines[0];
    engine.wait(&[&put, &small, &held, &get]);
    for request in [&*put, &small, &held, &get] {
        assert!(matches!(request.result(), Err(Error::PeerFailed { peer: 1, .. })), "{:?}", request.result());
    }
    sides.sides[0].flush(None);
    let late = Request::new();
    // SAFETY: it is not started.
    let error = unsafe { sides.sides[0].put(bytes(&data), window.key().at(0), None, &late) };
    assert!(matches!(error, Err(Error::PeerFailed { peer: 1, .. })), "{error:?}");
    // The others go on.
    let mut words = memory(8);
    let other = sides.register(2, words.as_mut_bytes());
    sides.put(0, &data[..8], other.key().at(0), None).unwrap();
    assert!(words.as_bytes() == &data[..8]);
}

/// Rank 0 speaks the protocol by itself, and wrongly.
#[test]
fn a_hostile_peer_is_disconnected_or_refused_and_writes_nothing() {
    const ASK: u32 = 1;
    const ANSWER: u32 = 2;
    const SHAPE: u32 = 7;
    let ask = |len: u64, name: &[u8]| {
        let mut header = [0; 96];
        header[0] = 1;
        header[16..40].copy_from_slice(name);
        header[48..56].copy_from_slice(&len.to_le_bytes());
        header
    };
    // Elements of one block.
    let elements = |len, name: &[u8], (count, extent): (u64, i64), block: (i64, u64)| {
        let mut header = ask(len, name).to_vec();
        header[0] = 4;
        header.extend(1_u64.to_le_bytes());
        header.extend([count, extent as u64, block.0 as u64, block.1].map(u64::to_le_bytes).as_flattened());
        header
    };
    let mut without_blocks = elements(8, &[0; 24], (1, 8), (0, 8));
    without_blocks.truncate(120);
    // What is posted: a part of an ask, an ask of no kind, with reserved bytes, elements without their form and without
    // their blocks, an empty shape, and an answer to nothing.
    let wrong: [(u32, &[u8]); 8] = [
        (ASK, &[1; 95]),
        (ASK, &[0; 96]),
        (ASK, &[1; 96]),
        (ASK, &without_blocks[..119]),
        (ASK, &without_blocks),
        (SHAPE, &[]),
        (ANSWER, &[0; 24]),
        (ANSWER, &[0; 23]),
    ];
    for wrong in wrong.map(Some).into_iter().chain([None]) {
        let ranks = Ranks::new(2, &[Link::new("net", Flags::empty())]);
        let mut words = memory(64);
        let owner = OneSided::new(&ranks.engines[1], CONTEXT, 2, 1).unwrap();
        let hostile = ActiveMessages::new(&ranks.engines[0], CONTEXT, vec![0, 1], 0).unwrap();
        let answers = Arc::new(Mutex::new(Vec::new()));
        let heard = answers.clone();
        hostile.register(ANSWER, move |arrival| heard.lock().unwrap().push(arrival.header().to_vec())).unwrap();
        // SAFETY: the memory outlives the registration.
        let window = unsafe { owner.register(words.as_mut_ptr().cast(), 64) }.unwrap();
        let post = |id, header: &[u8], data: &[u8]| {
            // SAFETY: little data is copied.
            assert!(unsafe { hostile.poster().post_inline(1, id, header, bytes(data)) }.unwrap());
            ranks.settle();
        };
        match wrong {
            Some((id, header)) => {
                post(id, header, &[]);
                assert_eq!(ranks.counter(1, "malformed"), 1, "{id}, {} bytes", header.len());
                assert!(answers.lock().unwrap().is_empty());
            }
            None => {
                // A good key, but the data has another length than the ask.
                for (len, data) in [(64, &[7; 63][..]), (8, &[7; 64]), (64, &[]), (u64::MAX, &[7; 64])] {
                    post(ASK, &ask(len, &window.key().as_bytes()[40..]), data);
                }
                assert_eq!(ranks.counter(1, "malformed"), 0);
                let codes: Vec<u8> = answers.lock().unwrap().iter().map(|answer| answer[8]).collect();
                let (out_of_range, incomplete) = (3, 6);
                assert_eq!(codes, [incomplete, incomplete, incomplete, out_of_range]);
                // Elements that the memory does not hold, and elements of another length than the ask or the data.
                let far = i64::MAX;
                for (len, repeated, block, expected) in [
                    (8, (2, 61), (0, 4), out_of_range),
                    (8, (2, 32), (-1, 4), out_of_range),
                    (8, (2, -4), (0, 4), out_of_range),
                    (8, (2, far), (0, 4), out_of_range),
                    (8, (2, 8), (far, 4), out_of_range),
                    (8, (1, 8), (0, u64::MAX), out_of_range),
                    (8, (1 << 62, 8), (0, 4), out_of_range),
                    (8, (0, 8), (0, 8), out_of_range),
                    (8, (3, 8), (0, 4), incomplete),
                    (12, (3, 8), (0, 4), incomplete),
                ] {
                    post(ASK, &elements(len, &window.key().as_bytes()[40..], repeated, block), &[7; 8]);
                    let code = answers.lock().unwrap().last().map(|answer| answer[8]);
                    assert_eq!(code, Some(expected), "{len} {repeated:?} {block:?}");
                }
                assert_eq!(ranks.counter(1, "malformed"), 0);
            }
        }
        drop(window);
        hostile.close();
        owner.close();
        assert!(words.iter().all(|&word| word == 0));
    }
}
