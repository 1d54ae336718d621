//! Calls handlers, one at a time, in the order of each sender's posts.
//!
//! Messages wait in the inbox of the hidden communicator, which bounds their memory by the senders' credit. The thread
//! whose turn it is takes all of them at once, and handles a number of them in each poll. A message that came with its
//! bytes is handled in place. Another one, which its sender only announced for want of credit, is received first. Later
//! messages of that sender wait meanwhile, those of other senders do not.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ahash::RandomState;
use cableway_base::lock::{Lock, Locking, Shared};
use parking_lot::Mutex;

use super::arrival::{Arrival, discard};
use super::deferred::Deferred;
use super::poster::Poster;
use super::state::{Complete, Event, State};
use super::wire::{Data, MESSAGE_LIMIT, Preamble, TAG};
use crate::abort::Abort;
use crate::buffer::Buffer;
use crate::core::{self, Done};
use crate::error::Error;
use crate::tag::{Engine, Mail, Message, Request, Service, Taken};
use crate::wire::Malformed;

/// Most messages and completions of one poll, so that a waiting call notices soon that its own operation is complete.
const BATCH: usize = 64;

/// Unknown ids that are reported. A hostile peer could send four billion.
const REPORTED: usize = 16;

/// What a panic is reported of.
const COMPLETION: &str = "a completion of an active message";

pub(super) type Handler = Arc<dyn Fn(Arrival<'_>) + Send + Sync>;

/// Counts of what was handled. See [`ActiveMessages::counts`](super::ActiveMessages::counts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages that were passed to their handlers.
    pub handled: u64,
    /// Messages that were dropped because no handler has their id.
    pub unknown: u64,
    /// Handlers and completions that panicked.
    pub panicked: u64,
}

pub(super) struct Dispatcher {
    state: Arc<State>,
    handlers: Shared<HashMap<u32, Handler, RandomState>>,
    /// Messages wait until there is a handler.
    open: AtomicBool,
    /// Messages that were taken from the inbox. The thread that calls handlers holds it.
    turn: Lock<Mail>,
    /// The number of messages that the last turn left there.
    left: AtomicUsize,
    /// What the last turn left is dropped.
    closed: AtomicBool,
    /// Senders of which a message is being received, and their later messages. Used by the thread that has the turn.
    blocked: Lock<HashMap<u32, VecDeque<Message>, RandomState>>,
    reported: Mutex<Vec<u32>>,
    handled: AtomicU64,
    unknown: AtomicU64,
    panicked: AtomicU64,
}

impl Dispatcher {
    pub(super) fn new(state: Arc<State>) -> Self {
        Dispatcher {
            state,
            handlers: Shared::new(Locking::REAL, HashMap::default()),
            open: AtomicBool::new(false),
            turn: Lock::new(Locking::REAL, Mail::default()),
            left: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            blocked: Lock::new(Locking::REAL, HashMap::default()),
            reported: Mutex::default(),
            handled: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
        }
    }

    pub(super) fn add(&self, id: u32, handler: Handler) -> Result<(), Error> {
        self.handlers.write(|handlers| {
            if handlers.contains_key(&id) {
                return Err(Error::HandlerInUse { id });
            }
            handlers.insert(id, handler);
            Ok(())
        })?;
        self.open.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) fn remove(&self, id: u32) -> bool {
        let removed = self.handlers.write(|handlers| handlers.remove(&id));
        removed.is_some()
    }

    /// Drops all handlers and the messages that wait.
    pub(super) fn clear(&self, engine: &Engine) {
        self.closed.store(true, Ordering::Release);
        // The values are dropped without a lock: what a handler owns may call back.
        let handlers = self.handlers.write(std::mem::take);
        let blocked = std::mem::take(&mut *self.blocked.lock());
        // Another thread that has the turn drops its messages itself.
        let mail = self.turn.try_lock().map(|mut turn| std::mem::take(&mut *turn));
        if let Some(mail) = mail {
            self.refuse(engine, mail);
        }
        drop((handlers, blocked));
    }

