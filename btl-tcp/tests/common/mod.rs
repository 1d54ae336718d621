//! Two or more instances of the transport in one process, and what they were told.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod raw;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cableway_base::{Parameters, Rank, Source};
use cableway_btl::{
    Btl, Endpoint, Error, FragmentKind, Job, Received, Region, Retained, Sent, Token, Transfer, Upcalls,
};
use cableway_btl_tcp::Tcp;
use cableway_common_cuda::{Devices, Location};
use parking_lot::Mutex;

/// Generous: what a test waits for takes milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) messages: Mutex<Vec<(Rank, Vec<u8>)>>,
    pub(crate) completed: Mutex<Vec<(u64, Result<(), Error>)>>,
    pub(crate) failed: Mutex<Vec<(Rank, Error)>>,
    /// Who left, and how many messages of theirs had been delivered by then.
    pub(crate) left: Mutex<Vec<(Rank, usize)>>,
    /// Messages whose memory could be kept.
    pub(crate) keep: AtomicBool,
    pub(crate) retained: Mutex<Vec<Retained>>,
}

impl Upcalls for Seen {
    fn receive(&self, peer: Rank, message: Received<'_>) {
        let mut bytes = vec![0; message.bytes().len()];
        message.bytes().copy_to(&mut bytes);
        if let Some(retained) = message.retain() {
            let mut again = vec![0; retained.bytes().len()];
            retained.bytes().copy_to(&mut again);
            assert_eq!(bytes, again);
            if self.keep.load(Ordering::Relaxed) {
                self.retained.lock().push(retained);
            }
        }
        self.messages.lock().push((peer, bytes));
    }

    fn completed(&self, token: Token, result: Result<(), Error>) {
        self.completed.lock().push((token.0, result));
    }

    fn peer_failed(&self, peer: Rank, error: Error) {
        self.failed.lock().push((peer, error));
    }

    fn peer_left(&self, peer: Rank) {
        let before = self.messages.lock().iter().filter(|(from, _)| *from == peer).count();
        self.left.lock().push((peer, before));
    }
}

pub(crate) struct Node {
    pub(crate) tcp: Arc<Tcp>,
    pub(crate) seen: Seen,
    pub(crate) rank: Rank,
}

pub(crate) fn parameters(assignments: &[&str]) -> Parameters {
    let mut parameters = Parameters::default();
    for assignment in assignments {
        parameters.assign(assignment, Source::Program).unwrap();
    }
    parameters
}

pub(crate) fn job(rank: Rank, size: u32) -> Job {
    Job::new("test-job".to_owned(), [42; 32], rank, size, size)
}

impl Node {
    pub(crate) fn new(rank: Rank, size: u32, assignments: &[&str]) -> Self {
        Self::with_devices(rank, size, assignments, &Devices::none())
    }

    pub(crate) fn with_devices(rank: Rank, size: u32, assignments: &[&str], devices: &Devices) -> Self {
        let tcp = Tcp::new(&job(rank, size), &parameters(assignments), devices).unwrap();
        Node { tcp, seen: Seen::default(), rank }
    }

    pub(crate) fn progress(&self) -> usize {
        self.tcp.progress(&self.seen)
    }

    pub(crate) fn connect(&self, to: &Node) -> Vec<Box<dyn Endpoint>> {
        self.tcp.connect(to.rank, &to.tcp.card()).unwrap()
    }

    pub(crate) fn received(&self) -> usize {
        self.seen.messages.lock().len()
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
        for node in nodes {
            node.progress();
        }
        // Two processes' worth of polling share one thread here; the kernel's work must get its turn, too.
        if start.elapsed() > Duration::from_millis(100) {
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

/// A pair over loopback, each with its endpoints to the other.
pub(crate) struct Pair {
    pub(crate) a: Node,
    pub(crate) b: Node,
    pub(crate) to_b: Vec<Box<dyn Endpoint>>,
    pub(crate) to_a: Vec<Box<dyn Endpoint>>,
}

pub(crate) const LOOPBACK: &str = "btl_tcp_if_include=127.0.0.1/8";

pub(crate) fn pair(assignments: &[&str]) -> Pair {
    let mut assignments = assignments.to_vec();
    if !assignments.iter().any(|assignment| assignment.starts_with("btl_tcp_if_include")) {
        assignments.push(LOOPBACK);
    }
    let (a, b) = (Node::new(0, 2, &assignments), Node::new(1, 2, &assignments));
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
