//! The thread that starts messages and releases streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cableway_base::fork::Origin;
use cableway_base::lock::Locking;
use cableway_common_cuda::{ProgramStream, StreamWords, Vendor};
use parking_lot::{Condvar, Mutex};

use super::handle::Stream;
use super::state::{Running, StreamState, WORDS};
use crate::error::Error;
use crate::tag::Engine;

/// Polls without an event before the thread gives the processor away between polls.
const SPINS: u32 = 200;
/// Polls without an event before the thread sleeps between polls: some milliseconds.
const PATIENCE: u32 = 5_000;
/// How long it sleeps then. A stream that gets to a message waits at most so much longer.
const NAP: Duration = Duration::from_micros(20);
/// Polls without an event between two looks whether the streams' contexts exist.
const LOOK_EVERY: u64 = 1 << 14;

/// All streams of an engine, and their thread. Clones share one state. Every method may be called from any thread.
#[derive(Clone)]
pub struct Streams {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    origin: Origin,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread shares with callers.
pub(super) struct Shared {
    pub(super) engine: Arc<Engine>,
    control: Mutex<Control>,
    /// Signalled when there may be something to do.
    wake: Condvar,
    /// Signalled when something is done.
    done: Condvar,
    /// Rounds of the thread, for tests that show that it sleeps.
    rounds: AtomicU64,
    ended: AtomicBool,
}

#[derive(Default)]
struct Control {
    streams: Vec<Arc<StreamState>>,
    /// Words of streams that are no longer used, with the context that they belong to. They stay registered.
    kept: Vec<Arc<StreamWords>>,
    /// Counts calls, so that the thread sees those that come while it looks.
    calls: u64,
    asleep: bool,
    stop: bool,
}

impl Streams {
    /// Creates the streams of an engine. The thread starts with the first stream.
    ///
    /// # Errors
    /// The engine's locks are left out ([`Engine::new_serialized`]), so that no second thread may call it.
    pub fn new(engine: &Arc<Engine>) -> Result<Streams, Error> {
        if engine.core().locking != Locking::REAL {
            return Err(Error::SerializedCalls);
        }
        let shared = Arc::new(Shared {
            engine: engine.clone(),
            control: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
            rounds: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        Ok(Streams { inner: Arc::new(Inner { shared, origin: Origin::here(), thread: Mutex::default() }) })
    }

    /// Describes a stream of the program by its handle (a `CUstream` or `hipStream_t`), in whichever context.
    ///
    /// # Safety
    /// The stream exists until the value is dropped and every call on it is done.
    ///
    /// # Errors
    /// The driver cannot operate on words in streams, which the error explains, or no thread can be created.
    pub unsafe fn stream(&self, vendor: Vendor, handle: usize) -> Result<Stream, Error> {
        let shared = &self.inner.shared;
        if !self.inner.origin.is_here() || shared.engine.is_forked() {
            return Err(Error::Forked);
        }
        // SAFETY: the caller's promise.
        let program = unsafe { shared.engine.devices().program_stream(vendor, handle) }.map_err(Error::Stream)?;
        self.inner.start()?;
        let words = match shared.kept_words(&program) {
            Some(words) => words,
            None => Arc::new(program.words(WORDS).map_err(Error::Stream)?),
        };
        let state = Arc::new(StreamState::new(program, words));
        shared.control.lock().streams.push(state.clone());
        Ok(Stream::new(shared.clone(), state))
    }

    /// Returns how often the thread has looked for something to do. The number stays as it is while the thread sleeps.
    #[doc(hidden)]
    pub fn rounds(&self) -> u64 {
        self.inner.shared.rounds.load(Ordering::Acquire)
    }

    /// Returns whether the thread sleeps until the next call.
    #[doc(hidden)]
    pub fn is_asleep(&self) -> bool {
        self.inner.shared.control.lock().asleep
    }
}

impl Inner {
    /// Starts the thread, if it does not run.
    fn start(&self) -> Result<(), Error> {
        let mut thread = self.thread.lock();
        if self.shared.ended.load(Ordering::Acquire) {
            return Err(Error::StreamsEnded);
        }
        if thread.is_none() {
            let shared = self.shared.clone();
            let builder = std::thread::Builder::new().name("cableway streams".into());
            let started = cableway_base::without_signals(|| builder.spawn(move || run(&shared)));
            *thread = Some(started.map_err(|error| Error::NoThread { reason: error.to_string().into() })?);
        }
        Ok(())
    }
}

impl Drop for Inner {
    /// Ends the thread. Streams that still wait are released, and their messages end with an error.
    fn drop(&mut self) {
        let thread = self.thread.get_mut().take();
        if !self.origin.is_here() {
            // The thread does not exist in a forked child.
            return std::mem::forget(thread);
        }
        self.shared.control.lock().stop = true;
        self.shared.wake.notify_all();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread of streams panicked");
        }
    }
}

impl Shared {
    /// Tells the thread that a call was added.
    pub(super) fn called(&self) {
        let mut control = self.control.lock();
        control.calls += 1;
        if std::mem::take(&mut control.asleep) {
            self.wake.notify_one();
        }
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
        let mut control = self.control.lock();
        while !over() {
            if self.engine.is_forked() {
                return Err(Error::Forked);
            }
            if self.ended.load(Ordering::Acquire) {
                return Err(Error::StreamsEnded);
            }
            self.done.wait(&mut control);
        }
        Ok(())
    }