    fn refuse(&self, engine: &Engine, mail: Mail) {
        let mut done = Done::default();
        engine.refuse_mail(&self.state.communicator, mail, Abort::CommunicatorRemoved, &mut done);
        done.run();
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts { handled: read(&self.handled), unknown: read(&self.unknown), panicked: read(&self.panicked) }
    }

    /// Handles one event or message. Returns false if there is none.
    fn step(&self, engine: &Engine, poster: &Poster, turn: &mut Mail, done: &mut Done) -> bool {
        match self.state.pop() {
            Some(Event::Complete(complete)) => {
                self.complete(complete);
                return true;
            }
            Some(Event::Received { source, bytes }) => {
                self.received(engine, poster, source, bytes);
                return true;
            }
            None => {}
        }
        if self.closed.load(Ordering::Acquire) {
            return false;
        }
        let on = &self.state.communicator;
        if turn.is_empty() && self.open.load(Ordering::Acquire) && on.has_mail() {
            engine.take_mail(on, turn);
        }
        let Some((source, message)) = turn.pop() else { return false };
        let keep = |message: Taken<'_, _>| match message {
            Taken::Whole(bytes) => engine.keep_whole(on, source, TAG, bytes),
            Taken::Other(message) => engine.keep_message(on, source, *message),
        };
        if let Some(later) = self.blocked.lock().get_mut(&source) {
            later.push_back(keep(message));
            return true;
        }
        match message {
            Taken::Whole(bytes) => {
                self.handle(engine, poster, source, bytes);
                engine.note_handled(on, source, bytes.len(), done);
            }
            Taken::Other(_) => {
                if let Some(announced) = self.handle_whole(engine, poster, source, keep(message)) {
                    self.receive(engine, source, announced, VecDeque::new());
                }
            }
        }
        true
    }

    /// Handles a message that came with its bytes. Returns another one.
    fn handle_whole(&self, engine: &Engine, poster: &Poster, source: u32, message: Message) -> Option<Message> {
        let Some(bytes) = message.payload() else { return Some(message) };
        self.handle(engine, poster, source, bytes);
        // The drop of the message gives the sender its credit back.
        None
    }

    /// Receives a message that was only announced. `later` messages of its sender wait.
    fn receive(&self, engine: &Engine, source: u32, message: Message, later: VecDeque<Message>) {
        let len = message.status().len;
        if len > MESSAGE_LIMIT as u64 {
            // Nothing that follows such a message makes sense.
            return self.disconnect(engine, source, &Malformed::ActiveMessage { len, reason: "it is too long" });
        }
        self.blocked.lock().insert(source, later);
        let bytes = vec![0; len as usize].into_boxed_slice();
        let fetch =
            Box::into_raw(Box::new(Fetch { request: Request::new(), bytes, source, state: self.state.clone() }));
        // SAFETY: the request is new, and the hook gets the box that it expects. Box and bytes live until it frees them.
        unsafe {
            (*fetch).request.set_hook(Some((fetched, fetch.cast())));
            let into = Buffer::bytes((*fetch).bytes.as_mut_ptr(), len);
            engine.imrecv(message, into, fetch.cast());
        }
    }

    /// Handles a message that has been received, and then those of its sender that waited for it.
    fn received(&self, engine: &Engine, poster: &Poster, source: u32, bytes: Result<Box<[u8]>, Error>) {
        match bytes {
            Ok(bytes) => self.handle(engine, poster, source, &bytes),
            Err(error) => log::debug!("an active message of rank {source} was lost: {error}"),
        }
        loop {
            let next = {
                let mut blocked = self.blocked.lock();
                let Some(later) = blocked.get_mut(&source) else { return };
                let Some(next) = later.pop_front() else {
                    blocked.remove(&source);
                    return;
                };
                next
            };
            if let Some(announced) = self.handle_whole(engine, poster, source, next) {
                let later = self.blocked.lock().remove(&source).unwrap_or_default();
                return self.receive(engine, source, announced, later);
            }
        }
    }

    /// Passes a message to its handler.
    fn handle(&self, engine: &Engine, poster: &Poster, source: u32, bytes: &[u8]) {
        let Preamble { id, header, data } = match Preamble::parse(bytes) {
            Ok(message) => message,
            Err(malformed) => return self.disconnect(engine, source, &malformed),
        };
        let handler = self.handlers.read(|handlers| handlers.get(&id).cloned());
        let Some(handler) = handler else {
            if let Data::Follows { tag, .. } = data {
                discard(engine, &self.state, source, tag);
            }
            return self.note_unknown(source, id);
        };
        // Only the thread that has the turn counts.
        self.handled.store(self.handled.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let mut after = Deferred::none();
        let arrival = Arrival { poster, source, id, header, data: Some(data), after: &mut after };
        self.guarded(|| handler(arrival), || format!("the handler of active message {id}, from rank {source},"));
        self.guarded(|| after.call(), || COMPLETION.to_owned());
    }

    fn complete(&self, complete: Complete) {
        self.guarded(|| complete.call(), || COMPLETION.to_owned());
    }

    fn note_unknown(&self, source: u32, id: u32) {
        self.unknown.fetch_add(1, Ordering::Relaxed);
        let mut reported = self.reported.lock();
        if reported.len() < REPORTED && !reported.contains(&id) {
            reported.push(id);
            log::error!("active message {id} from rank {source} is dropped: register a handler before peers post it");
        }
    }

    /// Calls the program's code. A panic ends there.
    fn guarded(&self, act: impl FnOnce(), what: impl FnOnce() -> String) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
            self.panicked.fetch_add(1, Ordering::Relaxed);
            log::error!("{} panicked: {}", what(), text(&*panic));
            // The drop of what was thrown may panic as well.
            std::mem::forget(panic);
        }
    }

    #[cold]
    fn disconnect(&self, engine: &Engine, source: u32, malformed: &Malformed) {
        let process = self.state.communicator.group()[source as usize];
        let Some(slot) = engine.known(process) else { return };
        let mut done = Done::default();
        core::disconnect(engine, slot, malformed, &mut done);
        done.run();
    }

    /// Handles all events that are left, without taking messages.
    pub(super) fn finish(&self) {
        while let Some(event) = self.state.pop() {
            if let Event::Complete(complete) = event {
                self.complete(complete);
            }
        }
    }

    #[inline]
    fn has_work(&self) -> bool {
        let waits = || self.state.communicator.has_mail() || self.left.load(Ordering::Acquire) != 0;
        self.state.has_events() || (self.open.load(Ordering::Acquire) && waits())
    }
}

