//! Active messages: data of every size, order, answers, flow control and threads.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cableway_btl::Flags;
use cableway_pml::{Buffer, HEADER_LIMIT, INLINE_LIMIT, Outcome, Request};
use parking_lot::Mutex;

use common::active::{Active, Received, keeper};
use common::{Link, bytes, pattern};

/// Sizes on both sides of the limits of packets and of inline data.
const SIZES: [usize; 8] = [0, 8, 8116, 8117, INLINE_LIMIT, INLINE_LIMIT + 1, 65_536, 1 << 20];

fn links() -> [Vec<Link>; 4] {
    let asynchronous = |flags| vec![Link::new("net", flags).with(|link| link.asynchronous = true)];
    [
        vec![Link::new("net", Flags::empty())],
        vec![Link::new("net", Flags::GET).with(|link| (link.busy, link.retains) = (300, true))],
        asynchronous(Flags::PUT),
        vec![
            Link::new("net", Flags::SEND_IN_PLACE)
                .with(|link| (link.asynchronous, link.busy, link.count) = (true, 100, 3)),
        ],
    ]
}

#[test]
fn headers_and_data_of_every_size_arrive() {
    for links in links() {
        let active = Active::new(2, &links, &[]);
        let received = Received::default();
        active.am[1].register(5, keeper(&received)).unwrap();
        let mut expected = Vec::new();
        for (number, len) in SIZES.into_iter().enumerate() {
            for header_len in [0, 1, 100, HEADER_LIMIT] {
                let (header, data) = (pattern(header_len, number as u8), pattern(len, header_len as u8));
                let ended = active.post(0, 1, 5, &header, data.clone()).unwrap();
                active.until(|| ended.calls() == 1 && received.lock().len() > expected.len());
                assert!(ended.error().is_none());
                expected.push((0, header, data));
            }
        }
        for ((source, header, data), expected) in received.lock().drain(..).zip(&expected) {
            assert_eq!(source, expected.0);
            assert!(header == expected.1 && data.unwrap() == expected.2, "{} bytes", expected.2.len());
        }
        assert_eq!(active.am[1].counts().handled, expected.len() as u64);
        active.finish();
    }
}

#[test]
fn small_host_data_comes_with_its_header_and_other_data_does_not() {
    let active = Active::new(2, &links()[0], &[]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = seen.clone();
    let note = move |arrival: cableway_pml::Arrival<'_>| {
        handler.lock().push((arrival.id(), arrival.len(), arrival.data().map(<[u8]>::to_vec)));
    };
    active.am[1].register(u32::MAX, note).unwrap();
    let small = pattern(INLINE_LIMIT, 1);
    let request = Request::new();
    // SAFETY: data and request outlive the call, which uses neither afterwards.
    let outcome = unsafe { active.am[0].poster().post(1, u32::MAX, b"", bytes(&small), &request) };
    assert_eq!(outcome.unwrap(), Outcome::Complete);
    let large = active.post(0, 1, u32::MAX, b"", pattern(INLINE_LIMIT + 1, 2)).unwrap();
    active.until(|| seen.lock().len() == 2);
    let (len, longer) = (INLINE_LIMIT as u64, INLINE_LIMIT as u64 + 1);
    assert_eq!(*seen.lock(), [(u32::MAX, len, Some(small)), (u32::MAX, longer, None)]);
    // The handler took no data. So the data is dropped, and its sender has its buffer back.
    active.until(|| large.calls() == 1);
    assert!(large.error().is_none());
    active.finish();
}

