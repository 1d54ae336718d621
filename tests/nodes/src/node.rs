//! Two or more instances of a transport in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cableway_base::{Parameters, Rank};
use cableway_btl::{Btl, Endpoint, Error, FragmentKind, Received, Region, Retained, Sent, Token, Transfer, Upcalls};
use cableway_common_cuda::{Location, Order};
use parking_lot::Mutex;

/// Takes so long only what hangs: what a test waits for takes milliseconds, on a busy or emulated machine seconds.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// What a transport has told.
#[derive(Default)]
pub struct Seen {
    /// Who sent, and what.
    pub messages: Mutex<Vec<(Rank, Vec<u8>)>>,
    /// Tokens of operations, and how they ended.
    pub completed: Mutex<Vec<(u64, Result<(), Error>)>>,
    /// Who failed, and why.
    pub failed: Mutex<Vec<(Rank, Error)>>,
    /// Who left, and how many messages of theirs had been delivered by then.
    pub left: Mutex<Vec<(Rank, usize)>>,
    /// Whether to keep messages whose memory can be kept, besides what is copied of them.
    pub keep: AtomicBool,
    /// Messages that were kept.
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

/// One process of a job, though it shares this one with others.
pub struct Node {
    /// Its transport.
    pub btl: Arc<dyn Btl>,
    /// What that has told.
    pub seen: Seen,
    /// Its rank.
    pub rank: Rank,
}

impl Node {
    /// A process that has opened its transport.
    pub fn of(rank: Rank, btl: Arc<dyn Btl>) -> Self {
        Node { btl, seen: Seen::default(), rank }
    }

    /// What [`Btl::progress`] says.
    pub fn progress(&self) -> usize {
        self.btl.progress(&self.seen)
    }

    /// Links to another process.
    pub fn connect(&self, to: &Node) -> Vec<Box<dyn Endpoint>> {
        self.btl.connect(to.rank, &to.btl.card()).unwrap()
    }

    /// Messages that have come.
    pub fn received(&self) -> usize {
        self.seen.messages.lock().len()
    }

    /// Peers that were reported to have failed.
    pub fn failures(&self) -> usize {
        self.seen.failed.lock().len()
    }

    /// Peers that were reported to have left.
    pub fn departures(&self) -> usize {
        self.seen.left.lock().len()
    }

    /// Whether the operation of this token has ended.
    pub fn completed(&self, token: u64) -> bool {
        self.seen.completed.lock().iter().any(|(done, _)| *done == token)
    }
}

/// Parameters as assigned, such as `btl_tcp_links=2`.
pub fn parameters(assignments: &[&str]) -> Parameters {
    let mut parameters = Parameters::default();
    for assignment in assignments {
        parameters.assign_internal(assignment).unwrap();
    }
    parameters
}

/// Has all nodes progress until `done`.
///
/// # Panics
/// That takes longer than a minute.
pub fn until(nodes: &[&Node], what: &str, mut done: impl FnMut() -> bool) {
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
pub fn send(nodes: &[&Node], endpoint: &mut dyn Endpoint, header: &[u8], payload: &[u8]) {
    until(nodes, "a message is taken", || try_send(endpoint, header, payload).unwrap());
}

/// Sends inline what is short enough, else in a fragment. False: the link is busy.
///
/// # Errors
/// As the link says.
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

/// Host memory, for a registration.
pub fn region(memory: &mut [u8]) -> Region {
    Region { address: memory.as_mut_ptr(), len: memory.len(), location: Location::HOST, order: Order::None }
}

/// Starts an operation that may be busy, and waits until it is done.
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

/// Bytes that tell where they belong.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|index| (index.wrapping_mul(0x9e37_79b9) ^ seed.wrapping_mul(97)) as u8 ^ (index >> 8) as u8)
        .collect()
}
