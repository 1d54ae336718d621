//! Links that close or fail, before and after they connect.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Node, Pair, connect, has_device, node, open, pair, pattern, send, until};
use cableway_btl::{Endpoint, Error, FragmentKind, Sent};

#[test]
fn an_orderly_end_is_no_failure() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    let nodes = [&a, &b];
    send(&nodes, &mut *to_b, b"ping", b"");
    until(&nodes, "it arrives", || b.received() == 1);
    send(&nodes, &mut *to_a, b"last words", b"");
    until(&nodes, "all is flushed", || b.btl.finalize());
    drop(to_a);
    drop(b);
    until(&[&a], "the departure is reported", || a.departures() == 1);
    assert_eq!(a.received(), 1, "the last message must arrive before the departure");
    assert!(matches!(to_b.send_inline(b"too late", b""), Err(Error::PeerLeft { peer: 1, .. })));
    assert!(!a.btl.is_connected(1));
    for _ in 0..10_000 {
        a.progress();
    }
    assert_eq!((a.failures(), a.departures()), (0, 1));
    drop(to_b);
    assert!(a.btl.finalize());
}

/// Goodbyes need completions like other work. Goodbyes to thousands of peers may exceed the completion queue.
#[test]
fn goodbyes_wait_for_room_in_the_completion_queue() {
    const MANY: isize = 1 << 20;
    if !has_device() {
        return;
    }
    let transport = open(0, 3, &[]);
    let a = Node::of(0, Arc::clone(&transport) as _);
    let (b, c) = (node(1, 3, &[]), node(2, 3, &[]));
    let nodes = [&a, &b, &c];
    let mut endpoints = [connect(&a, &b), connect(&a, &c)];
    for endpoint in &mut endpoints {
        send(&nodes, &mut **endpoint, b"hello", b"");
    }
    until(&nodes, "they arrive", || b.received() == 1 && c.received() == 1);
    transport.await_completions(MANY);
    assert!(!a.btl.finalize());
    for endpoint in &mut endpoints {
        assert_eq!(endpoint.send_inline(b"x", b"").unwrap(), Sent::Busy, "the goodbye must not be sent yet");
    }
    transport.await_completions(-MANY);
    until(&nodes, "all is flushed", || a.btl.finalize());
    until(&nodes, "both receive the goodbye", || b.departures() == 1 && c.departures() == 1);
    assert_eq!((b.failures(), c.failures()), (0, 0));
}

#[test]
fn a_link_closed_before_it_was_connected_is_an_error_to_the_peer() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a } = pair(&[]);
    drop(to_a);
    until(&[&a, &b], "an error", || to_b.send_inline(b"x", b"").is_err());
    until(&[&a, &b], "a report", || a.departures() == 1);
    assert_eq!((a.failures(), b.failures()), (0, 0));
}

/// The peer lives and another transport may reach it, so it must not be reported as having left.
#[test]
fn a_peer_that_could_not_connect_has_not_left() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a } = pair(&[]);
    b.btl.break_off(0);
    until(&[&b], "the connection fails", || b.failures() == 1);
    drop(to_a);
    until(&[&a, &b], "an error", || to_b.send_inline(b"x", b"").is_err());
    until(&[&a, &b], "a report", || a.failures() == 1);
    assert!(matches!(a.seen.failed.lock()[0].1, Error::Unreachable { peer: 1, .. }));
    assert_eq!((a.departures(), b.failures()), (0, 1));
}

/// At any point: an emulated machine takes about 100 ms to make a queue pair.
#[test]
fn a_peer_that_ends_during_connection_setup_has_left() {
    const ROUNDS: u32 = 8;
    if !has_device() {
        return;
    }
    for round in 0..=ROUNDS {
        // A request to a process that has left is answered by silence, and fails after this time.
        let Pair { a, b, mut to_b, mut to_a } = pair(&["peer_timeout=4s"]);
        to_b.connect().unwrap();
        if round % 2 == 1 {
            to_a.connect().unwrap();
        }
        match round {
            ROUNDS => until(&[&b], "it is connected", || b.btl.is_connected(0)),
            _ => std::thread::sleep(round * Duration::from_millis(25)),
        }
        until(&[&b], "all is flushed", || b.btl.finalize());
        drop(to_a);
        drop(b);
        until(&[&a], "a report", || a.departures() + a.failures() == 1);
        // If b's thread ends before a's datagram arrives, a cannot learn whether b left.
        let error = a.seen.failed.lock().first().map(|(_, error)| error.clone());
        assert!(matches!(error, None | Some(Error::Unreachable { .. })), "{error:?}");
        assert!(error.is_none() || round < ROUNDS, "b was connected, and said goodbye: {error:?}");
        assert!(to_b.send_inline(b"x", b"").is_err());
    }
}