/// Posts with little credit, so that most messages are only announced, and reach the handlers in another way.
#[test]
fn handlers_see_the_messages_of_each_process_in_order() {
    const MESSAGES: u32 = 400;
    for links in links() {
        for window in ["4M", "2K"] {
            let active = Active::new(3, &links, &[("pml_unexpected_limit", window)]);
            active.ranks.net.shuffle.store(true, Ordering::Relaxed);
            let seen = Arc::new(Mutex::new(vec![Vec::new(); 3]));
            let handler = seen.clone();
            let note = move |arrival: cableway_pml::Arrival<'_>| {
                let number = u32::from_le_bytes(arrival.header().try_into().unwrap());
                handler.lock()[arrival.source() as usize].push(number);
            };
            active.am[0].register(1, note).unwrap();
            for number in 0..MESSAGES {
                let len = [0, 40, 700, 9000][number as usize % 4];
                for from in 0..3 {
                    let data = pattern(len, 0);
                    drop(active.post(from, 0, 1, &number.to_le_bytes(), data).unwrap());
                }
            }
            active.until(|| seen.lock().iter().all(|numbers| numbers.len() == MESSAGES as usize));
            for numbers in &*seen.lock() {
                assert!(numbers.iter().copied().eq(0..MESSAGES), "{numbers:?}");
            }
            active.finish();
        }
    }
}

#[test]
fn handlers_forward_messages_around_a_ring() {
    for links in links() {
        let active = Active::new(4, &links, &[("pml_unexpected_limit", "1K")]);
        let ended = Arc::new(AtomicUsize::new(0));
        for am in &active.am {
            let ended = ended.clone();
            let forward = move |arrival: cableway_pml::Arrival<'_>| {
                let hops = u32::from_le_bytes(arrival.header().try_into().unwrap());
                if hops == 0 {
                    ended.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                let (poster, data) = (arrival.poster(), arrival.data().unwrap());
                let next = (poster.rank() + 1) % poster.size();
                // SAFETY: the data is copied.
                let posted = unsafe { poster.post_inline(next, 3, &(hops - 1).to_le_bytes(), bytes(data)) };
                assert!(posted.unwrap());
            };
            am.register(3, forward).unwrap();
        }
        for from in 0..4 {
            for token in 0..50 {
                active.post(from, (from as u32 + 1) % 4, 3, &40_u32.to_le_bytes(), pattern(token * 20, 1)).unwrap();
            }
        }
        active.until(|| ended.load(Ordering::Relaxed) == 200);
        active.finish();
    }
}

/// All ranks flood one, whose handler answers each message with as much data. No rank waits for an answer.
#[test]
fn a_flood_of_messages_that_are_answered_ends() {
    const MESSAGES: u32 = 300;
    for links in links() {
        let active = Active::new(4, &links, &[("pml_unexpected_limit", "1K")]);
        let answers: Vec<Received> = (0..4).map(|_| Received::default()).collect();
        active.am[0]
            .register(1, |arrival| {
                let data = pattern(arrival.len() as usize, arrival.source() as u8);
                let buffer = Buffer::bytes(data.as_ptr(), data.len() as u64);
                let (to, header) = (arrival.source(), arrival.header());
                // SAFETY: the completion owns the data.
                unsafe { arrival.poster().post_then(to, 2, header, buffer, move |_| drop(data)) }.unwrap();
            })
            .unwrap();
        for (am, answers) in active.am.iter().zip(&answers) {
            am.register(2, keeper(answers)).unwrap();
        }
        let len = |number: u32| [0, 8, 1000, 20_000][number as usize % 4];
        for number in 0..MESSAGES {
            for from in 1..4 {
                active.post(from, 0, 1, &number.to_le_bytes(), pattern(len(number), 9)).unwrap();
            }
        }
        active.until(|| answers[1..].iter().all(|answers| answers.lock().len() == MESSAGES as usize));
        for (rank, answers) in answers.iter().enumerate().skip(1) {
            let mut numbers = Vec::new();
            for (source, header, data) in answers.lock().drain(..) {
                let number = u32::from_le_bytes(header.try_into().unwrap());
                assert!(source == 0 && data.unwrap() == pattern(len(number), rank as u8));
                numbers.push(number);
            }
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..MESSAGES));
        }
        active.finish();
    }
}

