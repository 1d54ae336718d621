//! The streams of an engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use cableway_base::fork::Origin;
use cableway_common_cuda::{Holder, ProgramStream, Vendor};
use parking_lot::Mutex;

use super::bounce::WORDS;
use super::connections::connections;
use super::gated::{Gated, StartGate};
use super::handle::Stream;
use super::message::StreamMessage;
use super::operation::{Described, Message, StreamJob};
use super::prepared::quiet::{PATIENCE, while_quiet};
use super::proxy;
use super::shared::Shared;
use super::state::StreamState;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::tag::{Communicator, Engine};

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

impl Streams {
    /// Creates the streams of an engine. The thread starts with the first stream.
    ///
    /// # Errors
    /// The engine's locks are left out ([`Engine::new_serialized`]), so that no second thread may call it. The host makes
    /// them real first ([`end_elision`](cableway_base::lock::end_elision)).
    pub fn new(engine: &Arc<Engine>) -> Result<Streams, Error> {
        if !engine.core().locking.is_real() {
            return Err(Error::SerializedCalls);
        }
        Ok(Streams {
            inner: Arc::new(Inner { shared: Shared::new(engine), origin: Origin::here(), thread: Mutex::default() }),
        })
    }

    /// Describes a stream of the program by its handle (a `CUstream` or `hipStream_t`), in whichever context.
    ///
    /// # Safety
    /// The stream exists until the value is dropped and every call on it is done.
    ///
    /// # Errors
    /// The driver cannot operate on words in streams, which the error explains, or no thread can be created, or
    /// `CUDA_DEVICE_MAX_CONNECTIONS` is 1.
    pub unsafe fn stream(&self, vendor: Vendor, handle: usize) -> Result<Stream, Error> {
        let shared = &self.inner.shared;
        // SAFETY: the caller's promise.
        let program = unsafe { self.described(vendor, handle) }?;
        let words = match shared.kept_words(&program) {
            Some(words) => words,
            None => Arc::new(program.words(WORDS).map_err(Error::Stream)?),
        };
        let held = shared.engine.devices().hold_mappings(Holder::of(&*shared.engine));
        let state = Arc::new(StreamState::new(program, words, held));
        shared.control.lock().streams.push(state.clone());
        Ok(Stream::new(shared.clone(), state))
    }

    /// Loads the kernels of collectives, in the contexts of all described streams: a driver loads kernels only after it has
    /// waited for streams, so nothing loads them while a stream may wait for a message. Waits up to two seconds for streams
    /// with other work. If a stream may wait for a message, nothing is loaded, and the host reduces.
    pub fn load_collectives(&self) {
        let shared = &self.inner.shared;
        let streams = shared.control.lock().streams.clone();
        let load = || streams.iter().for_each(|state| state.program.load_collectives());
        if while_quiet(&shared.engine, &streams, PATIENCE, load).is_err() {
            log::debug!("a stream may wait for a message, so no kernels that reduce are loaded");
        }
    }

    /// Starts a send on the calling thread, as [`Engine::isend`]. Streams can wait for it.
    ///
    /// # Safety
    /// The buffer stays valid and unwritten until the message is over. The communicator stays in the engine.
    ///
    /// # Errors
    /// A bad rank or tag, or no thread can be created. Later failures are the message's.
    pub unsafe fn isend(
        &self,
        to: &Arc<Communicator>,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        let described = Described::send(to, dest, tag, buffer)?;
        // SAFETY: the caller's promise.
        unsafe { self.start(described) }
    }

    /// Starts a receive on the calling thread, as [`Engine::irecv`]. Streams can wait for it.
    ///
    /// # Safety
    /// The buffer stays valid and untouched until the message is over. The communicator stays in the engine.
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn irecv(
        &self,
        on: &Arc<Communicator>,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        let described = Described::receive(on, source, tag, buffer)?;
        // SAFETY: the caller's promise.
        unsafe { self.start(described) }
    }

