//! What posts, arrivals and the dispatcher of one engine share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use cableway_base::lock::{Lock, Locking};

use super::wire::TAG;
use crate::error::Error;
use crate::tag::{Attention, Communicator, Engine, Service};

/// A function to call once an operation is complete.
pub(super) type Then<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

/// Something for the dispatcher, which an operation's hook adds.
pub(super) enum Event {
    /// A completion to call.
    Complete(Complete),
    /// An active message that came without its bytes has been received, or has failed.
    Received { source: u32, bytes: Result<Box<[u8]>, Error> },
}

/// The end of an operation, and the function that learns of it.
pub(super) enum Complete {
    Landing(Then<u64>, Result<u64, Error>),
    Post(Then<()>, Result<(), Error>),
}

impl Complete {
    pub(super) fn call(self) {
        match self {
            Complete::Landing(then, result) => then(result),
            Complete::Post(then, result) => then(result),
        }
    }
}

pub(super) struct State {
    /// It carries active messages only. The group is that of all processes that may send some.
    pub(super) communicator: Arc<Communicator>,
    events: Lock<VecDeque<Event>>,
    /// Their number, so that progress without an event takes no lock.
    waiting: AtomicUsize,
    /// Has the engine poll the dispatcher.
    attention: Arc<Attention>,
    /// The tag of the last data that was sent in a message of its own.
    last_tag: AtomicI32,
    /// Posts whose memory the engine still uses.
    posts: AtomicUsize,
    /// The dispatcher, which is polled from the first use on.
    service: OnceLock<Weak<dyn Service>>,
    started: AtomicBool,
    /// Whether the communicator belongs to someone else, so that the dispatcher ends before the engine.
    borrowed: bool,
}

impl State {
    pub(super) fn new(engine: &Engine, communicator: Arc<Communicator>, borrowed: bool) -> Self {
        State {
            communicator,
            events: Lock::new(Locking::REAL, VecDeque::new()),
            waiting: AtomicUsize::new(0),
            attention: engine.attention().clone(),
            last_tag: AtomicI32::new(TAG),
            posts: AtomicUsize::new(0),
            service: OnceLock::new(),
            started: AtomicBool::new(false),
            borrowed,
        }
    }

    /// Sets the dispatcher. Called once.
    pub(super) fn serve_by(&self, service: Weak<dyn Service>) {
        let _ = self.service.set(service);
    }

    /// Has the engine poll the dispatcher from now on.
    pub(super) fn start(&self, engine: &Engine) {
        if !self.started.swap(true, Ordering::AcqRel)
            && let Some(service) = self.service.get().and_then(Weak::upgrade)
        {
            if self.borrowed {
                engine.add_temporary_service(service);
            } else {
                engine.add_service(service);
            }
        }
    }

    /// Ends what [`start`](Self::start) began. Returns whether the communicator must not be removed.
    pub(super) fn stop(&self, engine: &Engine) -> bool {
        if self.borrowed
            && let Some(service) = self.service.get().and_then(Weak::upgrade)
        {
            engine.remove_temporary_service(&service);
        }
        self.borrowed
    }

    /// Returns a tag for data. A tag comes again after all others.
    pub(super) fn next_tag(&self) -> i32 {
        let next = |last: i32| Some(if last == i32::MAX { TAG + 1 } else { last + 1 });
        // The function always answers, so both results are the last tag.
        let last = self.last_tag.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_else(|last| last);
        if last == i32::MAX { TAG + 1 } else { last + 1 }
    }

    pub(super) fn push(&self, event: Event) {
        let mut events = self.events.lock();
        events.push_back(event);
        self.waiting.store(events.len(), Ordering::Release);
        drop(events);
        self.attention.raise();
    }

    /// Has the dispatcher call `then`.
    pub(super) fn landed(&self, then: Then<u64>, result: Result<u64, Error>) {
        self.push(Event::Complete(Complete::Landing(then, result)));
    }

    /// Has the dispatcher call `then`.
    pub(super) fn posted(&self, then: Then<()>, result: Result<(), Error>) {
        self.push(Event::Complete(Complete::Post(then, result)));
    }

    pub(super) fn pop(&self) -> Option<Event> {
        if !self.has_events() {
            return None;
        }
        let mut events = self.events.lock();
        let event = events.pop_front();
        self.waiting.store(events.len(), Ordering::Release);
        event
    }

    #[inline]
    pub(super) fn has_events(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    pub(super) fn begin_post(&self) {
        self.posts.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_post(&self) {
        self.posts.fetch_sub(1, Ordering::Release);
    }

    pub(super) fn posts(&self) -> usize {
        self.posts.load(Ordering::Acquire)
    }
}
