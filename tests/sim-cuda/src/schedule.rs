//! When work runs: late, and in any order that streams and events permit.
//!
//! A queue holds a stream's work in the order of its submission. Only the first piece of each queue may run. Among the
//! pieces that may run and are due, a random one runs for one step, so that long copies of two streams interleave. The
//! legacy default stream's queue and the blocking queues of its context wait for each other's earlier work.
//!
//! One thread runs work. A thread that waits for work helps. Steps run without the lock.

use std::collections::{BTreeMap, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::driver::AfterInit;
use crate::error::{Error, Outcome};
use crate::settings::Settings;

/// The interval between checks of a condition outside of this process.
const OUTSIDE_POLL: Duration = Duration::from_micros(50);

pub(crate) type QueueId = u64;

/// A piece of a stream's work.
pub(crate) trait Work: Send {
    /// Checks whether it may run now. Called with the scheduler's lock held.
    fn is_ready(&self) -> bool {
        true
    }

    /// Checks whether its condition can become true without work of this process.
    fn waits_outside(&self) -> bool {
        false
    }

    /// Does a part of the work. Returns true when all is done.
    fn step(&mut self) -> bool;

    /// Checks whether its end is a fault, after which no context of the process does any more work.
    fn has_faulted(&self) -> bool {
        false
    }

    /// Handles the end of its context before it ran: nothing may wait for it any longer.
    fn abandon(&mut self) {}
}

/// The relation of a queue to the legacy default stream of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Legacy,
    Blocking,
    NonBlocking,
}

struct Entry {
    /// The position among all work ever submitted.
    sequence: u64,
    due: Instant,
    /// `None` while a step of it runs.
    work: Option<Box<dyn Work>>,
}

struct Queue {
    context: u64,
    kind: QueueKind,
    entries: VecDeque<Entry>,
    /// Removed as soon as it is empty.
    closed: bool,
}

#[derive(Default)]
struct Queues {
    queues: BTreeMap<QueueId, Queue>,
    /// A kernel has faulted.
    faulted: bool,
    sequence: u64,
    random: u64,
    has_thread: bool,
}

pub(crate) struct Scheduler {
    delay: Duration,
    queues: Mutex<Queues>,
    changed: Condvar,
}

pub(crate) static SCHEDULER: AfterInit<Scheduler> = AfterInit::new(|| {
    let settings = Settings::get();
    Scheduler::new(settings.delay, settings.seed)
});

/// The result of a search for work.
enum Look {
    Ran,
    /// Nothing can run before this time, or before something changes.
    Nothing(Option<Instant>),
}

impl Scheduler {
    fn new(delay: Duration, seed: u64) -> Self {
        let queues = Queues { random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, ..Queues::default() };
        Scheduler { delay, queues: Mutex::new(queues), changed: Condvar::new() }
    }

    pub(crate) fn open(&self, context: u64, kind: QueueKind) -> QueueId {
        let mut queues = self.queues.lock();
        queues.sequence += 1;
        let id = queues.sequence;
        queues.queues.insert(id, Queue { context, kind, entries: VecDeque::new(), closed: false });
        id
    }

    /// Removes the queue after its work is done.
    pub(crate) fn close(&self, id: QueueId) {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.queues.get_mut(&id) {
            queue.closed = true;
            if queue.entries.is_empty() {
                queues.queues.remove(&id);
            }
        }
    }

    /// # Errors
    /// The queue's context is destroyed, a kernel has faulted, or no thread can be created.
    pub(crate) fn submit(&'static self, id: QueueId, work: Box<dyn Work>) -> Outcome {
        let mut queues = self.queues.lock();
        if !queues.has_thread {
            let run = thread::Builder::new().name("sim-cuda".to_owned()).spawn(move || self.run());
            run.map_err(|_| Error::OPERATING_SYSTEM)?;
            queues.has_thread = true;
        }
        queues.sequence += 1;
        let sequence = queues.sequence;
        let due = Instant::now() + self.delay.mul_f64(2.0 * queues.fraction());
        let Queues { queues: of_ids, faulted, .. } = &mut *queues;
        let queue = of_ids.get_mut(&id).ok_or(Error::CONTEXT_IS_DESTROYED)?;
        if *faulted {
            return Err(Error::LAUNCH_FAILED);
        }
        queue.entries.push_back(Entry { sequence, due, work: Some(work) });
        drop(queues);
        self.changed.notify_all();
        Ok(())
    }