impl Service for Dispatcher {
    fn poll(&self, engine: &Engine) -> usize {
        let mut handled = 0;
        // Another thread may have skipped its turn because this one had it, so look again afterwards.
        while handled < BATCH
            && self.has_work()
            && let Some(mut turn) = self.turn.try_lock()
        {
            // SAFETY: the value is not dropped, and both are borrowed for longer.
            let poster =
                unsafe { ManuallyDrop::new(Poster { engine: engine.uncounted(), state: std::ptr::read(&self.state) }) };
            let mut done = Done::default();
            let before = handled;
            while handled < BATCH && self.step(engine, &poster, &mut turn, &mut done) {
                handled += 1;
            }
            if self.closed.load(Ordering::Acquire) {
                self.refuse(engine, std::mem::take(&mut *turn));
            }
            self.left.store(turn.len(), Ordering::Release);
            drop(turn);
            done.run();
            if handled == before {
                break;
            }
        }
        handled
    }

    fn is_idle(&self) -> bool {
        !self.has_work()
    }
}

/// A message that is being received.
#[repr(C)]
struct Fetch {
    /// The first field, so that both have the same address.
    request: Request,
    bytes: Box<[u8]>,
    source: u32,
    state: Arc<State>,
}

/// Passes a message that has been received to the dispatcher. It is the hook of its request.
///
/// # Safety
/// `user` is a leaked box of a [`Fetch`], and nothing else uses it.
unsafe fn fetched(_request: *const Request, user: *mut c_void) {
    // SAFETY: the caller's promise.
    let Fetch { request, bytes, source, state } = *unsafe { Box::from_raw(user.cast::<Fetch>()) };
    let bytes = request.result().map(|_| bytes);
    state.push(Event::Received { source, bytes });
}

/// Returns the text of a panic.
fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}
