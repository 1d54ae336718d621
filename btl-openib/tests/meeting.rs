//! Tests of connection setup: simultaneous, with dying peers, and with peers that must be refused.

mod common;

use std::time::Duration;

use cableway_btl::{Endpoint, Error, FragmentKind, Sent};
use common::{Node, connect, has_device, is_iwarp, node, node_of, send, try_open, until};

#[test]
fn all_processes_connect_to_all_at_once() {
    const NODES: u32 = 6;
    if !has_device() {
        return;
    }
    let nodes: Vec<Node> = (0..NODES).map(|rank| node(rank, NODES, &[])).collect();
    let all: Vec<&Node> = nodes.iter().collect();
    let pairs = nodes.iter().flat_map(|from| nodes.iter().map(move |to| (from, to)));
    let mut endpoints: Vec<(u32, Box<dyn Endpoint>)> =
        pairs.filter(|(from, to)| from.rank != to.rank).map(|(from, to)| (from.rank, connect(from, to))).collect();
    for (_, endpoint) in &mut endpoints {
        endpoint.connect().unwrap();
    }
    for (from, endpoint) in &mut endpoints {
        send(&all, &mut **endpoint, &from.to_le_bytes(), b"");
    }
    until(&all, "all arrive", || nodes.iter().all(|node| node.received() == NODES as usize - 1));
    for node in &nodes {
        let mut senders: Vec<u32> = node.seen.messages.lock().iter().map(|(from, _)| *from).collect();
        senders.sort_unstable();
        assert_eq!(senders, (0..NODES).filter(|&rank| rank != node.rank).collect::<Vec<_>>());
        assert_eq!(node.failures(), 0);
    }
}

#[test]
fn a_process_without_the_secret_is_not_connected() {
    if !has_device() {
        return;
    }
    let (a, b, c) = (node_of(7, 0, 3, &["peer_timeout=3s"]), node(1, 3, &[]), node(2, 3, &[]));
    let mut to_b = connect(&a, &b);
    until(&[&a, &b], "an error", || to_b.send_inline(b"let me in", b"").is_err());
    until(&[&a, &b], "a report", || a.failures() == 1);
    assert!(matches!(a.seen.failed.lock()[0].1, Error::Unreachable { peer: 1, .. }));
    // Other connections are unaffected.
    let mut from_c = connect(&c, &b);
    send(&[&b, &c], &mut *from_c, b"hello", b"");
    until(&[&b, &c], "it arrives", || b.received() == 1);
    assert_eq!((b.failures(), b.seen.messages.lock()[0].clone()), (0, (2, b"hello".to_vec())));
}

/// Senders rely on the message size in a card, so smaller buffers must be refused.
#[test]
fn a_peer_with_smaller_buffers_than_its_card_says_is_refused() {
    // The offset of the longest message in a card.
    const LONGEST: usize = 32;
    if !has_device() {
        return;
    }
    for met in [false, true] {
        let (a, b) = (node(0, 2, &["btl_openib_receive_queues=S,1M,16"]), node(1, 2, &[]));
        let mut to_a = connect(&b, &a);
        if met {
            send(&[&a, &b], &mut *to_a, b"hello", b"");
            until(&[&a, &b], "it arrives", || a.received() == 1);
        }
        let mut card = b.btl.card();
        card[LONGEST..LONGEST + 4].copy_from_slice(&(1_u32 << 20).to_le_bytes());
        let mut to_b = a.btl.connect(1, &card).unwrap().pop().unwrap();
        let longest = to_b.capabilities().max_send_size;
        assert_eq!(longest, 1 << 20);
        until(&[&a, &b], "the connection fails", || match to_b.alloc(longest, FragmentKind::Host) {
            Ok(fragment) => fragment.is_some_and(|fragment| panic!("{} for {longest}", fragment.capacity())),
            Err(_) => true,
        });
        until(&[&a], "the failure is reported", || a.failures() == 1);
    }
}

/// The offsets in a card: the port's IPv4 address, the listener's address, and the listener's port number.
const GID: usize = 8 + 12;
const LISTENER: usize = 64 + 12;
const LISTENER_PORT: usize = 80;

/// Where a card holds the addresses for finding a process by IP.
fn address(card: &[u8]) -> [u8; 4] {
    let at = if is_iwarp() { LISTENER } else { GID };
    card[at..at + 4].try_into().unwrap()
}

/// Moves the card of a process to another address.
fn moved(card: &[u8], ip: [u8; 4]) -> Vec<u8> {
    let mut card = card.to_vec();
    card[GID..GID + 4].copy_from_slice(&ip);
    if card[LISTENER_PORT..LISTENER_PORT + 2] != [0, 0] {
        card[LISTENER..LISTENER + 4].copy_from_slice(&ip);
    }
    card
}

