//! Active messages: wrong arguments, unknown ids, panics, dead peers, malformed bytes, and the end.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_btl::Flags;
use cableway_pml::{Abort, ActiveMessages, Error, HEADER_LIMIT, SendMode};

use parking_lot::Mutex;

use common::active::{Active, CONTEXT, Received, keep, keeper};
use common::{Link, Ranks, bytes, pattern};

fn links() -> Vec<Link> {
    vec![Link::new("net", Flags::GET)]
}

#[test]
fn wrong_arguments_are_errors_of_the_caller() {
    let active = Active::new(2, &links(), &[]);
    let header = pattern(HEADER_LIMIT + 1, 0);
    for len in [0, 10, 100_000] {
        let error = active.post(0, 1, 9, &header, pattern(len, 0)).err().unwrap();
        assert!(matches!(error, Error::HeaderTooLong { id: 9, len: 2049, limit: HEADER_LIMIT }), "{error}");
        // The last two would be wildcards and the process that does not exist.
        for to in [2, u32::MAX, u32::MAX - 1] {
            let error = active.post(0, to, 9, b"", pattern(len, 0)).err().unwrap();
            assert!(matches!(error, Error::NoSuchRank { size: 2, .. }), "{error}");
        }
    }
    let first = active.am[0].register(9, |_| {});
    let second = active.am[0].register(9, |_| {});
    assert!(first.is_ok() && matches!(second, Err(Error::HandlerInUse { id: 9 })));
    assert!(active.am[0].unregister(9) && !active.am[0].unregister(9));
    assert!(active.am[0].register(9, |_| {}).is_ok());
    active.finish();
}

#[test]
fn messages_with_an_unknown_id_are_dropped_with_their_data() {
    let active = Active::new(2, &links(), &[]);
    let received = Received::default();
    active.am[1].register(1, keeper(&received)).unwrap();
    for len in [0, 100, 5000, 20_000, 1 << 20] {
        let lost = active.post(0, 1, 2, b"lost", pattern(len, 0)).unwrap();
        let kept = active.post(0, 1, 1, b"kept", pattern(len, 1)).unwrap();
        active.until(|| lost.calls() == 1 && kept.calls() == 1 && received.lock().len() == 1);
        assert!(lost.error().is_none() && kept.error().is_none());
        let (_, header, data) = received.lock().pop().unwrap();
        assert!(header == b"kept" && data.unwrap() == pattern(len, 1));
    }
    assert_eq!((active.am[1].counts().handled, active.am[1].counts().unknown), (5, 5));
    active.finish();
}

#[test]
fn a_panic_ends_its_handler_only() {
    let active = Active::new(2, &links(), &[]);
    let received = Received::default();
    let kept = received.clone();
    let handler = move |arrival: cableway_pml::Arrival<'_>| {
        assert_ne!(arrival.header(), b"bad", "this panic is a part of the test");
        let capacity = arrival.len() as usize;
        keep(arrival, capacity, &kept);
    };
    active.am[1].register(1, handler).unwrap();
    for len in [10, 50_000] {
        let bad = active.post(0, 1, 1, b"bad", pattern(len, 0)).unwrap();
        let good = active.post(0, 1, 1, b"good", pattern(len, 1)).unwrap();
        active.until(|| bad.calls() == 1 && good.calls() == 1 && received.lock().len() == 1);
        assert!(bad.error().is_none(), "its data is dropped");
        assert!(received.lock().pop().unwrap().2.unwrap() == pattern(len, 1));
    }
    assert_eq!(active.am[1].counts().panicked, 2);
    // A completion may panic as well.
    // SAFETY: the data is static.
    let posted = unsafe {
        active.am[0].poster().post_then(1, 1, b"good", bytes(b"static"), |_| panic!("this panic is a part of the test"))
    };
    posted.unwrap();
    active.until(|| received.lock().len() == 1 && active.am[0].counts().panicked == 1);
    active.finish();
}

#[test]
fn data_that_is_longer_than_its_buffer_fills_it() {
    let active = Active::new(2, &links(), &[]);
    let received = Received::default();
    let kept = received.clone();
    active.am[1].register(1, move |arrival| keep(arrival, 7, &kept)).unwrap();
    for len in [8, 8192, 8193, 100_000] {
        let sent = active.post(0, 1, 1, b"", pattern(len, 0)).unwrap();
        active.until(|| sent.calls() == 1 && received.lock().len() == 1);
        let (_, _, result) = received.lock().pop().unwrap();
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::Truncated { source_rank: 0, sent, capacity: 7, .. } if sent == len as u64),
            "{error}"
        );
    }
    active.finish();
}

