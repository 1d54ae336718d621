//! Processes for tests: several within one, and real ones.
#![allow(dead_code, unreachable_pub, reason = "each test binary includes it and uses its part")]

#[cfg(feature = "cuda")]
pub mod device;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cableway_base::{Parameters, Rank};
use cableway_btl::{Btl, Endpoint, Error, FragmentKind, Job, Received, Retained, Sent, Token, Upcalls};
use cableway_btl_sm::SharedMemory;
use cableway_common_cuda::Devices;

/// A generous limit, which only a failure exceeds.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn job(rank: Rank, size: u32) -> Job {
    Job::new("sm-test".into(), [7; 32], rank, size, size)
}

pub fn parameters(assignments: &[&str]) -> Parameters {
    let mut parameters = Parameters::default();
    for assignment in assignments {
        parameters.assign_internal(assignment).unwrap();
    }
    parameters
}

/// The upcalls of a process.
#[derive(Default)]
pub struct Heard {
    pub messages: RefCell<VecDeque<(Rank, Vec<u8>)>>,
    pub failures: RefCell<Vec<(Rank, Error)>>,
    /// The peers that left, each with the number of unread messages at that time.
    pub left: RefCell<Vec<(Rank, usize)>>,
    /// Keep messages instead of copying them, if possible.
    pub retain: Cell<bool>,
    pub retained: RefCell<Vec<Retained>>,
    /// Operations may complete later. Otherwise all must be synchronous.
    pub asynchronous: Cell<bool>,
    pub completed: RefCell<Vec<(Token, Result<(), Error>)>>,
}

impl Upcalls for Heard {
    fn receive(&self, peer: Rank, message: Received<'_>) {
        if self.retain.get()
            && let Some(retained) = message.retain()
        {
            self.retained.borrow_mut().push(retained);
            return;
        }
        let mut bytes = vec![0; message.bytes().len()];
        assert_eq!(message.bytes().copy_to(&mut bytes), bytes.len());
        self.messages.borrow_mut().push_back((peer, bytes));
    }

    fn completed(&self, token: Token, result: Result<(), Error>) {
        assert!(self.asynchronous.get(), "{token:?} was completed, but all operations are synchronous");
        self.completed.borrow_mut().push((token, result));
    }

    fn peer_failed(&self, peer: Rank, error: Error) {
        self.failures.borrow_mut().push((peer, error));
    }

    fn peer_left(&self, peer: Rank) {
        self.left.borrow_mut().push((peer, self.messages.borrow().len()));
    }
}

/// One process of the job, which may share this process with others.
pub struct Process {
    pub btl: Arc<SharedMemory>,
    pub heard: Heard,
}

impl Process {
    pub fn new(rank: Rank, size: u32, assignments: &[&str]) -> Self {
        Self::of_job(&job(rank, size), assignments)
    }

    pub fn of_job(job: &Job, assignments: &[&str]) -> Self {
        Self::with_devices(job, assignments, &Devices::none())
    }

    pub fn with_devices(job: &Job, assignments: &[&str], devices: &Devices) -> Self {
        let btl = SharedMemory::new(job, &parameters(assignments), devices).unwrap();
        Process { btl, heard: Heard::default() }
    }

    pub fn connect(&self, peer: Rank, card: &[u8]) -> Box<dyn Endpoint> {
        self.btl.connect(peer, card).unwrap().pop().expect("the peer is reachable")
    }

    pub fn progress(&self) -> usize {
        self.btl.progress(&self.heard)
    }

    pub fn take(&self) -> Option<(Rank, Vec<u8>)> {
        self.heard.messages.borrow_mut().pop_front()
    }
}

/// Progresses all until `done` returns true.
pub fn until(processes: &[&Process], what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "timeout before {what}");
        for process in processes {
            process.progress();
        }
    }
}

/// Sends by the call that suits the length.
pub fn send(processes: &[&Process], endpoint: &mut dyn Endpoint, message: &[u8]) {
    let inline = message.len() <= endpoint.capabilities().inline_limit;
    until(processes, "the message is accepted", || {
        if inline {
            let (header, payload) = message.split_at(message.len().min(16));
            return endpoint.send_inline(header, payload).unwrap() == Sent::Done;
        }
        send_fragment(endpoint, message, FragmentKind::Host)
    });
}

/// Sends in a fragment. Returns false if none is free.
pub fn send_fragment(endpoint: &mut dyn Endpoint, message: &[u8], kind: FragmentKind) -> bool {
    let Some(mut fragment) = endpoint.alloc(message.len(), kind).unwrap() else { return false };
    assert!(fragment.capacity() >= message.len());
    let (header, payload) = message.split_at(message.len().min(24));
    fragment.fill(header, payload);
    endpoint.send(fragment, message.len()).unwrap();
    true
}

/// Returns bytes that depend on `seed`.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|index| (seed.wrapping_mul(31) + index.wrapping_mul(7) + (index >> 8)) as u8).collect()
}

/// Two connected processes in this one. The endpoint of 0 leads to 1, and that of 1 to 0.
pub struct Pair {
    pub zero: Process,
    pub one: Process,
    pub to_one: Box<dyn Endpoint>,
    pub to_zero: Box<dyn Endpoint>,
}

impl Pair {
    pub fn new(assignments: &[&str]) -> Self {
        Self::with_devices(assignments, &Devices::none())
    }

    pub fn with_devices(assignments: &[&str], devices: &Devices) -> Self {
        let zero = Process::with_devices(&job(0, 2), assignments, devices);
        let one = Process::with_devices(&job(1, 2), assignments, devices);
        let to_one = zero.connect(1, &one.btl.card());
        let to_zero = one.connect(0, &zero.btl.card());
        Pair { zero, one, to_one, to_zero }
    }

    /// Sends from 0 to 1 and waits for the arrival.
    pub fn deliver(&mut self, message: &[u8]) {
        send(&[&self.zero, &self.one], &mut *self.to_one, message);
        let mut received = None;
        until(&[&self.zero, &self.one], "the message arrives", || {
            received = self.one.take();
            received.is_some()
        });
        let (peer, bytes) = received.unwrap();
        assert_eq!(peer, 0);
        assert!(bytes == message, "a message of {} bytes arrived changed", message.len());
    }
}
