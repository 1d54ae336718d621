//! The order of puts and of what follows them.
//!
//! Programs of LibMP rely on the order that one queue of its network card keeps. Operations start in *lanes*: on the host,
//! on a stream, by kernels. A put ends after those to the same rank that were posted before it on the host or in its lane, so
//! that a program waits for the last one only. A send starts after these puts, and after those of all lanes that have
//! started: what a program has waited for, such as a stream, has started.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use cableway_pml::{Communicator, SendGate};
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

/// How far a put or a send is.
#[derive(Debug, Default)]
pub(super) struct Progress {
    started: AtomicBool,
    over: AtomicBool,
}

impl Progress {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// The last operation of a kind in a lane. Its end implies that of the lane's operations of that kind before it.
type Last = (Lane, Arc<Progress>);

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
    fn remove_ended(&mut self) {
        for list in [&mut self.posted_puts, &mut self.started_puts, &mut self.sends] {
            list.retain(|(_, progress)| !progress.is_over());
        }
    }

    fn is_empty(&self) -> bool {
        self.posted_puts.is_empty() && self.started_puts.is_empty() && self.sends.is_empty()
    }

    fn puts_before(&self, lane: Lane) -> Vec<Arc<Progress>> {
        let before = |other: Lane| other == Lane::Host || other == lane;
        self.posted_puts.iter().filter(|(other, _)| before(*other)).map(|(_, put)| put.clone()).collect()
    }
}

/// Calls a function with what is under way to a target.
fn with<R>(target: Target, work: impl FnOnce(&mut Traffic) -> R) -> R {
    let mut all = ALL.lock();
    let traffic = all.entry(target).or_default();
    traffic.remove_ended();
    let result = work(traffic);
    if traffic.is_empty() {
        all.remove(&target);
    }
    result
}

fn set_last(list: &mut Vec<Last>, lane: Lane, progress: &Arc<Progress>) {
    list.retain(|(other, _)| *other != lane);
    list.push((lane, progress.clone()));
}

/// A put that is described. Its drop ends it.
#[derive(Debug)]
pub(super) struct Put {
    target: Target,
    lane: Lane,
    progress: Arc<Progress>,
    /// The puts after which it ends.
    after: Vec<Arc<Progress>>,
}

impl Put {
    /// Describes a put of a lane, which [`PostedPut::note`] posts. `batch` has those of the same call.
    pub(super) fn new(target: Target, lane: Lane, batch: &[PostedPut]) -> Put {
        let mut after = with(target, |traffic| traffic.puts_before(lane));
        after.extend(batch.iter().rev().find(|put| put.target == target).map(|put| put.progress.clone()));
        Put { target, lane, progress: Arc::default(), after }
    }

    pub(super) fn posted(&self) -> PostedPut {
        PostedPut { target: self.target, lane: self.lane, progress: self.progress.clone() }
    }

    /// Notes that the put has started.
    pub(super) fn note_started(&self) {
        self.progress.started.store(true, Ordering::Release);
        with(self.target, |traffic| set_last(&mut traffic.started_puts, self.lane, &self.progress));
    }

    /// Returns whether the puts before it are over.
    pub(super) fn may_end(&self) -> bool {
        self.after.iter().all(|before| before.is_over())
    }

    /// Notes that the put is over.
    pub(super) fn note_over(&self) {
        self.progress.over.store(true, Ordering::Release);
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
pub(super) struct PostedPut {
    target: Target,
    lane: Lane,
    progress: Arc<Progress>,
}

impl PostedPut {
    /// Notes that the put was posted: later operations follow it.
    pub(super) fn note(&self) {
        with(self.target, |traffic| set_last(&mut traffic.posted_puts, self.lane, &self.progress));
    }
}

/// A send that waits for puts.
pub(super) struct Gate {
    target: Target,
    progress: Arc<Progress>,
    /// The puts after which it starts.
    puts: Vec<Arc<Progress>>,
    /// The send of the lane that starts before it.
    send: Option<Arc<Progress>>,
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
        let new = batch.iter().rev().find(|put| put.target == target).map(|put| put.progress.clone());
        with(target, |traffic| {
            let mut puts = traffic.puts_before(lane);
            puts.extend(new);
            let send = traffic.sends.iter().find(|(other, _)| *other == lane).map(|(_, send)| send.clone());
            let progress = Arc::default();
            set_last(&mut traffic.sends, lane, &progress);
            Gate { target, progress, puts, send, looks: 0 }
        })
    }
}

impl SendGate for Gate {
    fn is_open(&mut self) -> bool {
        if self.send.as_ref().is_some_and(|before| !before.started.load(Ordering::Acquire) && !before.is_over()) {
            return false;
        }
        // The thread starts what streams and kernels have reached between two looks.
        self.looks = self.looks.saturating_add(1);
        if self.looks == 2 {
            let started = with(self.target, |traffic| {
                traffic.started_puts.iter().map(|(_, put)| put.clone()).collect::<Vec<_>>()
            });
            self.puts.extend(started);
        }
        self.looks > 2 && self.puts.iter().all(|put| put.is_over())
    }

    fn note_started(&mut self) {
        self.progress.started.store(true, Ordering::Release);
        self.progress.over.store(true, Ordering::Release);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.progress.over.store(true, Ordering::Release);
    }
}