    /// Fails if a kernel has faulted.
    pub(crate) fn check(&self) -> Outcome {
        if self.queues.lock().faulted { Err(Error::LAUNCH_FAILED) } else { Ok(()) }
    }

    /// Checks whether all work that `id` has or must wait for is done.
    pub(crate) fn is_idle(&self, id: QueueId) -> bool {
        let queues = self.queues.lock();
        queues.is_done(id, queues.sequence)
    }

    /// Waits until all present work of `id`, and all work that it must wait for, is done.
    pub(crate) fn wait_queue(&self, id: QueueId) {
        let upto = self.queues.lock().sequence;
        self.wait(|queues| queues.is_done(id, upto));
    }

    /// Waits until all present work of the context is done.
    pub(crate) fn wait_context(&self, context: u64) {
        let upto = self.queues.lock().sequence;
        self.wait(|queues| queues.of_context(context).all(|(_, queue)| queue.is_done(upto)));
    }

    /// Waits until all present work is done.
    pub(crate) fn wait_all(&self) {
        let upto = self.queues.lock().sequence;
        self.wait(|queues| queues.queues.values().all(|queue| queue.is_done(upto)));
    }

    /// Waits until `done` returns true, which some work will cause.
    pub(crate) fn wait_until(&self, done: impl Fn() -> bool) {
        self.wait(|_| done());
    }

    /// Removes the context's queues and the work in them, after the running steps end.
    pub(crate) fn drop_context(&self, context: u64) {
        let mut queues = self.queues.lock();
        let mut abandoned = Vec::new();
        loop {
            for queue in queues.queues.values_mut().filter(|queue| queue.context == context) {
                abandoned.extend(queue.entries.extract_waiting());
            }
            if queues.of_context(context).all(|(_, queue)| queue.entries.is_empty()) {
                break;
            }
            self.changed.wait(&mut queues);
        }
        queues.queues.retain(|_, queue| queue.context != context);
        drop(queues);
        for work in &mut abandoned {
            work.abandon();
        }
        self.changed.notify_all();
    }

    /// Waits until `done` returns true, which another process will cause.
    pub(crate) fn wait_outside(&self, done: impl Fn() -> bool) {
        let mut queues = self.queues.lock();
        while !done() {
            if let Look::Nothing(_) = self.run_one(&mut queues) {
                self.changed.wait_for(&mut queues, OUTSIDE_POLL);
            }
        }
    }

    fn run(&self) {
        let mut queues = self.queues.lock();
        loop {
            self.look(&mut queues);
        }
    }

    fn wait(&self, done: impl Fn(&Queues) -> bool) {
        let mut queues = self.queues.lock();
        while !done(&queues) {
            self.look(&mut queues);
        }
    }

    /// Does a step of some work, or waits until there may be one.
    fn look(&self, queues: &mut MutexGuard<'_, Queues>) {
        match self.run_one(queues) {
            Look::Ran => {}
            Look::Nothing(Some(until)) => {
                self.changed.wait_until(queues, until);
            }
            Look::Nothing(None) => self.changed.wait(queues),
        }
    }

    fn run_one(&self, queues: &mut MutexGuard<'_, Queues>) -> Look {
        let (id, mut work) = match queues.pick(Instant::now()) {
            Ok(picked) => picked,
            Err(wake_at) => return Look::Nothing(wake_at),
        };
        let done = MutexGuard::unlocked(queues, || work.step());
        let Queues { queues: of_ids, faulted, .. } = &mut **queues;
        let has_faulted = work.has_faulted();
        if let Some(queue) = of_ids.get_mut(&id) {
            if done || *faulted {
                queue.entries.pop_front();
            } else if let Some(entry) = queue.entries.front_mut() {
                entry.work = Some(work);
                work = Box::new(Nothing);
            }
            if queue.closed && queue.entries.is_empty() {
                of_ids.remove(&id);
            }
        }
        if has_faulted {
            Self::fail(queues);
        }
        // The work may hold the last reference to memory. Drop it without the lock.
        MutexGuard::unlocked(queues, move || drop(work));
        // The thread that ran this step may stop waiting, so another thread must run the next step.
        self.changed.notify_all();
        Look::Ran
    }

