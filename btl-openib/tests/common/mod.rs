//! Opens instances of the transport on a device of this machine.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part")]

use std::sync::Arc;

use cableway_base::Rank;
use cableway_btl::{Endpoint, Error, Job};
use cableway_btl_openib::Openib;
use cableway_common_cuda::Devices;
pub(crate) use test_nodes::{Node, pattern, region, send, transfer, until};

/// An emulated machine may pause for seconds. Later assignments override earlier ones.
const PATIENT: &str = "peer_timeout=40s";

/// Returns whether this machine has a device. If not, prints the reason for skipping.
pub(crate) fn has_device() -> bool {
    let found = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some());
    if !found {
        println!("skipped: this machine has no verbs device (tests/rxe-guest/run emulates one that has)");
    }
    found
}

/// Returns more parameters for all tests from the environment, such as the name of a device.
fn everywhere() -> Vec<&'static str> {
    static TEXT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let text = TEXT.get_or_init(|| std::env::var("CABLEWAY_TEST_OPENIB").unwrap_or_default());
    text.split_whitespace().collect()
}

/// Returns whether librdmacm makes the connections of these tests. They then have one receive queue.
pub(crate) fn is_managed() -> bool {
    is_iwarp() || everywhere().contains(&"btl_openib_connection_manager=rdmacm")
}

/// Returns whether the device of these tests uses iWARP.
pub(crate) fn is_iwarp() -> bool {
    let name = everywhere().iter().find_map(|assignment| assignment.strip_prefix("btl_openib_if_include="));
    name.is_some_and(|name| {
        let kind = std::fs::read_to_string(format!("/sys/class/infiniband/{name}/node_type"));
        kind.is_ok_and(|kind| kind.contains("RNIC"))
    })
}

pub(crate) fn node(rank: Rank, size: u32, assignments: &[&str]) -> Node {
    node_with(&Devices::none(), rank, size, assignments)
}

/// Opens a node with devices.
pub(crate) fn node_with(devices: &Devices, rank: Rank, size: u32, assignments: &[&str]) -> Node {
    Node::of(rank, open_with(devices, 42, rank, size, assignments))
}

/// Opens a node on its best port.
pub(crate) fn open(rank: Rank, size: u32, assignments: &[&str]) -> Arc<Openib> {
    open_with(&Devices::none(), 42, rank, size, assignments)
}

/// Opens a node of the job with that secret.
pub(crate) fn node_of(secret: u8, rank: Rank, size: u32, assignments: &[&str]) -> Node {
    Node::of(rank, open_with(&Devices::none(), secret, rank, size, assignments))
}

fn open_with(devices: &Devices, secret: u8, rank: Rank, size: u32, assignments: &[&str]) -> Arc<Openib> {
    try_open_with(devices, secret, rank, size, assignments).unwrap().expect("a port")
}

/// Opens a node, which may fail.
pub(crate) fn try_open(rank: Rank, size: u32, assignments: &[&str]) -> Result<Option<Arc<Openib>>, Error> {
    try_open_with(&Devices::none(), 42, rank, size, assignments)
}

fn try_open_with(
    devices: &Devices,
    secret: u8,
    rank: Rank,
    size: u32,
    assignments: &[&str],
) -> Result<Option<Arc<Openib>>, Error> {
    let job = Job::new("test-job".to_owned(), [secret; 32], rank, size, size);
    let parameters = test_nodes::parameters(&[&[PATIENT], &everywhere()[..], assignments].concat());
    Ok(Openib::open(&job, &parameters, devices)?.into_iter().next())
}

/// Returns the only link to a peer.
pub(crate) fn connect(from: &Node, to: &Node) -> Box<dyn Endpoint> {
    from.connect(to).pop().expect("the peer is reachable")
}

/// Ranks 0 and 1, each with its endpoint for the other.
pub(crate) struct Pair {
    pub(crate) a: Node,
    pub(crate) b: Node,
    pub(crate) to_b: Box<dyn Endpoint>,
    pub(crate) to_a: Box<dyn Endpoint>,
}

pub(crate) fn pair(assignments: &[&str]) -> Pair {
    pair_with(&Devices::none(), assignments)
}

pub(crate) fn pair_with(devices: &Devices, assignments: &[&str]) -> Pair {
    let [a, b] = [0, 1].map(|rank| node_with(devices, rank, 2, assignments));
    let (to_b, to_a) = (connect(&a, &b), connect(&b, &a));
    Pair { a, b, to_b, to_a }
}
