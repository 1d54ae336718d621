//! Two or more instances of a transport in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cableway_base::{Parameters, Rank};
use cableway_btl::{Btl, Endpoint, Error, FragmentKind, Received, Region, Retained, Sent, Token, Transfer, Upcalls};
use cableway_common_cuda::{Location, Order};
use parking_lot::Mutex;

/// Only a hang takes so long. The awaited events take milliseconds, on a busy or emulated machine seconds.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The events that a transport reported.
#[derive(Default)]
pub struct Seen {
    /// Messages and their senders.
    pub messages: Mutex<Vec<(Rank, Vec<u8>)>>,
    /// Tokens of completed operations, and their results.
    pub completed: Mutex<Vec<(u64, Result<(), Error>)>>,
    /// Failed peers, and the errors.
    pub failed: Mutex<Vec<(Rank, Error)>>,
    /// Peers that left, and the number of their messages delivered by then.
    pub left: Mutex<Vec<(Rank, usize)>>,
    /// Whether to keep messages in the transport's memory, in addition to copies.
    pub keep: AtomicBool,
    /// The kept messages.
    pub retained: Mutex<Vec<Retained>>,
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

/// A process of the job, within this process.
pub struct Node {
    /// The process's transport.
    pub btl: Arc<dyn Btl>,
    /// The events that the transport reported.
    pub seen: Seen,
    /// The process's rank.
    pub rank: Rank,
}

impl Node {
    /// Creates a process that has opened its transport.
    pub fn of(rank: Rank, btl: Arc<dyn Btl>) -> Self {
        Node { btl, seen: Seen::default(), rank }
    }

    /// Calls [`Btl::progress`].
    pub fn progress(&self) -> usize {
        self.btl.progress(&self.seen)
    }

    /// Returns the links to another process.
    pub fn connect(&self, to: &Node) -> Vec<Box<dyn Endpoint>> {
        self.btl.connect(to.rank, &to.btl.card()).unwrap()
    }

    /// Returns the number of received messages.
    pub fn received(&self) -> usize {
        self.seen.messages.lock().len()
    }

    /// Returns the number of peers that were reported as failed.
    pub fn failures(&self) -> usize {
        self.seen.failed.lock().len()
    }

    /// Returns the number of peers that were reported to have left.
    pub fn departures(&self) -> usize {
        self.seen.left.lock().len()
    }

    /// Returns whether the operation of this token has completed.
    pub fn completed(&self, token: u64) -> bool {
        self.seen.completed.lock().iter().any(|(done, _)| *done == token)
    }
}

/// Returns parameters with assignments such as `btl_tcp_links=2`.
pub fn parameters(assignments: &[&str]) -> Parameters {
    let mut parameters = Parameters::default();
    for assignment in assignments {
        parameters.assign_internal(assignment).unwrap();
    }
    parameters
}

/// Progresses all nodes until `done` returns true.
///
/// # Panics
/// `done` does not return true within a minute.
pub fn until(nodes: &[&Node], what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        for node in nodes {
            node.progress();
        }
        // Two processes poll in one thread here. Let the kernel work as well.
        if start.elapsed() > Duration::from_millis(100) {
            std::thread::yield_now();
        }
    }
}

/// Sends. Progresses all nodes while the link is busy.
pub fn send(nodes: &[&Node], endpoint: &mut dyn Endpoint, header: &[u8], payload: &[u8]) {
    until(nodes, "a message is taken", || try_send(endpoint, header, payload).unwrap());
}

/// Sends inline if the message is short enough, else in a fragment. Returns false if the link is busy.
///
/// # Errors
/// As the link's calls.
pub fn try_send(endpoint: &mut dyn Endpoint, header: &[u8], payload: &[u8]) -> Result<bool, Error> {
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

/// Returns the region of host memory.
pub fn region(memory: &mut [u8]) -> Region {
    Region { address: memory.as_mut_ptr(), len: memory.len(), location: Location::HOST, order: Order::None }
}

/// Starts an operation that may be busy, and waits until it completes.
pub fn transfer(nodes: &[&Node], owner: &Node, token: u64, mut start: impl FnMut(Token) -> Result<Transfer, Error>) {
    let mut began = Transfer::Busy;
    until(nodes, "a transfer is taken", || {
        began = start(Token(token)).unwrap();
        began != Transfer::Busy
    });
    if began == Transfer::Started {
        until(nodes, "a transfer is done", || owner.completed(token));
    }
}

/// Returns bytes that depend on their position and a seed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|index| (index.wrapping_mul(0x9e37_79b9) ^ seed.wrapping_mul(97)) as u8 ^ (index >> 8) as u8)
        .collect()
}