    /// Takes the words of an earlier stream of the same context.
    fn kept_words(&self, program: &ProgramStream) -> Option<Arc<StreamWords>> {
        let mut control = self.control.lock();
        let place = control.kept.iter().position(|words| program.shares_context(words))?;
        Some(control.kept.swap_remove(place))
    }

    /// Removes streams that no one can call any more and that have nothing left to do.
    fn remove_unused(&self, streams: &mut Vec<Arc<StreamState>>) {
        streams.clear();
        let mut control = self.control.lock();
        let control = &mut *control;
        // Held by this list only, so no handle is left.
        let unused = |state: &mut Arc<StreamState>| Arc::strong_count(state) == 1 && state.is_idle();
        for state in control.streams.extract_if(.., unused) {
            control.kept.push(state.words().clone());
        }
        streams.extend(control.streams.iter().cloned());
    }
}

/// Ends the streams if the thread panics: a stream must not wait for ever.
struct Ending<'s>(&'s Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let streams = {
            let control = self.0.control.lock();
            self.0.ended.store(true, Ordering::Release);
            control.streams.clone()
        };
        streams.iter().for_each(|state| state.give_up(&Error::StreamsEnded));
        self.0.done.notify_all();
        // A stream that has not passed its last call may still write to its words.
        streams.into_iter().filter(|state| !state.is_idle()).for_each(std::mem::forget);
    }
}

fn run(shared: &Shared) {
    let _ending = Ending(shared);
    let mut active = Active(Vec::new());
    let mut streams: Vec<Arc<StreamState>> = Vec::new();
    let (mut idle, mut rounds) = (0_u32, 0_u64);
    let mut calls = u64::MAX;
    loop {
        let now = shared.control.lock().calls;
        if now != calls {
            calls = now;
            shared.remove_unused(&mut streams);
        }
        shared.rounds.fetch_add(1, Ordering::Release);
        let moved = turn(shared, &streams, &mut active.0);
        if moved {
            // Under the lock, so that no caller misses it between its look and its sleep.
            let _control = shared.control.lock();
            shared.done.notify_all();
        }
        let busy = !active.0.is_empty() || streams.iter().any(|state| !state.is_idle());
        let mut control = shared.control.lock();
        if control.stop {
            return;
        }
        if !busy && control.calls == calls {
            control.asleep = true;
            while control.calls == calls && !control.stop {
                shared.wake.wait(&mut control);
            }
            control.asleep = false;
            (idle, rounds) = (0, 0);
            continue;
        }
        drop(control);
        idle = if moved { 0 } else { idle.saturating_add(1) };
        rounds += 1;
        shared.engine.waited(rounds);
        if rounds.is_multiple_of(LOOK_EVERY) {
            look_at_contexts(shared, &streams);
        }
        rest(idle);
    }
}

/// Does what can be done now. Returns whether something was.
fn turn(shared: &Shared, streams: &[Arc<StreamState>], active: &mut Vec<Running>) -> bool {
    let engine = &*shared.engine;
    let mut moved = false;
    for state in streams {
        moved |= state.start_due(engine, active);
    }
    moved |= engine.progress() != 0;
    let before = active.len();
    active.retain(|running| {
        let over = running.message.look();
        if over && matches!(running.message.result(), Some(Err(_))) {
            running.state.note_failed(&running.message);
        }
        !over
    });
    moved |= active.len() != before;
    for state in streams {
        moved |= state.release();
    }
    moved
}

/// Ends what waits for streams whose contexts the program has destroyed.
#[cold]
fn look_at_contexts(shared: &Shared, streams: &[Arc<StreamState>]) {
    let gone = streams.iter().filter(|state| !state.is_idle() && state.end_if_gone(&Error::StreamsEnded)).count();
    if gone != 0 {
        let _control = shared.control.lock();
        shared.done.notify_all();
    }
}

/// Waits between two polls, the longer the less happens.
fn rest(idle: u32) {
    match idle {
        0 => {}
        1..SPINS => std::hint::spin_loop(),
        SPINS..PATIENCE => std::thread::yield_now(),
        _ => std::thread::sleep(NAP),
    }
}

/// The messages under way. The engine still uses their memory, so they outlive a panic.
struct Active(Vec<Running>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.drain(..).for_each(std::mem::forget);
    }
}
