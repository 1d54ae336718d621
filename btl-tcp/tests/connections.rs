//! Tests connection setup: from both ends at once, over IPv6, with several links, and through a relay that splits and
//! delays bytes.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use cableway_btl::{Access, Btl, Endpoint, Remote, Sent};
use cableway_btl_tcp::Tcp;
use cableway_common_cuda::Devices;
use common::raw::{port, with_port};
use common::{LOOPBACK, Node, PATIENCE, job, node, pair, parameters, pattern, region, send, transfer, until};

/// Every process connects to every other at the same moment and sends at once. Every message arrives once, in order.
#[test]
fn a_storm_of_simultaneous_connects_loses_nothing() {
    const SIZE: u32 = 5;
    const LINKS: usize = 3;
    const MESSAGES: u64 = 20;
    for _ in 0..8 {
        let nodes: Vec<Node> = (0..SIZE).map(|rank| node(rank, SIZE, &[LOOPBACK, "btl_tcp_links=3"])).collect();
        let cards: Vec<Vec<u8>> = nodes.iter().map(|node| node.btl.card()).collect();
        let barrier = Barrier::new(SIZE as usize);
        let complete = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(|| storm(node, &cards, &barrier, &complete, MESSAGES));
            }
        });
        for node in &nodes {
            assert!(node.seen.failed.lock().is_empty(), "{:?}", node.seen.failed.lock());
            let messages = node.seen.messages.lock();
            assert_eq!(messages.len(), (SIZE as usize - 1) * LINKS * MESSAGES as usize);
            let mut next = std::collections::HashMap::new();
            for (from, message) in messages.iter() {
                let (link, number) = message.split_at(8);
                let expected = next.entry((*from, link.to_vec())).or_insert(0u64);
                assert_eq!(number, expected.to_le_bytes(), "from rank {from}");
                *expected += 1;
            }
        }
    }
}

fn storm(node: &Node, cards: &[Vec<u8>], barrier: &Barrier, complete: &AtomicUsize, messages: u64) {
    let mut endpoints: Vec<(u64, u64, Box<dyn Endpoint>)> = Vec::new();
    for (rank, card) in cards.iter().enumerate() {
        for (link, endpoint) in node.btl.connect(rank as u32, card).unwrap().into_iter().enumerate() {
            endpoints.push((link as u64, 0, endpoint));
        }
    }
    let expected = endpoints.len() * messages as usize;
    barrier.wait();
    let start = Instant::now();
    let mut done = false;
    while complete.load(Ordering::Relaxed) < cards.len() {
        assert!(start.elapsed() < PATIENCE, "rank {} has {} of {expected}", node.rank, node.received());
        for (link, next, endpoint) in &mut endpoints {
            let header = link.to_le_bytes();
            if *next < messages && endpoint.send_inline(&header, &next.to_le_bytes()).unwrap() == Sent::Done {
                *next += 1;
            }
        }
        node.progress();
        if !done && node.received() == expected && endpoints.iter().all(|(_, next, _)| *next == messages) {
            done = true;
            complete.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::yield_now();
    }
}

#[test]
fn both_ends_over_ipv6() {
    let has_v6 = std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|list| list.contains(" lo"));
    if !has_v6 {
        eprintln!("skipped: this host has no IPv6 loopback address");
        return;
    }
    let mut pair = pair(&["btl_tcp_if_include=::1", "btl_tcp_family=ipv6"]);
    let nodes = [&pair.a, &pair.b];
    assert_eq!(pair.to_b.len(), 1);
    send(&nodes, &mut *pair.to_b[0], b"over ipv6", b"");
    send(&nodes, &mut *pair.to_a[0], b"and back", b"");
    pair.until("both arrive", || pair.a.received() == 1 && pair.b.received() == 1);
}

#[test]
fn the_family_parameter_selects_addresses() {
    let card = |family: &str| {
        let node = node(0, 2, &["btl_tcp_if_include=lo", family]);
        let card = node.btl.card();
        (port(&card), u16::from_le_bytes([card[34], card[35]]))
    };
    let (v4, v6) = card("btl_tcp_family=ipv4");
    assert!(v4 != 0 && v6 == 0);
    let (v4, _) = card("btl_tcp_family=ipv6");
    assert_eq!(v4, 0);
}

#[test]
fn links_per_interface_are_the_smaller_limit() {
    let a = node(0, 2, &[LOOPBACK, "btl_tcp_links=4"]);
    let b = node(1, 2, &[LOOPBACK, "btl_tcp_links=2"]);
    let (mut to_b, mut to_a) = (a.connect(&b), b.connect(&a));
    assert_eq!((to_b.len(), to_a.len()), (2, 2));
    for (index, endpoint) in to_b.iter_mut().chain(&mut to_a).enumerate() {
        send(&[&a, &b], &mut **endpoint, &[index as u8], b"");
    }
    until(&[&a, &b], "all arrive", || a.received() + b.received() == 4);
    let shares: f64 = to_b.iter().map(|endpoint| endpoint.capabilities().bandwidth).sum();
    let alone = pair(&[]);
    assert!((shares - alone.to_b[0].capabilities().bandwidth).abs() < 1.0, "links share their interface's bandwidth");
}

