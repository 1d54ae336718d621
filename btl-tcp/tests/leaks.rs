//! Tests for leaks in a process that continues, and that a peer costs little. A separate binary, because it counts the
//! process's resources.

mod common;

use cableway_base::Rank;
use cableway_btl::Endpoint;
use common::{LOOPBACK, Node, Pair, node, pair, pattern, send, until};
use test_nodes::Counting;

#[global_allocator]
static ALLOCATED: Counting = Counting::new();

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The bytes of anonymous memory that this process has touched, which include the transport's buffers.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

const SIZES: [usize; 4] = [8, 200, 4000, 60_000];

#[test]
fn nothing_leaks_and_a_peer_costs_little() {
    // Make everything that a process makes once.
    drop(pair(&[]));
    let before = descriptors();
    for _ in 0..3 {
        let Pair { a, b, mut to_b, to_a } = pair(&["btl_tcp_links=2"]);
        for len in SIZES {
            send(&[&a, &b], &mut *to_b[0], &[1; 8], &pattern(len, 1));
        }
        until(&[&a, &b], "messages arrive", || b.received() == SIZES.len());
        assert!(descriptors() > before);
        drop((to_a, to_b, a, b));
        assert_eq!(descriptors(), before);
    }

    // Both ends of each connection are in this process. A node has all its fixed resources after one connection.
    const NODES: usize = 8;
    let nodes: Vec<Node> = (0..NODES).map(|rank| node(rank as Rank, NODES as u32, &[LOOPBACK])).collect();
    let mut links = Vec::new();
    for first in (0..NODES).step_by(2) {
        links.push(talk(&nodes[first], &nodes[first + 1]));
    }
    let start = (ALLOCATED.bytes(), resident());
    let before = links.len();
    for first in 0..NODES {
        for second in first + 1..NODES {
            if (first, second) != (first & !1, first | 1) {
                links.push(talk(&nodes[first], &nodes[second]));
            }
        }
    }
    let ends = 2 * (links.len() - before);
    let allocated = ALLOCATED.bytes().saturating_sub(start.0) / ends;
    let touched = resident().saturating_sub(start.1) / ends;
    println!("{allocated} bytes allocated a peer, {touched} touched");
    assert!(allocated < 64 << 10, "{allocated} bytes a peer are allocated");
    assert!(touched < 64 << 10, "{touched} bytes a peer were touched");
}

/// Connects two nodes. Each sends messages of several sizes to the other.
fn talk(one: &Node, other: &Node) -> [Vec<Box<dyn Endpoint>>; 2] {
    let (mut there, mut back) = (one.connect(other), other.connect(one));
    for len in SIZES {
        send(&[one, other], &mut *there[0], &[1; 8], &pattern(len, 1));
        send(&[one, other], &mut *back[0], &[1; 8], &pattern(len, 1));
    }
    until(&[one, other], "messages arrive", || one.received() == SIZES.len() && other.received() == SIZES.len());
    for node in [one, other] {
        *node.seen.messages.lock() = Vec::new();
    }
    [there, back]
}