/// Addresses on the network of this machine's device, and outside of it; the partition.
#[test]
fn peers_are_reached_where_networks_and_partitions_lead() {
    // The offset of the partition in a card.
    const KEY: usize = 82;
    if !has_device() {
        return;
    }
    let (a, b) = (node(0, 3, &[]), node(1, 3, &[]));
    let away = node(0, 3, &["btl_openib_allow_different_subnets=yes"]);
    let reach = |from: &Node, card: &[u8]| !from.btl.connect(2, card).unwrap().is_empty();
    let card = b.btl.card();
    let own = address(&card);
    assert!(reach(&a, &moved(&card, [own[0], own[1], own[2], 77])));
    // An address of a documentation network.
    let nowhere = moved(&card, [198, 51, 100, 7]);
    assert!(!reach(&a, &nowhere) && reach(&away, &nowhere));
    if is_iwarp() {
        return println!("skipped: iWARP has no partitions");
    }
    assert_eq!(card[KEY..KEY + 2], [0xff, 0xff]);
    let partition = |key: u16| {
        let mut card = card.clone();
        card[KEY..KEY + 2].copy_from_slice(&key.to_le_bytes());
        card
    };
    assert!(reach(&a, &partition(0x7fff)) && reach(&a, &partition(0)) && !reach(&a, &partition(0x8001)));
    let named = node(1, 3, &["btl_openib_ib_pkey_val=0x7fff"]);
    assert_eq!(named.btl.card()[KEY..KEY + 2], [0xff, 0xff]);
    let mut to_a = connect(&named, &a);
    send(&[&a, &named], &mut *to_a, b"hello", b"");
    until(&[&a, &named], "it arrives", || a.received() == 1);
    for (assignment, said) in [
        ("btl_openib_ib_pkey_val=0x8001", "port 1 has no partition 0x8001, but 0xffff"),
        ("btl_openib_pkey_index=900", "port 1 has no entry 900, but 0xffff"),
    ] {
        let error = try_open(1, 3, &[assignment]).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// The attempt must not delay the end of this process either.
#[test]
fn an_absent_host_does_not_delay_other_peers() {
    if !has_device() {
        return;
    }
    let (a, b) = (node(0, 3, &["peer_timeout=20s"]), node(1, 3, &[]));
    let card = b.btl.card();
    let own = address(&card);
    let mut to_nobody = a
        .btl
        .connect(2, &moved(&card, [own[0], own[1], own[2], 77]))
        .unwrap()
        .pop()
        .expect("an address that could be reached");
    to_nobody.connect().unwrap();
    let mut to_b = connect(&a, &b);
    send(&[&a, &b], &mut *to_b, b"hello", b"");
    until(&[&a, &b], "it arrives", || b.received() == 1);
    assert_eq!(a.failures(), 0, "the attempt must still be pending");
    until(&[&a, &b], "an error", || to_nobody.send_inline(b"x", b"").is_err());
    until(&[&a, &b], "a report", || a.failures() == 1);
    assert!(matches!(a.seen.failed.lock()[0], (2, Error::Unreachable { peer: 2, .. })));
    drop((to_b, a));
}

/// Either side is the active one, and the peer dies at every stage.
#[test]
fn a_peer_that_dies_during_connection_setup_harms_no_other_peer() {
    if !has_device() {
        return;
    }
    for round in 0..6 {
        let [a, b, c] = [0, 1, 2].map(|rank| node(rank, 3, &["peer_timeout=10s"]));
        let (mut to_b, mut to_a, mut from_c) = (connect(&a, &b), connect(&b, &a), connect(&c, &b));
        to_b.connect().unwrap();
        if round % 2 == 0 {
            to_a.connect().unwrap();
        }
        let mut sent = false;
        for _ in 0..round {
            sent = sent || to_b.send_inline(b"my last words", b"").unwrap() == Sent::Done;
            a.progress();
            std::thread::sleep(Duration::from_millis(4));
        }
        // It ends without a goodbye.
        drop((to_b, a));
        send(&[&b, &c], &mut *from_c, b"hello", b"");
        until(&[&b, &c], "a message of a living peer arrives", || {
            b.seen.messages.lock().iter().any(|(from, _)| *from == 2)
        });
        // A sender gets an error.
        until(&[&b, &c], "an error", || to_a.send_inline(b"x", b"").is_err());
        until(&[&b, &c], "a report", || b.failures() + b.departures() == 1);
        assert!(b.seen.failed.lock().iter().all(|(peer, _)| *peer == 0));
        assert_eq!((c.failures(), c.departures()), (0, 0));
    }
}