#[test]
fn a_peer_that_was_never_there_is_an_error() {
    if !has_device() {
        return;
    }
    let (a, b) = (node(0, 2, &["peer_timeout=2s"]), node(1, 2, &[]));
    let mut to_b = connect(&a, &b);
    drop(b);
    until(&[&a], "an error", || to_b.send_inline(b"x", b"").is_err());
    until(&[&a], "a report", || a.failures() == 1);
    assert!(matches!(a.seen.failed.lock()[0].1, Error::Unreachable { peer: 1, .. }));
}

/// The remains of both ends together show which messages must be sent again after a failure.
#[test]
fn remains_are_the_undelivered_messages() {
    if !has_device() {
        return;
    }
    // The peer reports consumption of every 16th message, and of every fourth small one: the twelfth of these is the
    // 15th of all.
    for (list, told) in [("S,8K,64,8,32", 16), ("P,1K,64,16,4:S,8K,64,8,32", 15)] {
        what_is_left(list, told);
    }
}

fn what_is_left(list: &str, told: u64) {
    let Pair { a, b, mut to_b, mut to_a } = pair(&[&crate::queues::listed(list)]);
    let sizes = [10, 128, 129, 3000];
    let messages: Vec<Vec<u8>> = (0..40).map(|n| pattern(sizes[n % sizes.len()], n as u64)).collect();
    let take = |to_b: &mut dyn Endpoint, message: &[u8]| {
        until(&[&a], "the message is accepted", || to_b.send_inline(message, b"").unwrap() == Sent::Done);
    };
    for (n, message) in messages.iter().enumerate() {
        if n < 20 {
            send(&[&a, &b], &mut *to_b, message, b"");
        } else {
            take(&mut *to_b, message);
        }
        if n == 19 {
            until(&[&a, &b], "they arrive", || b.received() == 20);
            // A queue pair keeps its order, so the report of their consumption arrives before this.
            send(&[&a, &b], &mut *to_a, b"after the report", b"");
            until(&[&a, &b], "the report arrives", || a.received() == 1);
        }
    }
    let mut fragment = to_b.alloc(5000, FragmentKind::Device).unwrap().unwrap();
    fragment.write(0, &pattern(5000, 99));
    assert!(a.btl.remains(1).is_none(), "the link is not broken");
    for (node, peer) in [(&a, 1), (&b, 0)] {
        node.btl.break_off(peer);
        until(&[node], "a report", || node.failures() == 1);
    }
    to_b.send(fragment, 5000).unwrap();
    let all = [&messages[..], &[pattern(5000, 99)]].concat();
    let (here, there) = (a.btl.remains(1).unwrap(), b.btl.remains(0).unwrap());
    assert_eq!(there.received as usize, b.received());
    assert!(here.delivered <= there.received && there.received <= 40, "{} {}", here.delivered, there.received);
    assert!(here.delivered >= told, "the peer has reported its consumption: {}", here.delivered);
    assert_eq!(here.uncertain.len(), all.len() - here.delivered as usize);
    for (left, sent) in here.uncertain.iter().zip(&all[here.delivered as usize..]) {
        assert!(**left == **sent);
    }
    assert_eq!((here.received, there.uncertain.len()), (1, 1));
    assert!(a.btl.remains(1).is_none() && b.btl.remains(0).is_none(), "told once");
    assert!(to_b.alloc(100, FragmentKind::Host).is_err());
}

/// A message may arrive before the service thread learns that its connection is established.
#[test]
fn a_connection_given_up_as_it_is_made_is_given_up_at_both_ends() {
    if !has_device() {
        return;
    }
    for _ in 0..5 {
        let Pair { a, b, mut to_b, to_a: _to_a } = pair(&["peer_timeout=4s"]);
        to_b.connect().unwrap();
        b.btl.break_off(0);
        until(&[&b], "a report", || b.failures() == 1);
        until(&[&a, &b], "the peer learns of the failure", || a.failures() + a.departures() == 1);
    }
}

/// Heartbeats detect a peer on another node, which the system does not watch.
#[test]
fn a_connected_peer_whose_device_falls_silent_is_an_error() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&["peer_timeout=4s"]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    until(&[&a, &b], "it arrives", || b.received() == 1);
    b.btl.break_off(0);
    until(&[&b], "a report", || b.failures() == 1);
    until(&[&a], "a report", || a.failures() == 1);
    assert!(matches!(a.seen.failed.lock()[0].1, Error::PeerGone { peer: 1, .. }));
    assert!(to_b.send_inline(b"x", b"").is_err());
}
