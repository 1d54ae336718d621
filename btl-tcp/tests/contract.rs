//! Tests the BTL contract on connections of one process with itself.

mod common;

use cableway_btl::{Access, Flags, FragmentKind, MAX_HEADER, Remote, RemoteHandle, Sent, Token, Transfer};
use common::{Pair, pair, pattern, region, send, transfer};

#[test]
fn messages_of_every_size_arrive_in_order() {
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    let endpoint = &mut *to_b[0];
    let limit = endpoint.capabilities().inline_limit;
    let sizes = [0, 1, 7, 8, 9, 1000, 4096, 16384, limit - 1, limit];
    for round in 0..20 {
        for (index, &size) in sizes.iter().enumerate() {
            let message = pattern(size, round * 100 + index as u64);
            let header = size.min(MAX_HEADER);
            send(&[&a, &b], endpoint, &message[..header], &message[header..]);
        }
    }
    common::until(&[&a, &b], "all arrive", || b.received() == 20 * sizes.len());
    for (count, (from, message)) in b.seen.messages.lock().iter().enumerate() {
        let (round, index) = (count / sizes.len(), count % sizes.len());
        assert_eq!(*from, 0);
        assert!(*message == pattern(sizes[index], (round * 100 + index) as u64), "message {count}");
    }
}

#[test]
fn every_way_to_send_keeps_the_order() {
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    let nodes = [&a, &b];
    let endpoint = &mut *to_b[0];
    let mut payloads: Vec<Vec<u8>> = (0..40).map(|n| pattern(50_000 + n, n as u64)).collect();
    send(&nodes, endpoint, b"first", b"");
    for (n, payload) in payloads.iter_mut().enumerate() {
        let header = [n as u8; 24];
        match n % 3 {
            0 => send(&nodes, endpoint, &header, payload),
            1 => {
                let mut fragment = None;
                common::until(&nodes, "a fragment", || {
                    fragment = endpoint.alloc(24 + payload.len(), FragmentKind::Host).unwrap();
                    fragment.is_some()
                });
                let mut fragment = fragment.unwrap();
                fragment.write(0, &header);
                fragment.write(24, payload);
                endpoint.send(fragment, 24 + payload.len()).unwrap();
            }
            _ => transfer(&nodes, &a, n as u64, |token| {
                // SAFETY: the payloads live until the end of the test and are not written.
                unsafe { endpoint.send_in_place(&header, region(payload), token) }
            }),
        }
    }
    common::until(&nodes, "all arrive", || b.received() == 41);
    for (n, (_, message)) in b.seen.messages.lock().iter().skip(1).enumerate() {
        assert_eq!(message[..24], [n as u8; 24]);
        assert!(message[24..] == payloads[n], "payload {n}");
    }
}

#[test]
fn device_fragments_hold_a_chunk_and_a_header() {
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&["device_chunk_size=1M", "device_chunks=2"]);
    let nodes = [&a, &b];
    let endpoint = &mut *to_b[0];
    send(&nodes, endpoint, b"first", b"");
    let capabilities = *endpoint.capabilities();
    assert!(capabilities.flags.contains(Flags::DEVICE_FRAGMENTS));
    assert_eq!(capabilities.device_max_send_size, (1 << 20) + MAX_HEADER);
    let mut first = endpoint.alloc(capabilities.device_max_send_size, FragmentKind::Device).unwrap().unwrap();
    let second = endpoint.alloc(1 << 20, FragmentKind::Device).unwrap().unwrap();
    assert!(
        endpoint.alloc(1 << 20, FragmentKind::Device).unwrap().is_none(),
        "device_chunks must limit allocated fragments"
    );
    drop(second);
    assert!(
        endpoint.alloc(1 << 20, FragmentKind::Device).unwrap().is_some(),
        "a dropped fragment must be available again"
    );
    // There are more small fragments, but a limited number.
    let small: Vec<_> = std::iter::from_fn(|| endpoint.alloc(64 << 10, FragmentKind::Device).unwrap()).collect();
    assert_eq!(small.len(), 16);
    drop(small);
    let message = pattern(capabilities.device_max_send_size, 5);
    first.write(0, &message);
    endpoint.send(first, message.len()).unwrap();
    common::until(&nodes, "it arrives", || b.received() == 2);
    assert!(b.seen.messages.lock()[1].1 == message);
    assert!(endpoint.alloc(capabilities.device_max_send_size + 1, FragmentKind::Device).is_err());
}

