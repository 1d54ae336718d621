//! The order of puts and of what follows them.
//!
//! Programs of LibMP rely on the order that one queue of its network card keeps. Operations start in *lanes*: on the host,
//! on a stream, by kernels. A put ends after those to the same rank that were posted before it on the host or in its lane, so
//! that a program waits for the last one only. A send starts after these puts, and after those of all lanes that have
//! started: what a program has waited for, such as a stream, has started.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use cableway_pml::{Communicator, Error, StartGate};
use parking_lot::Mutex;

/// Where operations start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Host,
    /// A stream of the program, by its context and handle.
    Stream(u64, usize),
    /// A kernel that runs.
    Kernel,
}

/// Where operations go: a rank of a communicator, which has this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Target {
    communicator: usize,
    rank: i32,
}

/// Whether others still wait for an operation: for a put until it is over, for a send until it has started.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    passed: AtomicBool,
}

impl Awaited {
    fn is_passed(&self) -> bool {
        self.passed.load(Ordering::Acquire)
    }

    fn pass(&self) {
        self.passed.store(true, Ordering::Release);
    }
}

/// The last operation of a kind in a lane. Once it is passed, so are the lane's operations of that kind before it.
type Last = (Lane, Arc<Awaited>);

/// What is under way to a target.
#[derive(Default)]
struct Traffic {
    posted_puts: Vec<Last>,
    started_puts: Vec<Last>,
    /// Sends that wait for puts.
    sends: Vec<Last>,
}

static ALL: LazyLock<Mutex<HashMap<Target, Traffic>>> = LazyLock::new(Mutex::default);

impl Target {
    pub(super) fn new(on: &Communicator, rank: i32) -> Target {
        Target { communicator: (&raw const *on).expose_provenance(), rank }
    }
}

impl Traffic {
    fn remove_passed(&mut self) {
        for list in [&mut self.posted_puts, &mut self.started_puts, &mut self.sends] {
            list.retain(|(_, operation)| !operation.is_passed());
        }
    }

    fn is_empty(&self) -> bool {
        self.posted_puts.is_empty() && self.started_puts.is_empty() && self.sends.is_empty()
    }

    /// Returns the puts that an operation of a lane follows. `batch` has those of the same call.
    fn puts_before(&self, target: Target, lane: Lane, batch: &[PostedPut]) -> Vec<Arc<Awaited>> {
        let before = |other: Lane| other == Lane::Host || other == lane;
        let posted = self.posted_puts.iter().filter(|(other, _)| before(*other)).map(|(_, put)| put.clone());
        let new = batch.iter().rev().find(|put| put.target == target).map(|put| put.awaited.clone());
        posted.chain(new).collect()
    }
}

/// Calls a function with what is under way to a target.
fn with<R>(target: Target, work: impl FnOnce(&mut Traffic) -> R) -> R {
    let mut all = ALL.lock();
    let traffic = all.entry(target).or_default();
    traffic.remove_passed();
    let result = work(traffic);
    if traffic.is_empty() {
        all.remove(&target);
    }
    result
}

fn set_last(list: &mut Vec<Last>, lane: Lane, operation: &Arc<Awaited>) {
    list.retain(|(other, _)| *other != lane);
    list.push((lane, operation.clone()));
}

/// A put that is described. Its drop ends it.
#[derive(Debug)]
pub(super) struct Put {
    posted: PostedPut,
    /// The puts after which it ends.
    after: Vec<Arc<Awaited>>,
}

impl Put {
    /// Describes a put of a lane, which [`PostedPut::note`] posts. `batch` has those of the same call.
    pub(super) fn new(target: Target, lane: Lane, batch: &[PostedPut]) -> Put {
        let after = with(target, |traffic| traffic.puts_before(target, lane, batch));
        Put { posted: PostedPut { target, lane, awaited: Arc::default() }, after }
    }

    pub(super) fn posted(&self) -> PostedPut {
        self.posted.clone()
    }

    /// Notes that the put has started.
    pub(super) fn note_started(&self) {
        let PostedPut { target, lane, awaited } = &self.posted;
        with(*target, |traffic| set_last(&mut traffic.started_puts, *lane, awaited));
    }

    /// Returns whether the puts before it are over.
    pub(super) fn may_end(&self) -> bool {
        self.after.iter().all(|before| before.is_passed())
    }

    /// Notes that the put is over.
    pub(super) fn note_over(&self) {
        self.posted.awaited.pass();
    }

    /// Lets it end before the puts before it, which nobody looks at any more.
    pub(super) fn let_go(&mut self) {
        self.after.clear();
    }
}

impl Drop for Put {
    fn drop(&mut self) {
        self.note_over();
    }
}

/// A put that a call posts.
#[derive(Clone, Debug)]
pub(super) struct PostedPut {
    target: Target,
    lane: Lane,
    awaited: Arc<Awaited>,
}

impl PostedPut {
    /// Notes that the put was posted: later operations follow it.
    pub(super) fn note(&self) {
        with(self.target, |traffic| set_last(&mut traffic.posted_puts, self.lane, &self.awaited));
    }
}

/// A send that waits for puts.
pub(super) struct Gate {
    target: Target,
    awaited: Arc<Awaited>,
    /// The puts after which it starts.
    puts: Vec<Arc<Awaited>>,
    /// The send of the lane that starts before it.
    send: Option<Arc<Awaited>>,
    looks: u32,
}

impl Gate {
    /// Returns the gate of a send, or `None` if no put is under way. `batch` has the puts of the same call.
    pub(super) fn new(target: Target, lane: Lane, batch: &[PostedPut]) -> Option<Gate> {
        // Most programs put nothing.
        let any = batch.iter().any(|put| put.target == target) || ALL.lock().contains_key(&target);
        any.then(|| Gate::always(target, lane, batch))
    }

    /// Returns the gate of a send that starts much later.
    pub(super) fn always(target: Target, lane: Lane, batch: &[PostedPut]) -> Gate {
        with(target, |traffic| {
            let puts = traffic.puts_before(target, lane, batch);
            let send = traffic.sends.iter().find(|(other, _)| *other == lane).map(|(_, send)| send.clone());
            let awaited = Arc::default();
            set_last(&mut traffic.sends, lane, &awaited);
            Gate { target, awaited, puts, send, looks: 0 }
        })
    }
}

impl StartGate for Gate {
    fn is_open(&mut self) -> Result<bool, Error> {
        if self.send.as_ref().is_some_and(|before| !before.is_passed()) {
            return Ok(false);
        }
        // The thread starts what streams and kernels have reached between two looks.
        self.looks = self.looks.saturating_add(1);
        if self.looks == 2 {
            with(self.target, |traffic| self.puts.extend(traffic.started_puts.iter().map(|(_, put)| put.clone())));
        }
        Ok(self.looks > 2 && self.puts.iter().all(|put| put.is_passed()))
    }

    fn note_started(&mut self) {
        self.awaited.pass();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.awaited.pass();
    }
}
