//! Devices that fail while connections stand. Each failure is an error, and the remains account for every message.

mod common;

use std::sync::Arc;

use cableway_btl::{Access, Endpoint, Error, Remote, Sent, Token, Transfer};
use cableway_btl_openib::Openib;
use common::{Node, connect, has_device, node, open, pattern, region, send, until};

/// The peer timeout, so that a silent device is detected within seconds.
const SOON: &str = "peer_timeout=4s";
const LISTS: [&str; 2] = ["S,4K,256,64,128", "P,256,128,32,64:S,4K,128,32,64"];

struct Both {
    /// The node whose device fails.
    a: Node,
    transport: Arc<Openib>,
    b: Node,
    to_b: Box<dyn Endpoint>,
    to_a: Box<dyn Endpoint>,
}

fn both(list: &str) -> Both {
    let list = format!("btl_openib_receive_queues={list}");
    let assignments = [SOON, &*list];
    let transport = open(0, 3, &assignments);
    let (a, b) = (Node::of(0, Arc::clone(&transport) as _), node(1, 3, &assignments));
    let (to_b, to_a) = (connect(&a, &b), connect(&b, &a));
    Both { a, transport, b, to_b, to_a }
}

fn messages(seed: u64) -> Vec<Vec<u8>> {
    (0..100).map(|n| pattern([8, 100, 300, 2000][n as usize % 4], seed + n)).collect()
}

/// Sends as many messages as the link accepts.
fn push(endpoint: &mut dyn Endpoint, messages: &[Vec<u8>], taken: &mut usize) {
    while let Some(message) = messages.get(*taken)
        && endpoint.send_inline(message, b"").is_ok_and(|sent| sent == Sent::Done)
    {
        *taken += 1;
    }
}

/// Asserts that the messages delivered at the other end and the remains at this end are all accepted messages, each
/// once and in order, in both directions.
fn nothing_is_missing(nodes: [&Node; 2], taken: [&[Vec<u8>]; 2]) {
    let remains = [0, 1].map(|side| nodes[side].btl.remains(nodes[1 - side].rank).expect("told once"));
    for side in [0, 1] {
        let (here, there) = (&remains[side], &remains[1 - side]);
        let seen = nodes[1 - side].seen.messages.lock();
        let received = seen.iter().filter(|(from, _)| *from == nodes[side].rank).map(|(_, message)| &message[..]);
        assert_eq!(there.received, received.clone().count() as u64);
        assert!(here.delivered <= there.received, "{} {}", here.delivered, there.received);
        let missing = here.uncertain.iter().skip((there.received - here.delivered) as usize);
        let all: Vec<&[u8]> = received.chain(missing.map(|message| &message[..])).collect();
        assert!(all.iter().eq(taken[side].iter()), "{} messages of {}", all.len(), taken[side].len());
    }
}

fn broke(error: &Error) -> bool {
    matches!(error, Error::PeerGone { .. })
}

/// The kernel's events for a removed device, an overflow, and a failed receive queue.
#[test]
fn fatal_device_events_fail_every_link() {
    if !has_device() {
        return;
    }
    for (kind, list) in [(8, LISTS[0]), (8, LISTS[1]), (0, LISTS[0]), (14, LISTS[1])] {
        let Both { a, transport, b, mut to_b, mut to_a } = both(list);
        let c = node(2, 3, &[SOON, &format!("btl_openib_receive_queues={list}")]);
        let (mut to_c, mut from_c) = (connect(&a, &c), connect(&c, &a));
        let nodes = [&a, &b, &c];
        let (forth, back) = (messages(0), messages(500));
        send(&nodes, &mut *to_b, &forth[0], b"");
        let (mut sent, mut answered) = (1, 0);
        until(&nodes, "some arrive", || {
            push(&mut *to_b, &forth[..50], &mut sent);
            push(&mut *to_a, &back[..50], &mut answered);
            a.received() >= 10 && b.received() >= 10
        });
        // One transfer is in flight, and more messages than the peer has consumed.
        let mut source = pattern(1 << 20, 9);
        let mut target = vec![0; 1 << 20];
        // SAFETY: the memory outlives the registration and is not written to.
        let registration = unsafe { to_a.register(region(&mut source), Access::RemoteRead) }.unwrap().unwrap();
        // SAFETY: no code reads the target before the transfer ends.
        let started =
            unsafe { to_b.get(&region(&mut target).into(), &Remote::at(registration.handle(), 0), Token(7)) }.unwrap();
        push(&mut *to_b, &forth, &mut sent);
        push(&mut *to_a, &back, &mut answered);
        transport.hear_event(kind);
        until(&[&a], "every link fails", || a.failures() == 2);
        assert!(started == Transfer::Busy || a.completed(7), "event {kind}");
        assert!(a.seen.failed.lock().iter().all(|(_, error)| broke(error)));
        assert!(to_b.send_inline(b"x", b"").is_err() && to_c.send_inline(b"x", b"").is_err());
        // The peer's device detects the failure. A node that has never connected can no longer do so.
        until(&nodes, "the others detect the failure", || {
            push(&mut *to_a, &back, &mut answered);
            from_c.send_inline(b"x", b"").is_err() && b.failures() == 1 && c.failures() == 1
        });
        assert!(broke(&b.seen.failed.lock()[0].1));
        assert!(matches!(c.seen.failed.lock()[0].1, Error::Unreachable { .. }));
        nothing_is_missing([&a, &b], [&forth[..sent], &back[..answered]]);
        assert_eq!((a.failures(), a.departures()), (2, 0), "said once");
        assert!(a.btl.finalize(), "a failed device must not delay the end");
        drop(registration);
    }
}

/// More completions than the queue can hold: the device loses some and reports the overflow.
#[test]
fn an_overflowing_completion_queue_breaks_links_and_loses_no_message() {
    if !has_device() {
        return;
    }
    for list in LISTS {
        let Both { a, transport, b, mut to_b, mut to_a } = both(list);
        let nodes = [&a, &b];
        let (forth, back) = (messages(0), messages(500));
        let (mut sent, mut answered) = (0, 0);
        until(&nodes, "some arrive", || {
            push(&mut *to_b, &forth[..20], &mut sent);
            push(&mut *to_a, &back[..20], &mut answered);
            a.received() == 20 && b.received() == 20
        });
        transport.shrink_completions(8).unwrap();
        // It does not poll while its peer fills its buffers.
        until(&[&b], "the peer has sent more than there is room for", || {
            push(&mut *to_a, &back, &mut answered);
            answered == back.len() || b.failures() == 1
        });
        assert!(answered > 40, "{answered}");
        until(&nodes, "both know", || a.failures() == 1 && b.failures() == 1);
        assert!(broke(&a.seen.failed.lock()[0].1) && broke(&b.seen.failed.lock()[0].1), "{:?}", a.seen.failed.lock());
        assert!(a.received() < answered, "no completion was lost, so this tests nothing");
        nothing_is_missing([&a, &b], [&forth[..sent], &back[..answered]]);
        assert!(to_b.send_inline(b"x", b"").is_err() && to_a.send_inline(b"x", b"").is_err());
    }
}