#[test]
fn messages_wait_until_their_process_has_a_handler() {
    let active = Active::new(2, &links()[0], &[]);
    let small = active.post(0, 1, 1, b"first", pattern(10, 1)).unwrap();
    let large = active.post(0, 1, 1, b"second", pattern(100_000, 2)).unwrap();
    active.ranks.settle();
    assert_eq!((small.calls(), large.calls()), (1, 0));
    let received = Received::default();
    active.am[1].register(1, keeper(&received)).unwrap();
    active.until(|| received.lock().len() == 2 && large.calls() == 1);
    let headers: Vec<_> = received.lock().iter().map(|(_, header, _)| header.clone()).collect();
    assert_eq!(headers, [&b"first"[..], b"second"]);
    assert_eq!(active.am[1].counts().unknown, 0);
    active.finish();
}

#[test]
fn a_handler_that_makes_progress_calls_no_other_handler() {
    let active = Active::new(2, &links()[0], &[]);
    let (depth, most, calls) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, called) = (most.clone(), calls.clone());
    let nest = move |arrival: cableway_pml::Arrival<'_>| {
        seen.fetch_max(depth.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        for _ in 0..10 {
            arrival.poster().engine().progress();
        }
        depth.fetch_sub(1, Ordering::Relaxed);
        called.fetch_add(1, Ordering::Relaxed);
    };
    active.am[1].register(1, nest).unwrap();
    for _ in 0..200 {
        active.post(0, 1, 1, b"", Vec::new()).unwrap();
    }
    active.until(|| calls.load(Ordering::Relaxed) == 200);
    assert_eq!(most.load(Ordering::Relaxed), 1);
    active.finish();
}

/// Threads of both ranks post and make progress at once. Each thread's messages stay in order.
#[test]
fn many_threads_post_and_handle() {
    const THREADS: usize = 4;
    const MESSAGES: u32 = 300;
    for links in links() {
        let active = Active::new(2, &links, &[("pml_spin", "0"), ("pml_unexpected_limit", "64K")]);
        let next: Arc<Vec<AtomicU32>> = Arc::new((0..2 * THREADS).map(|_| AtomicU32::new(0)).collect());
        let (landed, wrong) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for (rank, am) in active.am.iter().enumerate() {
            let (next, landed, wrong) = (next.clone(), landed.clone(), wrong.clone());
            let check = move |arrival: cableway_pml::Arrival<'_>| {
                let (thread, number) = (arrival.header()[0], arrival.header()[1..].try_into().unwrap());
                let expected = next[rank * THREADS + usize::from(thread)].fetch_add(1, Ordering::Relaxed);
                wrong.fetch_or(expected != u32::from_le_bytes(number), Ordering::Relaxed);
                let (landed, wrong, len) = (landed.clone(), wrong.clone(), arrival.len() as usize);
                let mut memory = vec![0; len];
                let buffer = common::space(&mut memory);
                // SAFETY: the completion owns the memory.
                unsafe {
                    arrival.receive(buffer, move |result| {
                        let right = result.is_ok() && memory == pattern(len, thread);
                        wrong.fetch_or(!right, Ordering::Relaxed);
                        landed.fetch_add(1, Ordering::Relaxed);
                    });
                }
            };
            am.register(1, check).unwrap();
        }
        let all = 2 * THREADS * MESSAGES as usize;
        thread::scope(|scope| {
            for (rank, thread) in (0..2).flat_map(|rank| (0..THREADS).map(move |thread| (rank, thread))) {
                let (active, landed) = (&active, &landed);
                scope.spawn(move || {
                    for number in 0..MESSAGES {
                        let header = [&[thread as u8][..], &number.to_le_bytes()].concat();
                        let data = pattern([0, 8, 2000, 12_000][number as usize % 4], thread as u8);
                        active.post(rank, 1 - rank as u32, 1, &header, data).unwrap();
                    }
                    let engine = active.am[rank].poster().engine();
                    engine.wait_until(|| landed.load(Ordering::Relaxed) == all);
                    // A busy link may have refused a header for which the other rank's flush waits. Nobody polls this
                    // engine then.
                    assert!(engine.drain(Duration::from_secs(120)));
                });
            }
        });
        assert!(!wrong.load(Ordering::Relaxed));
        active.am[0].flush();
        active.am[1].flush();
        active.finish();
    }
}
