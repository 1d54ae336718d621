//! Tests the BTL contract on connections between transports of one process.

mod common;

#[path = "contract/closing.rs"]
mod closing;
#[path = "contract/queues.rs"]
mod queues;
#[path = "contract/rdma.rs"]
mod rdma;
#[path = "contract/sleeping.rs"]
mod sleeping;

use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_btl::{Error, FragmentKind, MAX_HEADER, Received, Sent, Token, Upcalls};
use common::{Node, Pair, connect, has_device, node, pair, pattern, send, until};

#[test]
fn messages_of_every_size_arrive_in_order() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    let endpoint = &mut *to_b;
    let (limit, longest) = (endpoint.capabilities().inline_limit, endpoint.capabilities().max_send_size);
    let sizes = [0, 1, 7, 8, 9, 100, 128, 129, 255, 1000, limit - 1, limit, limit + 1, 12288, longest - 1, longest];
    for round in 0..10 {
        for (index, &size) in sizes.iter().enumerate() {
            let message = pattern(size, round * 100 + index as u64);
            let header = size.min(MAX_HEADER);
            send(&[&a, &b], endpoint, &message[..header], &message[header..]);
        }
    }
    until(&[&a, &b], "all arrive", || b.received() == 10 * sizes.len());
    for (count, (from, message)) in b.seen.messages.lock().iter().enumerate() {
        let (round, index) = (count / sizes.len(), count % sizes.len());
        assert_eq!(*from, 0);
        assert!(*message == pattern(sizes[index], (round * 100 + index) as u64), "message {count}");
    }
}

#[test]
fn both_may_connect_at_once() {
    if !has_device() {
        return;
    }
    for _ in 0..5 {
        let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
        let (mut sent_a, mut sent_b) = (false, false);
        until(&[&a, &b], "both are connected", || {
            sent_a = sent_a || to_b.send_inline(b"from a", b"").unwrap() == Sent::Done;
            sent_b = sent_b || to_a.send_inline(b"from b", b"").unwrap() == Sent::Done;
            sent_a && sent_b
        });
        until(&[&a, &b], "both messages arrive", || a.received() == 1 && b.received() == 1);
        assert_eq!(b.seen.messages.lock()[0], (0, b"from a".to_vec()));
        assert_eq!(a.seen.messages.lock()[0], (1, b"from b".to_vec()));
    }
}

#[test]
fn a_connection_is_made_while_the_peer_computes() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    until(&[&a], "a message is accepted", || to_b.send_inline(b"hello", b"").unwrap() == Sent::Done);
    assert_eq!(b.received(), 0);
    until(&[&b], "it arrives", || b.received() == 1);
}

#[test]
fn many_messages_do_not_need_the_receiver_to_answer() {
    if !has_device() {
        return;
    }
    // More messages than any window, in both directions, with few buffers.
    let Pair { a, b, mut to_b, mut to_a } = pair(&["btl_openib_receive_queues=S,4K,16,4,8"]);
    let count = 2000_u32;
    let (mut forth, mut back) = (0, 0);
    until(&[&a, &b], "all are sent", || {
        if forth < count && to_b.send_inline(&forth.to_le_bytes(), b"forth").unwrap() == Sent::Done {
            forth += 1;
        }
        if back < count && to_a.send_inline(&back.to_le_bytes(), b"back").unwrap() == Sent::Done {
            back += 1;
        }
        forth == count && back == count
    });
    until(&[&a, &b], "all arrive", || a.received() == count as usize && b.received() == count as usize);
    for node in [&a, &b] {
        for (expected, (_, message)) in (0_u32..).zip(node.seen.messages.lock().iter()) {
            assert_eq!(message[..4], expected.to_le_bytes());
        }
    }
}

#[test]
fn a_peer_that_does_not_progress_makes_the_link_busy() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&["btl_openib_receive_queues=S,64K,64,8,16"]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    let mut sent = 0;
    while to_b.send_inline(&[], &[7; 100]).unwrap() == Sent::Done {
        sent += 1;
        a.progress();
        assert!(sent <= 16, "the window is 16");
    }
    assert!(to_b.alloc(4096, FragmentKind::Host).unwrap().is_none());
    until(&[&a, &b], "all accepted messages arrive", || b.received() == 1 + sent);
    until(&[&a, &b], "the link is free again", || to_b.send_inline(&[], &[7; 100]).unwrap() == Sent::Done);
}