#[test]
fn a_peer_that_does_not_read_makes_the_link_busy() {
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&["btl_tcp_sndbuf=64K", "btl_tcp_rcvbuf=64K"]);
    let endpoint = &mut *to_b[0];
    send(&[&a, &b], endpoint, b"first", b"");
    let message = [7; 4096];
    let mut sent = 0;
    while endpoint.send_inline(&[], &message).unwrap() == Sent::Done {
        sent += 1;
        a.progress();
        assert!(sent < 10_000, "an unread connection takes a bounded amount");
    }
    // Fragments and transfers are limited as well.
    let mut fragments = 0;
    while let Some(fragment) = endpoint.alloc(4096, FragmentKind::Host).unwrap() {
        endpoint.send(fragment, 4096).unwrap();
        fragments += 1;
        assert!(fragments < 1000);
    }
    let mut memory = vec![1; 4096];
    let mut transfers = 0;
    // SAFETY: the memory outlives the pair and is not written to.
    while unsafe { endpoint.send_in_place(&[], region(&mut memory), Token(transfers)) }.unwrap() == Transfer::Started {
        transfers += 1;
        assert!(transfers < 1000);
    }
    let total = 1 + sent + fragments + transfers as usize;
    common::until(&[&a, &b], "all accepted messages arrive", || b.received() == total);
    common::until(&[&a, &b], "the link is free again", || endpoint.send_inline(&[], &message).unwrap() == Sent::Done);
    assert_eq!(a.seen.completed.lock().len(), transfers as usize);
}

#[test]
fn puts_write_the_registered_memory() {
    for links in ["btl_tcp_links=1", "btl_tcp_links=3"] {
        let Pair { a, b, mut to_b, mut to_a } = pair(&[links]);
        let nodes = [&a, &b];
        assert!(to_b[0].capabilities().flags.contains(Flags::PUT));
        let len = 5 << 20;
        let mut target = vec![0; len + 100];
        let mut source = pattern(len, 1);
        // SAFETY: the target outlives the registration and is only looked at after the put.
        let registration = unsafe { to_a[0].register(region(&mut target), Access::RemoteWrite) }.unwrap().unwrap();
        let handle = *registration.handle();
        transfer(&nodes, &a, 1, |token| {
            // SAFETY: the source outlives the put and is not written to.
            unsafe { to_b[0].put(&region(&mut source).into(), &Remote::at(&handle, 50), token) }
        });
        // The data is visible after the put completes here and a later message has arrived there, over any link.
        send(&nodes, &mut **to_b.last_mut().unwrap(), b"done", b"");
        common::until(&nodes, "the message arrives", || b.received() == 1);
        drop(registration);
        assert!(target[50..50 + len] == source);
        assert!(target[..50].iter().chain(&target[50 + len..]).all(|&byte| byte == 0));
        assert!(a.seen.failed.lock().is_empty() && b.seen.failed.lock().is_empty());
    }
}

#[test]
fn messages_overtake_a_long_put() {
    let Pair { a, b, mut to_b, mut to_a } = pair(&["btl_tcp_sndbuf=64K", "btl_tcp_rcvbuf=64K"]);
    let nodes = [&a, &b];
    let mut target = vec![0; 64 << 20];
    let mut source = vec![3; 64 << 20];
    // SAFETY: the target outlives the registration and is only looked at after the put.
    let registration = unsafe { to_a[0].register(region(&mut target), Access::RemoteWrite) }.unwrap().unwrap();
    send(&nodes, &mut *to_b[0], b"first", b"");
    // SAFETY: the source outlives the put and is not written to.
    let began =
        unsafe { to_b[0].put(&region(&mut source).into(), &Remote::at(registration.handle(), 0), Token(9)) }.unwrap();
    assert_eq!(began, Transfer::Started);
    send(&nodes, &mut *to_b[0], b"second", b"");
    common::until(&nodes, "the message arrives", || b.received() == 2);
    assert!(!a.completed(9), "the put must still be in flight");
    common::until(&nodes, "the put completes", || a.completed(9));
    send(&nodes, &mut *to_b[0], b"third", b"");
    common::until(&nodes, "the message arrives", || b.received() == 3);
    drop(registration);
    assert!(target == source);
}