#[test]
fn a_process_has_no_link_to_itself_nor_to_an_unreachable_one() {
    let a = node(0, 2, &[LOOPBACK]);
    assert!(a.connect(&a).is_empty());
    let none = node(1, 2, &["btl_tcp_if_exclude=0.0.0.0/0,::/0"]);
    assert!(a.connect(&none).is_empty());
    assert!(a.btl.connect(1, b"no card").is_err());
}

#[test]
fn ports_are_in_the_configured_range() {
    let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let first = free();
    let range = [LOOPBACK, &format!("btl_tcp_port_min={first}"), "btl_tcp_port_range=3"];
    let nodes: Vec<_> = (0..4).map(|rank| Tcp::new(&job(rank, 4), &parameters(&range), &Devices::none())).collect();
    let mut refused = 0;
    for node in nodes {
        match node {
            Ok(tcp) => assert!((first..first + 3).contains(&port(&tcp.card()))),
            Err(error) => {
                refused += 1;
                let text = error.to_string();
                assert!(text.contains(&format!("from {first} to {}", first + 2)), "{text}");
                break;
            }
        }
    }
    assert_eq!(refused, 1, "a range of three has no fourth port");
}

#[test]
fn a_dead_address_is_an_error_before_a_silent_one() {
    let a = node(0, 2, &[LOOPBACK, "peer_timeout=3600s"]);
    let card = node(1, 2, &[LOOPBACK]).btl.card();
    let mut to_b = a.btl.connect(1, &card).unwrap();
    until(&[&a], "an error", || to_b[0].send_inline(b"x", b"").is_err());
    let failed = a.seen.failed.lock();
    assert!(failed.len() == 1 && failed[0].1.to_string().contains("cannot connect"), "{failed:?}");
}

/// What a relay does to the bytes in each direction.
#[derive(Clone, Copy)]
enum Manner {
    /// Passes them on in pieces of this many bytes.
    Pieces(usize),
    /// Delays them.
    Delay(Duration),
}

/// Forwards connections to `to`.
struct Relay {
    port: u16,
    cut: Arc<AtomicBool>,
}

impl Relay {
    fn new(to: u16, manner: Manner) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicBool::new(false));
        let cut_here = Arc::clone(&cut);
        std::thread::spawn(move || {
            for here in listener.incoming() {
                let (Ok(here), Ok(there)) = (here, TcpStream::connect((Ipv4Addr::LOCALHOST, to))) else { return };
                for stream in [&here, &there] {
                    stream.set_nodelay(true).unwrap();
                    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
                }
                let back = (there.try_clone().unwrap(), here.try_clone().unwrap());
                for (from, to) in [(here, there), back] {
                    let cut = Arc::clone(&cut_here);
                    std::thread::spawn(move || forward(from, to, manner, &cut));
                }
            }
        });
        Relay { port, cut }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, manner: Manner, cut: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    while !cut.load(Ordering::Relaxed) {
        let count = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                continue;
            }
            Err(_) => break,
        };
        let piece = match manner {
            Manner::Pieces(len) => len,
            Manner::Delay(delay) => {
                std::thread::sleep(delay);
                count
            }
        };
        if bytes[..count].chunks(piece).any(|piece| to.write_all(piece).is_err()) {
            break;
        }
    }
    let how = if cut.load(Ordering::Relaxed) { Shutdown::Both } else { Shutdown::Write };
    let _ = to.shutdown(how);
}

type Links = Vec<Box<dyn Endpoint>>;

/// A pair whose first node reaches the second only through a relay.
fn through(manner: Manner, assignments: &[&str]) -> (Node, Node, Links, Links, Relay) {
    let assignments = [&[LOOPBACK], assignments].concat();
    let (a, b) = (node(0, 2, &assignments), node(1, 2, &assignments));
    let relay = Relay::new(port(&b.btl.card()), manner);
    let to_b = a.btl.connect(1, &with_port(b.btl.card(), relay.port)).unwrap();
    let to_a = b.connect(&a);
    (a, b, to_b, to_a, relay)
}