    /// Has the thread start a send once the gate is open. Streams can wait for it.
    ///
    /// # Safety
    /// As [`isend`](Self::isend).
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn isend_gated(
        &self,
        to: &Arc<Communicator>,
        (dest, tag): (i32, i32),
        buffer: Buffer<'_>,
        gate: Box<dyn StartGate>,
    ) -> Result<StreamMessage, Error> {
        let described = Described::send(to, dest, tag, buffer)?;
        let engine = &self.started()?.engine;
        described.check_early(engine.devices())?;
        let job = Gated::new(engine, Message::new(described), gate);
        // SAFETY: the caller's promise.
        unsafe { self.run(Box::new(job)) }
    }

    /// Has the thread poll a job from now on. Streams can wait for it.
    ///
    /// # Safety
    /// The memory that the job uses stays valid until it is over.
    ///
    /// # Errors
    /// No thread can be created, or it has ended.
    pub unsafe fn run(&self, job: Box<dyn StreamJob>) -> Result<StreamMessage, Error> {
        let shared = self.started()?;
        let message = Message::job(job);
        shared.look_after(message.clone());
        Ok(StreamMessage::new(shared.clone(), message))
    }

    /// Describes a stream of the program, and starts the thread, if it does not run.
    ///
    /// # Safety
    /// As [`stream`](Self::stream).
    pub(super) unsafe fn described(&self, vendor: Vendor, handle: usize) -> Result<ProgramStream, Error> {
        let shared = &self.inner.shared;
        if !self.inner.origin.is_here() || shared.engine.is_forked() {
            return Err(Error::Forked);
        }
        if vendor == Vendor::Nvidia && connections() == 1 {
            return Err(Error::OneConnection);
        }
        // SAFETY: the caller's promise.
        let program = unsafe { shared.engine.devices().program_stream(vendor, handle) }.map_err(Error::Stream)?;
        self.inner.start()?;
        Ok(program)
    }

    /// Returns what callers share with the thread, which runs.
    pub(super) fn started(&self) -> Result<&Arc<Shared>, Error> {
        self.inner.check_and_start()?;
        Ok(&self.inner.shared)
    }

    /// # Safety
    /// As [`isend`](Self::isend) and [`irecv`](Self::irecv).
    unsafe fn start(&self, described: Described) -> Result<StreamMessage, Error> {
        described.buffer.borrow().packed_len()?;
        let shared = self.started()?;
        let message = Message::new(described);
        // SAFETY: the list, and then the thread, keeps the message until it is over. The caller keeps the buffer.
        unsafe { message.start(&shared.engine) };
        shared.look_after(message.clone());
        Ok(StreamMessage::new(shared.clone(), message))
    }

    /// Returns whether the thread has ended, which it does before the last value is dropped only if it panicked.
    pub fn have_ended(&self) -> bool {
        self.inner.shared.ended.load(Ordering::Acquire)
    }

    /// Returns how often the thread has looked for something to do. The number stays as it is while the thread sleeps.
    #[doc(hidden)]
    pub fn rounds(&self) -> u64 {
        self.inner.shared.rounds.load(Ordering::Acquire)
    }

    /// Returns whether the thread sleeps until the next call.
    #[doc(hidden)]
    pub fn is_asleep(&self) -> bool {
        let shared = &self.inner.shared;
        shared.control.lock().asleep && shared.rests.load(Ordering::SeqCst)
    }
}

impl Inner {
    /// Starts the thread, if it does not run, unless this process is a forked child.
    fn check_and_start(&self) -> Result<(), Error> {
        if !self.origin.is_here() || self.shared.engine.is_forked() {
            return Err(Error::Forked);
        }
        self.start()
    }

    /// Starts the thread, if it does not run.
    fn start(&self) -> Result<(), Error> {
        let mut thread = self.thread.lock();
        if self.shared.ended.load(Ordering::Acquire) {
            return Err(Error::StreamsEnded);
        }
        if thread.is_none() {
            let shared = self.shared.clone();
            let builder = std::thread::Builder::new().name("cableway streams".into());
            let started = cableway_base::without_signals(|| builder.spawn(move || proxy::run(&shared)));
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
