//! Two or more instances of the transport in one process, and what they were told.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cableway_base::{Parameters, Rank, Source};
use cableway_btl::{
    Btl, Endpoint, Error, FragmentKind, Job, Received, Region, Retained, Sent, Token, Transfer, Upcalls,
};
use cableway_btl_openib::Openib;
use cableway_common_cuda::{Devices, Location};
use parking_lot::Mutex;

/// Generous: an emulated machine does what a test waits for in a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) messages: Mutex<Vec<(Rank, Vec<u8>)>>,
    pub(crate) completed: Mutex<Vec<(u64, Result<(), Error>)>>,
    pub(crate) failed: Mutex<Vec<(Rank, Error)>>,
    pub(crate) left: Mutex<Vec<Rank>>,
    /// Keep messages where that is possible.
    pub(crate) keep: Mutex<bool>,
    pub(crate) kept: Mutex<Vec<Retained>>,
}

impl Upcalls for Seen {
    fn receive(&self, peer: Rank, message: Received<'_>) {
        if *self.keep.lock()
            && let Some(retained) = message.retain()
        {
            self.kept.lock().push(retained);
            return;
        }
        let mut bytes = vec![0; message.bytes().len()];
        message.bytes().copy_to(&mut bytes);
        self.messages.lock().push((peer, bytes));
    }

    fn completed(&self, token: Token, result: Result<(), Error>) {
        self.completed.lock().push((token.0, result));
    }

    fn peer_failed(&self, peer: Rank, error: Error) {
        self.failed.lock().push((peer, error));
    }

    fn peer_left(&self, peer: Rank) {
        self.left.lock().push(peer);
    }
}

pub(crate) struct Node {
    pub(crate) btl: Arc<Openib>,
    pub(crate) seen: Seen,
    pub(crate) rank: Rank,
}

pub(crate) fn job(rank: Rank, size: u32) -> Job {
    Job::new("test-job".to_owned(), [42; 32], rank, size, size)
}

pub(crate) fn parameters(assignments: &[&str]) -> Parameters {
    let mut parameters = Parameters::default();
    // An emulated machine may stand still for seconds.
    parameters.assign("peer_timeout=40s", Source::Program).unwrap();
    for assignment in assignments {
        parameters.assign(assignment, Source::Program).unwrap();
    }
    parameters
}

/// Whether this machine has a device; if not, says so.
pub(crate) fn has_device() -> bool {
    let found = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some());
    if !found {
        println!("skipped: this machine has no verbs device (tests/rxe-guest/run emulates one that has)");
    }
    found
}

impl Node {
    pub(crate) fn new(rank: Rank, size: u32, assignments: &[&str]) -> Self {
        Self::with_devices(rank, size, assignments, &Devices::none())
    }

    pub(crate) fn with_devices(rank: Rank, size: u32, assignments: &[&str], devices: &Devices) -> Self {
        let btl = Openib::open(&job(rank, size), &parameters(assignments), devices).unwrap();
        Node { btl: btl.expect("a port"), seen: Seen::default(), rank }
    }

    pub(crate) fn progress(&self) -> usize {
        self.btl.progress(&self.seen)
    }

    pub(crate) fn connect(&self, to: &Node) -> Box<dyn Endpoint> {
        self.btl.connect(to.rank, &to.btl.card()).unwrap().pop().expect("the peer is reachable")
    }

    pub(crate) fn received(&self) -> usize {
        self.seen.messages.lock().len()
    }

    pub(crate) fn failures(&self) -> usize {
        self.seen.failed.lock().len()
    }

    pub(crate) fn departures(&self) -> usize {
        self.seen.left.lock().len()
    }

    pub(crate) fn completed(&self, token: u64) -> bool {
        self.seen.completed.lock().iter().any(|(done, _)| *done == token)
    }
}

/// Has all nodes progress until `done`.
pub(crate) fn until(nodes: &[&Node], what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        let events: usize = nodes.iter().map(|node| node.progress()).sum();
        if events == 0 {
            std::thread::yield_now();
        }
    }
}

/// Sends, progressing all nodes while the link is busy.
pub(crate) fn send(nodes: &[&Node], endpoint: &mut dyn Endpoint, header: &[u8], payload: &[u8]) {
    until(nodes, "a message is taken", || try_send(endpoint, header, payload).unwrap());
}

/// Sends inline what is short enough, else in a fragment. False: the link is busy.
pub(crate) fn try_send(endpoint: &mut dyn Endpoint, header: &[u8], payload: &[u8]) -> Result<bool, Error> {
    let len = header.len() + payload.len();
    if len <= endpoint.capabilities().inline_limit {
        return Ok(endpoint.send_inline(header, payload)? == Sent::Done);
    }
    let Some(mut fragment) = endpoint.alloc(len, FragmentKind::Host)? else { return Ok(false) };
    fragment.write(0, header);
    fragment.write(header.len(), payload);
    endpoint.send(fragment, len)?;
    Ok(true)
}

pub(crate) fn region(memory: &mut [u8]) -> Region {
    Region { address: memory.as_mut_ptr(), len: memory.len(), location: Location::HOST }
}

/// Starts an operation that may be busy, and waits until it is done.
pub(crate) fn transfer(
    nodes: &[&Node],
    owner: &Node,
    token: u64,
    mut start: impl FnMut(Token) -> Result<Transfer, Error>,
) {
    let mut began = Transfer::Busy;
    until(nodes, "a transfer is taken", || {
        began = start(Token(token)).unwrap();
        began != Transfer::Busy
    });
    if began == Transfer::Started {
        until(nodes, "a transfer is done", || owner.completed(token));
    }
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|index| (index.wrapping_mul(0x9e37_79b9) ^ seed.wrapping_mul(97)) as u8 ^ (index >> 8) as u8)
        .collect()
}

/// Ranks 0 and 1, each with its endpoint to the other.
pub(crate) struct Pair {
    pub(crate) a: Node,
    pub(crate) b: Node,
    pub(crate) to_b: Box<dyn Endpoint>,
    pub(crate) to_a: Box<dyn Endpoint>,
}

pub(crate) fn pair(assignments: &[&str]) -> Pair {
    pair_with(assignments, &Devices::none())
}

pub(crate) fn pair_with(assignments: &[&str], devices: &Devices) -> Pair {
    let a = Node::with_devices(0, 2, assignments, devices);
    let b = Node::with_devices(1, 2, assignments, devices);
    let (to_b, to_a) = (a.connect(&b), b.connect(&a));
    Pair { a, b, to_b, to_a }
}