#[test]
fn the_death_of_a_peer_fails_posts_and_landings() {
    // Data comes in fragments, which its sender sends when it makes progress.
    let active = Active::new(3, &[Link::new("net", Flags::empty())], &[]);
    let received = Received::default();
    active.am[0].register(1, keeper(&received)).unwrap();
    // The data of one message to the peer, and of one from it, is under way when it dies.
    let to = active.post(0, 1, 1, b"", pattern(100_000, 0)).unwrap();
    drop(active.post(1, 0, 1, b"", pattern(100_000, 0)).unwrap());
    while active.am[0].counts().handled == 0 {
        active.ranks.engines[0].progress();
    }
    active.ranks.net.kill(1);
    for _ in 0..1000 {
        active.ranks.engines[0].progress();
        active.ranks.engines[2].progress();
    }
    assert_eq!((to.calls(), to.error().is_some()), (1, true));
    let (_, _, result) = received.lock().pop().unwrap();
    let error = result.unwrap_err();
    assert!(matches!(error, Error::PeerFailed { peer: 1, .. } | Error::Btl(_)), "{error}");
    for len in [0, 10, 100_000] {
        let error = active.post(0, 1, 1, b"", pattern(len, 0)).err().unwrap();
        assert!(matches!(error, Error::PeerFailed { peer: 1, .. }), "{error}");
    }
    // Others go on.
    let other = active.post(2, 0, 1, b"", pattern(100_000, 3)).unwrap();
    for _ in 0..100_000 {
        if other.calls() == 1 && received.lock().len() == 1 {
            break;
        }
        active.ranks.engines[0].progress();
        active.ranks.engines[2].progress();
    }
    assert!(received.lock().pop().unwrap().2.unwrap() == pattern(100_000, 3));
    assert_eq!(active.am[0].poster().pending(), 0);
}

/// A peer whose active messages are not what they should be is disconnected.
#[test]
fn malformed_messages_disconnect_their_sender() {
    let good = [1, 0, 0, 0, 0, 0, 1, 0];
    for wrong in [&[][..], &good[..7], &[1, 0, 0, 0, 0, 0, 9, 0], &[1, 0, 0, 0, 1, 0, 1, 0], &[0; 11_000]] {
        let ranks = Ranks::new(2, &links());
        // Rank 0 writes the bytes of active messages itself.
        let raw = ranks.engines[0].add_communicator(CONTEXT, vec![0, 1], 0).unwrap();
        let am = ActiveMessages::new(&ranks.engines[1], CONTEXT, vec![0, 1], 1).unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        am.register(1, move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        let send = |data: &[u8]| {
            let request = Box::leak(Box::new(cableway_pml::Request::new()));
            let data = Box::leak(data.to_vec().into_boxed_slice());
            // SAFETY: both are leaked.
            let outcome = unsafe { ranks.engines[0].isend(&raw, 1, 0, bytes(data), &SendMode::Standard, request) };
            assert!(outcome.is_ok());
        };
        send(&good);
        ranks.settle();
        assert_eq!((calls.load(Ordering::Relaxed), ranks.counter(1, "malformed")), (1, 0));
        send(wrong);
        send(&good);
        ranks.settle();
        assert_eq!(ranks.counter(1, "malformed"), 1, "{wrong:?}");
    }
}

/// Data of another length than announced is an error of the landing.
#[test]
fn data_of_another_length_is_an_error() {
    for (announced, sent) in [(100_u64, 99_usize), (100, 0), (20_000, 10_000)] {
        let ranks = Ranks::new(2, &links());
        let raw = ranks.engines[0].add_communicator(CONTEXT, vec![0, 1], 0).unwrap();
        let am = ActiveMessages::new(&ranks.engines[1], CONTEXT, vec![0, 1], 1).unwrap();
        let received = Received::default();
        am.register(1, keeper(&received)).unwrap();
        let head = follows(announced, 5);
        let (data, request) = (pattern(sent, 0), cableway_pml::Request::new());
        // SAFETY: data and request live until the ranks are settled.
        unsafe {
            ranks.engines[0].send(&raw, 1, 0, bytes(&head), &SendMode::Standard).unwrap();
            let _ = ranks.engines[0].isend(&raw, 1, 5, bytes(&data), &SendMode::Standard, &request).unwrap();
        }
        ranks.settle();
        let (_, _, result) = received.lock().pop().unwrap();
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::OtherLength { source_rank: 0, announced: a, sent: s } if (a, s) == (announced, sent as u64)),
            "{error}"
        );
    }
}