#[test]
fn dropped_fragments_make_room() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } =
        pair(&["btl_openib_receive_queues=S,64K,64,8,16", "btl_openib_send_depth=31"]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    until(&[&a, &b], "it arrives", || b.received() == 1);
    for _ in 0..3 {
        let mut out = Vec::new();
        while let Some(fragment) = to_b.alloc(30_000, FragmentKind::Device).unwrap() {
            out.push(fragment);
            assert!(out.len() <= 16);
        }
        assert!(out.len() >= 15);
        assert_eq!(to_b.send_inline(b"no room", b"").unwrap(), Sent::Busy);
    }
    // Accepted messages are always sent, in the order of the calls.
    let first = to_b.alloc(100, FragmentKind::Host).unwrap().unwrap();
    let second = to_b.alloc(100, FragmentKind::Host).unwrap().unwrap();
    for (mut fragment, text) in [(second, b"second taken"), (first, b"first taken!")] {
        fragment.write(0, text);
        to_b.send(fragment, text.len()).unwrap();
    }
    until(&[&a, &b], "they arrive", || b.received() == 3);
    assert_eq!(b.seen.messages.lock()[1].1, b"second taken");
    assert!(to_b.alloc(to_b.capabilities().max_send_size + 1, FragmentKind::Host).is_err());
}

#[test]
fn kept_messages_do_not_change() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&["btl_openib_receive_queues=S,8K,32,8,16"]);
    let nodes = [&a, &b];
    b.seen.keep.store(true, Ordering::Relaxed);
    for n in 0..200 {
        send(&nodes, &mut *to_b, &pattern(3000, n), b"");
    }
    until(&nodes, "all arrive", || b.received() == 200);
    let kept = std::mem::take(&mut *b.seen.retained.lock());
    assert!(kept.len() >= 8, "{} were kept", kept.len());
    assert!(kept.len() <= 24, "{} were kept: senders starve", kept.len());
    for (n, message) in (0..).zip(&kept) {
        let mut bytes = vec![0; message.bytes().len()];
        message.bytes().copy_to(&mut bytes);
        assert!(bytes == pattern(3000, n), "message {n} was overwritten");
    }
    // Any thread may drop them. Their buffers are then used again.
    std::thread::spawn(move || drop(kept)).join().unwrap();
    for n in 0..200 {
        send(&nodes, &mut *to_b, &pattern(3000, n), b"");
    }
    until(&nodes, "they arrive", || b.received() == 400);
    assert!(b.seen.retained.lock().len() >= 8);
}

#[test]
fn progress_within_an_upcall_returns_at_once() {
    if !has_device() {
        return;
    }
    struct Reentrant<'a>(&'a Node, AtomicUsize);
    impl Upcalls for Reentrant<'_> {
        fn receive(&self, _: u32, _: Received<'_>) {
            assert_eq!(self.0.btl.progress(self), 0);
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        fn completed(&self, _: Token, _: Result<(), Error>) {}
        fn peer_failed(&self, _: u32, _: Error) {}
        fn peer_left(&self, _: u32) {}
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    let upcalls = Reentrant(&b, AtomicUsize::new(0));
    until(&[&a], "the message is accepted", || {
        b.btl.progress(&upcalls);
        to_b.send_inline(b"first", b"").unwrap() == Sent::Done
    });
    until(&[&a], "it arrives", || {
        b.btl.progress(&upcalls);
        upcalls.1.load(Ordering::Relaxed) == 1
    });
}

#[test]
fn four_processes_reach_each_other() {
    if !has_device() {
        return;
    }
    let nodes: Vec<Node> = (0..4).map(|rank| node(rank, 4, &[])).collect();
    let all: Vec<&Node> = nodes.iter().collect();
    let mut endpoints = Vec::new();
    for from in &nodes {
        for to in nodes.iter().filter(|to| to.rank != from.rank) {
            endpoints.push((from.rank, connect(from, to)));
        }
    }
    for round in 0..50_u32 {
        for (from, endpoint) in &mut endpoints {
            send(&all, &mut **endpoint, &from.to_le_bytes(), &round.to_le_bytes());
        }
    }
    until(&all, "all arrive", || nodes.iter().all(|node| node.received() == 150));
    for node in &nodes {
        for peer in (0..4).filter(|&peer| peer != node.rank) {
            let messages = node.seen.messages.lock();
            let mine = messages.iter().filter(|(from, _)| *from == peer);
            for (round, (_, message)) in (0_u32..).zip(mine) {
                assert_eq!(message[..4], peer.to_le_bytes());
                assert_eq!(message[4..], round.to_le_bytes());
            }
        }
    }
}