#[test]
fn frames_may_be_split_anywhere() {
    for piece in [1, 2, 3, 5, 7, 8, 9, 13, 31, 32, 33, 63, 1000] {
        let (a, b, mut to_b, mut to_a, _relay) = through(Manner::Pieces(piece), &[]);
        let nodes = [&a, &b];
        let mut target = vec![0; 3000];
        let mut source = pattern(3000, piece as u64);
        // SAFETY: the target outlives the registration and is only read after the put.
        let registration = unsafe { to_a[0].register(region(&mut target), Access::RemoteWrite) }.unwrap().unwrap();
        for size in [0, 1, 24, 100, 4000] {
            send(&nodes, &mut *to_b[0], &pattern(size, 1), b"");
            transfer(&nodes, &a, size as u64, |token| {
                // SAFETY: the source outlives the put and is not written.
                unsafe { to_b[0].put(&region(&mut source).into(), &Remote::at(registration.handle(), 0), token) }
            });
            send(&nodes, &mut *to_a[0], &pattern(size, 2), b"");
        }
        until(&nodes, "all arrive", || a.received() == 5 && b.received() == 5);
        drop(registration);
        assert!(target == source);
        for (node, seed) in [(&b, 1), (&a, 2)] {
            for ((_, message), size) in node.seen.messages.lock().iter().zip([0, 1, 24, 100, 4000]) {
                assert!(*message == pattern(size, seed), "{size} bytes in pieces of {piece}");
            }
            assert!(node.seen.failed.lock().is_empty());
        }
    }
}

#[test]
fn a_slow_network_breaks_nothing() {
    let (a, b, mut to_b, mut to_a, _relay) = through(Manner::Delay(Duration::from_millis(20)), &["peer_timeout=2s"]);
    let nodes = [&a, &b];
    let message = pattern(60_000, 3);
    for _ in 0..20 {
        send(&nodes, &mut *to_b[0], &[], &message);
        send(&nodes, &mut *to_a[0], &[], &message);
    }
    until(&nodes, "all arrive", || a.received() == 20 && b.received() == 20);
    assert!(a.seen.messages.lock().iter().chain(b.seen.messages.lock().iter()).all(|(_, got)| *got == message));
}

#[test]
fn a_cut_connection_fails_the_peer_and_transfers_in_flight() {
    let (a, b, mut to_b, mut to_a, relay) = through(
        Manner::Delay(Duration::from_millis(1)),
        &["btl_tcp_links=2", "btl_tcp_sndbuf=64K", "btl_tcp_rcvbuf=64K"],
    );
    let nodes = [&a, &b];
    let mut target = vec![0; 64 << 20];
    let mut source = vec![1; 64 << 20];
    // SAFETY: the target outlives the registration and is not read.
    let registration = unsafe { to_a[0].register(region(&mut target), Access::RemoteWrite) }.unwrap().unwrap();
    send(&nodes, &mut *to_b[0], b"first", b"");
    // SAFETY: the source outlives the put and is not written.
    let began = unsafe {
        to_b[0].put(&region(&mut source).into(), &Remote::at(registration.handle(), 0), cableway_btl::Token(5))
    };
    assert_eq!(began.unwrap(), cableway_btl::Transfer::Started);
    until(&nodes, "it arrives", || b.received() == 1);
    relay.cut.store(true, Ordering::Relaxed);
    until(&nodes, "both know", || a.seen.failed.lock().len() == 1 && b.seen.failed.lock().len() == 1);
    assert!(a.seen.completed.lock().iter().any(|(token, result)| *token == 5 && result.is_err()));
    for endpoint in to_b.iter_mut().chain(&mut to_a) {
        assert!(endpoint.send_inline(b"x", b"").is_err());
        assert!(endpoint.alloc(100, cableway_btl::FragmentKind::Host).is_err());
    }
    drop(registration);
}

/// A peer that computes for longer than the timeout answers through its kernel: with full buffers, with empty ones, and
/// while a connection waits for it.
#[test]
fn a_peer_that_computes_is_not_dead() {
    let timeout = "peer_timeout=2s";
    let busy = pair(&[timeout, "btl_tcp_sndbuf=64K", "btl_tcp_rcvbuf=64K"]);
    let idle = pair(&[timeout]);
    let waiting = pair(&[timeout]);
    let (mut busy_link, mut idle_link, mut waiting_link) = (busy.to_b, idle.to_b, waiting.to_b);
    send(&[&busy.a, &busy.b], &mut *busy_link[0], b"first", b"");
    send(&[&idle.a, &idle.b], &mut *idle_link[0], b"first", b"");
    let mut sent = 1;
    while busy_link[0].send_inline(&[1; 8000], b"").unwrap() == Sent::Done {
        sent += 1;
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(6) {
        for node in [&busy.a, &idle.a, &waiting.a] {
            node.progress();
        }
        assert_eq!(waiting_link[0].send_inline(b"x", b"").unwrap(), Sent::Busy);
        std::thread::sleep(Duration::from_micros(50));
    }
    send(&[&idle.a, &idle.b], &mut *idle_link[0], b"second", b"");
    send(&[&waiting.a, &waiting.b], &mut *waiting_link[0], b"first", b"");
    until(&[&busy.a, &busy.b], "all arrive", || busy.b.received() == sent);
    until(&[&idle.a, &idle.b, &waiting.a, &waiting.b], "all arrive", || {
        idle.b.received() == 2 && waiting.b.received() == 1
    });
    for node in [&busy.a, &busy.b, &idle.a, &idle.b, &waiting.a, &waiting.b] {
        assert!(node.seen.failed.lock().is_empty(), "{:?}", node.seen.failed.lock());
    }
}