/// Messages that came before their process prepared active messages are handled first, in their order.
#[test]
fn messages_that_came_early_are_handled_first() {
    let ranks = Ranks::new(2, &links());
    let raw = ranks.engines[0].add_communicator(CONTEXT, vec![0, 1], 0).unwrap();
    let send = |number: u8| {
        let message = [1, 0, 0, 0, 1, 0, 1, 0, number];
        // SAFETY: the call waits.
        unsafe { ranks.engines[0].send(&raw, 1, 0, bytes(&message), &SendMode::Standard) }.unwrap();
    };
    (0..3).for_each(send);
    ranks.settle();
    let am = ActiveMessages::new(&ranks.engines[1], CONTEXT, vec![0, 1], 1).unwrap();
    (3..6).for_each(send);
    ranks.settle();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    am.register(1, move |arrival| note.lock().push(arrival.header()[0])).unwrap();
    ranks.settle();
    assert_eq!(*seen.lock(), [0, 1, 2, 3, 4, 5]);
    am.close();
    ranks.finalize();
}

/// A handler that ends active messages is the last one to be called.
#[test]
fn closing_in_a_handler_drops_the_messages_after_it() {
    let active = Active::new(2, &links(), &[]);
    let am = Arc::new(Mutex::new(None));
    let closes = am.clone();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    for _ in 0..5 {
        active.post(0, 1, 1, b"", Vec::new()).unwrap();
    }
    active.ranks.settle();
    let Active { ranks, am: mut both } = active;
    *am.lock() = both.pop();
    let handler = move |_: cableway_pml::Arrival<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let closed = closes.lock().take();
        if let Some(am) = closed {
            am.close();
        }
    };
    am.lock().as_ref().unwrap().register(1, handler).unwrap();
    ranks.settle();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    drop(both);
    ranks.finalize();
}

#[test]
fn closing_refuses_the_messages_that_wait_and_come() {
    let active = Active::new(2, &links(), &[]);
    let waiting = active.post(0, 1, 1, b"", pattern(100_000, 0)).unwrap();
    active.ranks.settle();
    assert_eq!(waiting.calls(), 0);
    active.am[1].close();
    let late = active.post(0, 1, 1, b"", pattern(100_000, 0)).unwrap();
    active.until(|| waiting.calls() == 1 && late.calls() == 1);
    for ended in [waiting, late] {
        let error = ended.error().unwrap();
        assert!(matches!(error, Error::PeerAborted { reason: Abort::CommunicatorRemoved, .. }), "{error}");
    }
    active.ranks.finalize();
}

#[test]
fn closing_ends_landings_whose_data_has_not_come() {
    let ranks = Ranks::new(2, &links());
    let raw = ranks.engines[0].add_communicator(CONTEXT, vec![0, 1], 0).unwrap();
    let am = ActiveMessages::new(&ranks.engines[1], CONTEXT, vec![0, 1], 1).unwrap();
    let received = Received::default();
    am.register(1, keeper(&received)).unwrap();
    let head = follows(100, 5);
    // SAFETY: the call waits.
    unsafe { ranks.engines[0].send(&raw, 1, 0, bytes(&head), &SendMode::Standard) }.unwrap();
    ranks.settle();
    assert!(am.counts().handled == 1 && received.lock().is_empty());
    am.close();
    let (_, _, result) = received.lock().pop().unwrap();
    assert!(matches!(result, Err(Error::CommunicatorRemoved { context: CONTEXT })));
    ranks.finalize();
}

/// Returns the bytes of an active message with id 1 and no header whose data follows.
fn follows(len: u64, tag: u8) -> Vec<u8> {
    let mut bytes = vec![1, 0, 0, 0, 0, 0, 2, 0];
    bytes.extend(len.to_le_bytes());
    bytes.extend([tag, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

#[test]
fn a_handler_is_dropped_when_active_messages_close() {
    let active = Active::new(2, &links(), &[]);
    let owned = Arc::new(());
    let (first, second) = (owned.clone(), owned.clone());
    active.am[1].register(1, move |_| drop(first.clone())).unwrap();
    active.am[1].register(2, move |_| drop(second.clone())).unwrap();
    assert_eq!(Arc::strong_count(&owned), 3);
    assert!(active.am[1].unregister(1));
    assert_eq!(Arc::strong_count(&owned), 2);
    active.am[1].close();
    assert_eq!(Arc::strong_count(&owned), 1);
    active.finish();
}
