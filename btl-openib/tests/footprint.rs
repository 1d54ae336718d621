//! Measures the memory of a connected, idle peer on this machine's device, with 2 to 64 peers, by the counts of the C
//! library and the kernel. Compares it with the computed value (`cableway_btl_openib::Footprint`). Run it alone on a
//! machine where soft-RoCE's kernel objects can be counted:
//!
//!   tests/rxe-guest/all footprint

mod common;

use std::time::Duration;

use cableway_base::Parameters;
use cableway_btl::Endpoint;
use cableway_btl_openib::Footprint;
use common::{Node, connect, has_device, node, send, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The approximate number of ends in one measurement: so many that the kernel's reserves matter little.
const ENDS: usize = 256;
/// Few and small buffers, because they are counted separately.
const RECEIVES: &str = "btl_openib_receive_queues=S,4K,64,8,32";
/// The allowed difference, relative to the computed value. The kernel's slabs are counted whole, and the C library's
/// allocations in steps of 16 bytes.
const BOUND: f64 = 0.1;
/// The largest allowed memory of a peer.
const MOST: i64 = 16 << 10;

#[test]
fn a_peer_costs_the_computed_memory() {
    if !has_device() {
        return;
    }
    // One descriptor watches each peer of this node.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let expected = Footprint::new(&Parameters::default()).expect("the defaults are possible");
    println!("| peers | ends | process | queues | kernel objects | each | computed | ratio | resident | locked |");
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let (mut wrong, mut sum) = (Vec::new(), 0);
    let numbers = [2, 4, 8, 16, 32, 64];
    for peers in numbers {
        let (ends, grown) = connect_and_count(peers);
        let each = |bytes: i64| bytes / ends as i64;
        let measured = each(grown.process) + each(grown.queues) + each(grown.objects);
        let ratio = measured as f64 / expected.per_peer() as f64;
        println!(
            "| {peers} | {ends} | {} | {} | {} | {measured} | {} | {ratio:.2} | {} | {} |",
            each(grown.process),
            each(grown.queues),
            each(grown.objects),
            expected.per_peer(),
            each(grown.resident),
            each(grown.locked),
        );
        sum += measured;
        if (ratio - 1.0).abs() > BOUND {
            wrong.push((peers, measured));
        }
    }
    assert!(wrong.is_empty(), "{expected:?} is off by more than {BOUND} with (peers, bytes): {wrong:?}");
    let mean = sum / numbers.len() as i64;
    assert!(mean < MOST, "a peer costs {mean} bytes");
}

/// The first connection allocates them, and no other.
#[test]
fn receive_buffers_cost_the_computed_memory() {
    if !has_device() {
        return;
    }
    let expected = Footprint::new(&Parameters::default()).expect("the defaults are possible");
    let nodes: Vec<Node> = (0..3).map(|rank| node(rank, 3, &[])).collect();
    let locked = || field("/proc/self/status", "VmPin:") as usize;
    let before = locked();
    let first = meet(&nodes[0], &nodes[1]);
    // Both nodes have allocated theirs, and a few buffers for sends.
    let grown = locked() - before;
    println!("locked with the first connection, at both ends: {grown}; computed {}", 2 * expected.shared);
    assert!((2 * expected.shared..2 * expected.shared + (512 << 10)).contains(&grown), "{grown}");
    let before = locked();
    let second = meet(&nodes[0], &nodes[2]);
    assert!(locked() - before < expected.shared + (512 << 10), "only the third node may allocate receive buffers");
    drop((first, second));
}

/// Connects hubs to the same peers. Does not count the first connection of each hub and each peer, because it allocates
/// receive buffers.
fn connect_and_count(peers: usize) -> (usize, Memory) {
    let hubs = (ENDS / 2).div_ceil(peers) + 1;
    let size = (hubs + peers) as u32;
    let assignments = [RECEIVES, "btl_openib_cq_size=512", "peer_timeout=60s"];
    let nodes: Vec<Node> = (0..size).map(|rank| node(rank, size, &assignments)).collect();
    let (hubs, others) = nodes.split_at(hubs);
    let mut links: Vec<Box<dyn Endpoint>> = Vec::new();
    links.extend(others.iter().map(|other| meet(&hubs[0], other)));
    links.extend(hubs[1..].iter().map(|hub| meet(hub, &hubs[0])));
    let before = Memory::now();
    for hub in &hubs[1..] {
        links.extend(others.iter().map(|other| meet(hub, other)));
    }
    let after = Memory::now();
    drop(links);
    until(&nodes.iter().collect::<Vec<_>>(), "all is flushed", || {
        nodes.iter().filter(|node| !node.btl.finalize()).count() == 0
    });
    (2 * (hubs.len() - 1) * others.len(), after.since(&before))
}

/// Connects two nodes by a message.
fn meet(from: &Node, to: &Node) -> Box<dyn Endpoint> {
    let mut link = connect(from, to);
    let before = to.received();
    send(&[from, to], &mut *link, b"hello", b"");
    until(&[from, to], "it arrives", || to.received() > before);
    link
}

/// The bytes in use.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// The C library's allocations, including Rust's.
    process: i64,
    /// The queues that kernel and process share.
    queues: i64,
    /// The kernel's small objects.
    objects: i64,
    /// This process's resident memory, including queues.
    resident: i64,
    locked: i64,
}

impl Memory {
    fn now() -> Self {
        // The kernel frees closed objects after a delay.
        std::thread::sleep(Duration::from_millis(200));
        // SAFETY: only reads counts of the C library.
        let heap = unsafe { libc::mallinfo2() };
        Memory {
            process: (heap.uordblks + heap.hblkhd) as i64,
            queues: field("/proc/meminfo", "VmallocUsed:"),
            objects: slabs(),
            resident: field("/proc/self/status", "VmRSS:"),
            locked: field("/proc/self/status", "VmPin:"),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Memory {
            process: self.process - before.process,
            queues: self.queues - before.queues,
            objects: self.objects - before.objects,
            resident: self.resident - before.resident,
            locked: self.locked - before.locked,
        }
    }
}

/// Reads a value from a system file with a number of KiB in each line.
fn field(path: &str, name: &str) -> i64 {
    let text = std::fs::read_to_string(path).expect("/proc must be mounted");
    let line = text.lines().find(|line| line.starts_with(name)).expect("every kernel has this line");
    line.split_ascii_whitespace().nth(1).and_then(|number| number.parse::<i64>().ok()).expect("a number") << 10
}

/// Sums the objects in use, by their sizes. Each line after the first two is `name active_objs num_objs objsize ...`.
fn slabs() -> i64 {
    let text = std::fs::read_to_string("/proc/slabinfo").expect("only root may count the kernel's objects");
    let number = |field: Option<&str>| field.and_then(|field| field.parse::<i64>().ok()).expect("a number");
    let of = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let active = number(fields.next());
        active * number(fields.nth(1))
    };
    text.lines().skip(2).map(of).sum()
}