#[test]
fn a_put_beyond_its_registration_is_refused_locally() {
    let Pair { mut to_b, mut to_a, a: _a, b: _b } = pair(&[]);
    let (mut target, mut source) = (vec![0; 100], vec![1; 101]);
    // SAFETY: the target outlives the registration and is not touched.
    let registration = unsafe { to_a[0].register(region(&mut target), Access::RemoteWrite) }.unwrap().unwrap();
    for (len, offset) in [(101, 0), (1, 100), (2, u64::MAX)] {
        // SAFETY: nothing is started.
        let result = unsafe {
            to_b[0].put(&region(&mut source[..len]).into(), &Remote::at(registration.handle(), offset), Token(0))
        };
        assert!(result.is_err(), "{len} bytes at {offset}");
    }
    let alien = RemoteHandle::new(b"of another transport").unwrap();
    // SAFETY: nothing is started.
    assert!(unsafe { to_b[0].put(&region(&mut source).into(), &Remote::at(&alien, 0), Token(0)) }.is_err());
    // SAFETY: as for the first registration.
    assert!(unsafe { to_a[0].register(region(&mut target), Access::RemoteRead) }.unwrap().is_none());
}

#[test]
fn a_put_to_unregistered_memory_breaks_the_connection() {
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    let nodes = [&a, &b];
    let mut source = vec![1; 1000];
    let forged = RemoteHandle::new(&[9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 1, 0, 0, 0, 0, 0]).unwrap();
    // SAFETY: the source outlives the pair and is not written to.
    transfer(&nodes, &a, 1, |token| unsafe {
        to_b[0].put(&region(&mut source).into(), &Remote::at(&forged, 0), token)
    });
    common::until(&nodes, "both know", || a.seen.failed.lock().len() == 1 && b.seen.failed.lock().len() == 1);
    let error = b.seen.failed.lock()[0].1.to_string();
    assert!(error.contains("was not registered"), "{error}");
    assert!(to_b[0].send_inline(b"x", b"").is_err());
}

#[test]
fn a_put_that_outlives_its_registration_is_drained() {
    let Pair { a, b, mut to_b, mut to_a } = pair(&["btl_tcp_sndbuf=64K", "btl_tcp_rcvbuf=64K"]);
    let nodes = [&a, &b];
    let mut target = vec![0; 8 << 20];
    let mut source = vec![1; 8 << 20];
    // SAFETY: the target outlives the registration.
    let registration = unsafe { to_a[0].register(region(&mut target), Access::RemoteWrite) }.unwrap().unwrap();
    let handle = *registration.handle();
    send(&nodes, &mut *to_b[0], b"first", b"");
    // SAFETY: the source outlives the put and is not written to.
    let began = unsafe { to_b[0].put(&region(&mut source).into(), &Remote::at(&handle, 0), Token(1)) }.unwrap();
    assert_eq!(began, Transfer::Started);
    b.progress();
    drop(registration);
    let written = target.iter().filter(|&&byte| byte == 1).count();
    common::until(&nodes, "the put completes", || a.completed(1));
    send(&nodes, &mut *to_b[0], b"second", b"");
    common::until(&nodes, "the message arrives", || b.received() == 2);
    assert_eq!(target.iter().filter(|&&byte| byte == 1).count(), written, "no byte may be written after the drop");
    assert!(b.seen.failed.lock().is_empty());
}

#[test]
fn a_peer_that_leaves_has_not_failed() {
    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    let nodes = [&a, &b];
    send(&nodes, &mut *to_b[0], b"ping", b"");
    common::until(&nodes, "it arrives", || b.received() == 1);
    send(&nodes, &mut *to_a[0], b"last words", b"");
    common::until(&nodes, "all is flushed", || b.btl.finalize());
    drop(to_a);
    drop(b);
    common::until(&[&a], "the last message arrives", || a.received() == 1);
    common::until(&[&a], "a report", || !a.seen.left.lock().is_empty());
    for _ in 0..10_000 {
        a.progress();
    }
    // Later operations on that peer return an error.
    assert!(to_b[0].send_inline(b"too late", b"").is_err());
    assert!(*a.seen.left.lock() == [(1, 1)] && a.seen.failed.lock().is_empty());
    drop(to_b);
    assert!(a.btl.finalize());
}

