//! What a connected, idle peer costs in memory on this machine's device, beside what is worked out
//! (`cableway_btl_openib::Footprint`). Takes the machine for itself: memory is counted as the system counts it, the
//! driver's included.
//!
//!   cargo build -p cableway-btl-openib --example footprint
//!   tests/rxe-guest/run -- target/debug/examples/footprint [RECEIVE_QUEUES]

use std::time::{Duration, Instant};

use cableway_btl::{Endpoint, Job, Sent};
use cableway_btl_openib::{Footprint, Openib};
use cableway_common_cuda::Devices;
use test_nodes::Node;

/// Ends of connections in one measurement.
const ENDS: usize = 256;
/// As large a window as the default's, and few buffers and small, for what is shared is counted apart.
const RECEIVES: &str = "S,4K,64,8,32";

fn main() {
    let list = std::env::args().nth(1).unwrap_or_else(|| RECEIVES.to_owned());
    let list = format!("btl_openib_receive_queues={list}");
    let assignments = [&*list, "peer_timeout=60s", "btl_openib_cq_size=512"];
    let expected = Footprint::new(&test_nodes::parameters(&assignments)).expect("the list is possible").per_peer();
    for peers in [2, 4, 8, 16, 32, 64] {
        // So many hubs, with so many peers each: the peers meet the first hub before it is counted.
        let hubs = ENDS / 2 / peers + 1;
        let size = (hubs + peers) as u32;
        let node = |rank| {
            let job = Job::new(format!("footprint-{peers}"), [1; 32], rank, size, size);
            let parameters = test_nodes::parameters(&assignments);
            Node::of(rank, Openib::open(&job, &parameters, &Devices::none()).unwrap().expect("a port"))
        };
        let nodes: Vec<Node> = (0..size).map(node).collect();
        let (hubs, others) = nodes.split_at(hubs);
        // Each hub's own receive buffers come with its first connection.
        let mut links: Vec<Box<dyn Endpoint>> = Vec::new();
        for other in others {
            links.push(meet(&hubs[0], other));
        }
        for hub in &hubs[1..] {
            links.push(meet(hub, &hubs[0]));
        }
        let before = used();
        let ends = 2 * (hubs.len() - 1) * others.len();
        for hub in &hubs[1..] {
            links.extend(others.iter().map(|other| meet(hub, other)));
        }
        let each = used().saturating_sub(before) / ends;
        println!("{peers:2} peers: {each} bytes each, {expected} worked out ({:.2})", each as f64 / expected as f64);
        drop(links);
        for node in &nodes {
            node.btl.finalize();
        }
    }
}

/// Connects the two by a message.
fn meet(from: &Node, to: &Node) -> Box<dyn Endpoint> {
    let mut link = from.connect(to).pop().expect("it is reachable");
    let before = to.received();
    let until = Instant::now() + Duration::from_secs(60);
    let mut sent = false;
    while !sent || to.received() == before {
        sent = sent || link.send_inline(b"hello", b"").unwrap() == Sent::Done;
        from.progress();
        to.progress();
        assert!(Instant::now() < until, "no connection within a minute");
    }
    link
}

/// Bytes of the system's memory that are in use.
fn used() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").expect("/proc is mounted");
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).expect("every kernel has it");
        line.split_ascii_whitespace().nth(1).and_then(|number| number.parse::<usize>().ok()).expect("a number")
    };
    (field("MemTotal:") - field("MemFree:") - field("Buffers:") - field("Cached:")) << 10
}