    /// Drops all work after a fault, and refuses more.
    fn fail(queues: &mut MutexGuard<'_, Queues>) {
        queues.faulted = true;
        let mut abandoned: Vec<_> =
            queues.queues.values_mut().flat_map(|queue| queue.entries.extract_waiting()).collect();
        queues.queues.retain(|_, queue| !queue.closed || !queue.entries.is_empty());
        MutexGuard::unlocked(queues, || {
            abandoned.iter_mut().for_each(|work| work.abandon());
            drop(abandoned);
        });
    }
}

/// Work that does nothing.
struct Nothing;

impl Work for Nothing {
    fn step(&mut self) -> bool {
        true
    }
}

trait ExtractWaiting {
    fn extract_waiting(&mut self) -> Vec<Box<dyn Work>>;
}

impl ExtractWaiting for VecDeque<Entry> {
    /// Removes all work without a running step.
    fn extract_waiting(&mut self) -> Vec<Box<dyn Work>> {
        let running = if self.front().is_some_and(|entry| entry.work.is_none()) { self.pop_front() } else { None };
        let waiting = self.drain(..).filter_map(|entry| entry.work).collect();
        self.extend(running);
        waiting
    }
}

impl Queue {
    fn is_done(&self, upto: u64) -> bool {
        self.entries.front().is_none_or(|entry| entry.sequence > upto)
    }
}

impl Queues {
    fn of_context(&self, context: u64) -> impl Iterator<Item = (&QueueId, &Queue)> {
        self.queues.iter().filter(move |(_, queue)| queue.context == context)
    }

    /// Checks whether work up to `upto` is done in the queue and in those that it is ordered with.
    fn is_done(&self, id: QueueId, upto: u64) -> bool {
        self.queues.get(&id).is_none_or(|queue| queue.is_done(upto) && self.may_follow(id, queue, upto))
    }

    /// Checks whether the other queues that this one is ordered with have no work before `sequence`.
    fn may_follow(&self, id: QueueId, queue: &Queue, sequence: u64) -> bool {
        let ordered = |other: QueueKind| match queue.kind {
            QueueKind::Legacy => other == QueueKind::Blocking,
            QueueKind::Blocking => other == QueueKind::Legacy,
            QueueKind::NonBlocking => false,
        };
        self.of_context(queue.context)
            .filter(|(other, queue)| **other != id && ordered(queue.kind))
            .all(|(_, queue)| queue.is_done(sequence))
    }

    /// Takes some work that may run and is due, or returns when to check again.
    fn pick(&mut self, now: Instant) -> Result<(QueueId, Box<dyn Work>), Option<Instant>> {
        let mut able = Vec::new();
        let mut wake_at: Option<Instant> = None;
        for (id, queue) in &self.queues {
            let Some(Entry { sequence, due, work: Some(work) }) = queue.entries.front() else { continue };
            let wait_until = if *due > now {
                *due
            } else if !self.may_follow(*id, queue, *sequence) {
                continue;
            } else if work.is_ready() {
                able.push(*id);
                continue;
            } else if work.waits_outside() {
                now + OUTSIDE_POLL
            } else {
                continue;
            };
            wake_at = Some(wake_at.map_or(wait_until, |at| at.min(wait_until)));
        }
        if able.is_empty() {
            return Err(wake_at);
        }
        let id = able[self.below(able.len())];
        let work = self.queues.get_mut(&id).and_then(|queue| queue.entries.front_mut()?.work.take());
        work.map(|work| (id, work)).ok_or(None)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next_random() % count as u64) as usize
    }

    fn fraction(&mut self) -> f64 {
        (self.next_random() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Xorshift: the sequence depends only on the seed.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