#[test]
fn a_link_closed_before_it_was_connected_is_an_error_to_the_peer() {
    let Pair { a, b, mut to_b, to_a } = pair(&[]);
    drop(to_a);
    common::until(&[&a, &b], "an error", || to_b[0].send_inline(b"x", b"").is_err());
    common::until(&[&a, &b], "a report", || a.seen.left.lock().len() == 1);
    assert!(a.seen.failed.lock().is_empty() && b.seen.failed.lock().is_empty());
}

#[test]
fn progress_within_an_upcall_returns_at_once() {
    use cableway_btl::{Error, Received, Upcalls};
    struct Reentrant<'a>(&'a common::Node, std::sync::atomic::AtomicUsize);
    impl Upcalls for Reentrant<'_> {
        fn receive(&self, _: u32, _: Received<'_>) {
            assert_eq!(self.0.btl.progress(self), 0);
            self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        fn completed(&self, _: Token, _: Result<(), Error>) {}
        fn peer_failed(&self, _: u32, _: Error) {}
        fn peer_left(&self, _: u32) {}
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    let upcalls = Reentrant(&b, std::sync::atomic::AtomicUsize::new(0));
    send(&[&a, &b], &mut *to_b[0], b"first", b"");
    common::until(&[&a], "it arrives", || {
        b.btl.progress(&upcalls);
        b.received() + upcalls.1.load(std::sync::atomic::Ordering::Relaxed) == 1
    });
}

#[test]
fn limits_are_errors_not_truncation() {
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    let endpoint = &mut *to_b[0];
    send(&[&a, &b], endpoint, b"first", b"");
    let capabilities = *endpoint.capabilities();
    assert!(endpoint.send_inline(&[], &vec![0; capabilities.inline_limit + 1]).is_err());
    let mut long = vec![0; capabilities.device_max_send_size];
    // SAFETY: nothing is started.
    assert!(unsafe { endpoint.send_in_place(&[1], region(&mut long), Token(0)) }.is_err());
    let fragment = endpoint.alloc(10, FragmentKind::Host).unwrap().unwrap();
    let too_much = fragment.capacity() + 1;
    assert!(endpoint.send(fragment, too_much).is_err());
}

/// Answers from within upcalls may be batched. They are sent before `progress` returns, in order.
#[test]
fn answers_from_upcalls_keep_their_order() {
    use cableway_btl::{Endpoint, Error, Received, Upcalls};
    use parking_lot::Mutex;

    const MESSAGES: usize = 200;
    struct Echo {
        link: Mutex<Box<dyn Endpoint>>,
        /// The lengths of answers for which the link was busy.
        owed: Mutex<std::collections::VecDeque<usize>>,
    }
    impl Echo {
        fn pay(&self) {
            let mut owed = self.owed.lock();
            while let Some(&len) = owed.front() {
                if !common::try_send(&mut **self.link.lock(), &(len as u64).to_le_bytes(), &vec![7; len]).unwrap() {
                    return;
                }
                owed.pop_front();
            }
        }
    }
    impl Upcalls for Echo {
        fn receive(&self, _: u32, message: Received<'_>) {
            let mut number = [0; 8];
            message.bytes().copy_to(&mut number);
            let number = u64::from_le_bytes(number) as usize;
            // Short answers, answers that are never batched, and answers in fragments.
            self.owed.lock().push_back(number + [0, 3000, 0, 40_000][number % 4]);
            self.pay();
        }
        fn completed(&self, _: Token, _: Result<(), Error>) {}
        fn peer_failed(&self, peer: u32, error: Error) {
            panic!("peer {peer} failed: {error}");
        }
        fn peer_left(&self, peer: u32) {
            panic!("peer {peer} left");
        }
    }

    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    send(&[&a, &b], &mut *to_b[0], b"first", b"");
    common::until(&[&a, &b], "it arrives", || b.received() == 1);
    let echo = Echo { link: Mutex::new(to_a.remove(0)), owed: Mutex::default() };
    for number in 0..MESSAGES as u64 {
        assert_eq!(to_b[0].send_inline(&number.to_le_bytes(), b"").unwrap(), Sent::Done);
    }
    common::until(&[&a], "all answers arrive", || {
        b.btl.progress(&echo);
        echo.pay();
        a.received() == MESSAGES
    });
    for (number, (_, message)) in a.seen.messages.lock().iter().enumerate() {
        let len = number + [0, 3000, 0, 40_000][number % 4];
        assert_eq!((message.len(), &message[..8]), (8 + len, &(len as u64).to_le_bytes()[..]), "answer {number}");
    }
}
