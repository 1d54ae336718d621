//! What callers and the thread of streams share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cableway_common_cuda::{ProgramStream, StreamWords};
use parking_lot::{Condvar, Mutex};

use super::kernel_words::Kernels;
use super::operation::Message;
use super::prepared::exchange::Exchange;
use super::state::StreamState;
use super::unneeded::Unneeded;
use crate::error::Error;
use crate::tag::Engine;

/// What the thread shares with callers.
pub(super) struct Shared {
    pub(super) engine: Arc<Engine>,
    pub(super) control: Mutex<Control>,
    /// Signalled when there may be something to do.
    pub(super) wake: Condvar,
    /// Signalled when something is done.
    pub(super) done: Condvar,
    /// The thread is about to sleep until the next call, or does. Posts of prepared operations wake it then.
    pub(super) rests: AtomicBool,
    /// Rounds of the thread, for tests that show that it sleeps.
    pub(super) rounds: AtomicU64,
    pub(super) ended: AtomicBool,
    pub(super) exchange: Exchange,
    pub(super) kernels: Kernels,
    /// Mappings of memory into which streams have put.
    pub(super) unneeded: Unneeded,
}

/// The list of streams, and how the thread is woken.
#[derive(Default)]
pub(super) struct Control {
    pub(super) streams: Vec<Arc<StreamState>>,
    /// Messages that calls of the host have started and the thread does not know.
    started: Vec<Arc<Message>>,
    /// Words of streams that are no longer used, with the context that they belong to. They stay registered.
    kept: Vec<Arc<StreamWords>>,
    /// Counts calls, so that the thread sees those that come while it looks.
    pub(super) calls: u64,
    pub(super) asleep: bool,
    pub(super) stop: bool,
}

impl Shared {
    pub(super) fn new(engine: &Arc<Engine>) -> Arc<Shared> {
        let shared = Arc::new(Shared {
            engine: engine.clone(),
            control: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
            rests: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            exchange: Exchange::new(engine),
            kernels: Kernels::default(),
            unneeded: Unneeded::default(),
        });
        // The thread closes mappings when no stream has work.
        let weak = Arc::downgrade(&shared);
        engine.devices().on_unclosed_mapping(move || weak.upgrade().map(|shared| shared.called()).is_some());
        shared
    }

    /// Returns the streams that are described or have something left to do.
    pub(super) fn streams(&self) -> Vec<Arc<StreamState>> {
        self.control.lock().streams.clone()
    }

    /// Counts the streams with a property, if there are at least so many streams.
    pub(super) fn count_if_at_least(&self, number: usize, has: impl Fn(&StreamState) -> bool) -> usize {
        let control = self.control.lock();
        if control.streams.len() < number { 0 } else { control.streams.iter().filter(|state| has(state)).count() }
    }

    /// Tells the thread that a call was added.
    pub(super) fn called(&self) {
        let mut control = self.control.lock();
        control.calls += 1;
        if std::mem::take(&mut control.asleep) {
            self.wake.notify_one();
        }
    }

    /// Says that the thread rests, unless a stream may wait for a peer. Returns how long it may sleep then.
    pub(super) fn rest_if_possible(&self) -> Option<Duration> {
        // First, so that a post which comes now wakes it, or is seen.
        self.rests.store(true, Ordering::SeqCst);
        let interval = self.exchange.interval();
        if interval.is_some() {
            self.rests.store(false, Ordering::SeqCst);
        }
        interval
    }

    /// Tells the thread that a stream may wait for a peer, if it sleeps until the next call.
    pub(super) fn posted(&self) {
        // The thread looks for posts after it has said that it rests.
        if self.rests.load(Ordering::SeqCst) {
            self.called();
        }
    }

    /// Has the thread look after a message that a call of the host has started.
    pub(super) fn look_after(&self, message: Arc<Message>) {
        let mut control = self.control.lock();
        control.started.push(message);
        control.calls += 1;
        if std::mem::take(&mut control.asleep) {
            self.wake.notify_one();
        }
    }

    /// Takes the messages that the host has started.
    pub(super) fn take_started(&self) -> Vec<Arc<Message>> {
        std::mem::take(&mut self.control.lock().started)
    }

    /// Fails if no call can be added.
    pub(super) fn check(&self) -> Result<(), Error> {
        match (self.engine.is_forked(), self.ended.load(Ordering::Acquire)) {
            (true, _) => Err(Error::Forked),
            (_, true) => Err(Error::StreamsEnded),
            _ => Ok(()),
        }
    }

    /// Waits until a condition holds that the thread brings about.
    ///
    /// # Errors
    /// The thread has ended before.
    pub(super) fn wait_until(&self, mut over: impl FnMut() -> bool) -> Result<(), Error> {
        if self.engine.is_forked() {
            // The thread may have held the lock when the child was forked.
            return Err(Error::Forked);
        }
        let mut control = self.control.lock();
        while !over() {
            if self.ended.load(Ordering::Acquire) {
                return Err(Error::StreamsEnded);
            }
            self.done.wait(&mut control);
        }
        Ok(())
    }

    /// Takes the words of an earlier stream of the same context.
    pub(super) fn kept_words(&self, program: &ProgramStream) -> Option<Arc<StreamWords>> {
        let mut control = self.control.lock();
        let place = control.kept.iter().position(|words| program.shares_context(words))?;
        Some(control.kept.swap_remove(place))
    }

    /// Removes streams that no one can call any more and that have nothing left to do.
    pub(super) fn remove_unused(&self, streams: &mut Vec<Arc<StreamState>>) {
        streams.clear();
        let mut control = self.control.lock();
        // Held by this list only, so no handle is left.
        let unused = |state: &mut Arc<StreamState>| Arc::strong_count(state) == 1 && state.is_at_rest();
        let removed: Vec<_> = control.streams.extract_if(.., unused).collect();
        control.kept.extend(removed.iter().map(|state| state.words().clone()));
        streams.extend(control.streams.iter().cloned());
        drop(control);
        // The end of the last one may call the driver, which may wait for the program.
        drop(removed);
    }
}
