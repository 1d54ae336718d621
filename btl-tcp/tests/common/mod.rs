//! Instances of the transport over loopback.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part")]

pub(crate) mod raw;

use cableway_base::Rank;
use cableway_btl::{Endpoint, Job};
use cableway_btl_tcp::Tcp;
use cableway_common_cuda::Devices;
pub(crate) use test_nodes::{Node, PATIENCE, parameters, pattern, region, send, transfer, try_send, until};

pub(crate) const LOOPBACK: &str = "btl_tcp_if_include=127.0.0.1/8";

pub(crate) fn job(rank: Rank, size: u32) -> Job {
    Job::new("test-job".to_owned(), [42; 32], rank, size, size)
}

pub(crate) fn node(rank: Rank, size: u32, assignments: &[&str]) -> Node {
    node_with(rank, size, assignments, &Devices::none())
}

pub(crate) fn node_with(rank: Rank, size: u32, assignments: &[&str], devices: &Devices) -> Node {
    Node::of(rank, Tcp::new(&job(rank, size), &parameters(assignments), devices).unwrap())
}

/// A pair over loopback. Each node has its endpoints to the other.
pub(crate) struct Pair {
    pub(crate) a: Node,
    pub(crate) b: Node,
    pub(crate) to_b: Vec<Box<dyn Endpoint>>,
    pub(crate) to_a: Vec<Box<dyn Endpoint>>,
}

pub(crate) fn pair(assignments: &[&str]) -> Pair {
    let mut assignments = assignments.to_vec();
    if !assignments.iter().any(|assignment| assignment.starts_with("btl_tcp_if_include")) {
        assignments.push(LOOPBACK);
    }
    let (a, b) = (node(0, 2, &assignments), node(1, 2, &assignments));
    let (to_b, to_a) = (a.connect(&b), b.connect(&a));
    assert_eq!(to_b.len(), to_a.len());
    Pair { a, b, to_b, to_a }
}

impl Pair {
    pub(crate) fn until(&self, what: &str, done: impl FnMut() -> bool) {
        until(&[&self.a, &self.b], what, done);
    }

    pub(crate) fn no_failures(&self) {
        for node in [&self.a, &self.b] {
            let failed = node.seen.failed.lock();
            assert!(failed.is_empty(), "{:?}", *failed);
        }
    }
}
