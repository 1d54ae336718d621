//! Active messages: a process posts a message, and the target calls the handler that it registered for the message's
//! id.
//!
//! They are ordinary messages on a communicator of their own, so every protocol and transport carries them:
//!
//! - `wire`: the bytes before the program's header.
//! - `poster`: posts messages. Host data of at most [`INLINE_LIMIT`] bytes comes with its header. Other data follows as
//!   a message whose tag the header's message names.
//! - `arrival`: a message in its handler, which chooses where such data lands.
//! - `dispatch`: takes messages and calls handlers. `state` is what these share. `deferred`: what is called after a
//!   handler.
//!
//! # Order
//! Handlers see the messages from one process in the order in which it posted them. Handlers and completions of one
//! process run one at a time, in any thread that makes progress. A handler that makes progress itself moves messages and
//! calls no other handler. Data lands, and its completions run, in any order.
//!
//! # Flow control
//! No post waits. The receiver's queue is bounded by the credit of ordinary messages: beyond it a sender keeps its
//! messages. So handlers may post without a deadlock, and a sender that never stops uses its own memory.
//!
//! # Before a handler, and after
//! Messages wait until their process registers its first handler. From then on a message whose id has no handler is
//! dropped; this is logged once for each id. So register all handlers before a call that makes progress, or synchronise
//! before peers post.

mod arrival;
mod deferred;
mod dispatch;
mod poster;
mod state;
mod wire;

use std::sync::{Arc, Weak};

use cableway_base::Rank;

pub use arrival::Arrival;
pub use dispatch::Counts;
pub use poster::Poster;
pub use wire::{HEADER_LIMIT, INLINE_LIMIT};

use crate::error::Error;
use crate::tag::{Communicator, Engine, Service};
use dispatch::Dispatcher;
use state::State;
use wire::TAG;

/// Parses an active message, and writes it again. For fuzzers.
pub(crate) fn recode(bytes: &[u8]) {
    if let Ok(message) = wire::Preamble::parse(bytes) {
        let mut written = Vec::new();
        message.encode(&mut written);
        assert_eq!(written, bytes);
    }
}

/// The active messages of one engine and context, with ids of their own. May be used from any thread.
pub struct ActiveMessages {
    poster: Poster,
    dispatcher: Arc<Dispatcher>,
}

impl ActiveMessages {
    /// Prepares active messages between the processes of `group`, in which this one has rank `rank`. `context` carries
    /// nothing else. All processes of the group make this call, before the first of them posts. Until the first handler
    /// or post it costs a communicator's memory and no time.
    ///
    /// # Errors
    /// The context is in use, or the group names a process that does not exist.
    pub fn new(engine: &Arc<Engine>, context: u32, group: Vec<Rank>, rank: u32) -> Result<Self, Error> {
        Ok(Self::with(engine, State::new(engine, engine.add_communicator(context, group, rank)?, false)))
    }

    /// Prepares active messages between the members of a communicator, on which other messages have tags below 0 only.
    /// All members make this call. [`close`](Self::close) leaves the communicator as it is. So close only once all
    /// members have handled what was posted to them.
    pub fn over(engine: &Arc<Engine>, communicator: Arc<Communicator>) -> Self {
        Self::with(engine, State::new(engine, communicator, true))
    }

    fn with(engine: &Arc<Engine>, state: State) -> Self {
        engine.open_inbox(&state.communicator, TAG);
        let state = Arc::new(state);
        let dispatcher = Arc::new(Dispatcher::new(state.clone()));
        let service: Weak<Dispatcher> = Arc::downgrade(&dispatcher);
        state.serve_by(service as Weak<dyn Service>);
        ActiveMessages { poster: Poster { engine: engine.clone(), state }, dispatcher }
    }

    /// Returns what posts messages.
    pub fn poster(&self) -> &Poster {
        &self.poster
    }

    /// Registers a handler for messages with this id.
    ///
    /// The handler must not wait for messages. It may post. If it panics, the panic is logged, and the message's data is
    /// dropped. The engine keeps the handler until it is removed or [`close`](Self::close) is called. So a handler that
    /// owns the engine keeps it alive until then.
    ///
    /// # Errors
    /// The id has a handler already, or this process is a forked child.
    pub fn register(&self, id: u32, handler: impl Fn(Arrival<'_>) + Send + Sync + 'static) -> Result<(), Error> {
        if self.poster.engine.is_forked() {
            return Err(Error::Forked);
        }
        self.dispatcher.add(id, Arc::new(handler))?;
        self.poster.state.start(&self.poster.engine);
        // A post may have started the dispatcher, and messages may wait for the first handler.
        self.poster.engine.attention().raise();
        Ok(())
    }

    /// Removes a handler. Returns whether there was one. A call of it that is under way ends normally.
    pub fn unregister(&self, id: u32) -> bool {
        !self.poster.engine.is_forked() && self.dispatcher.remove(id)
    }

    /// Returns what was handled so far.
    pub fn counts(&self) -> Counts {
        self.dispatcher.counts()
    }

    /// Waits until every earlier post of this process has left, and its data can be reused. Not for handlers.
    pub fn flush(&self) {
        self.poster.engine.wait_until(|| self.poster.pending() == 0);
    }

    /// Ends active messages: drops the handlers and all messages that wait, and refuses later ones. Landings whose data
    /// has not begun to come fail, and their completions are called before this returns.
    pub fn close(&self) {
        let engine = &self.poster.engine;
        if engine.is_forked() {
            return;
        }
        if !self.poster.state.stop(engine) {
            engine.remove_communicator(&self.poster.state.communicator);
        }
        self.dispatcher.clear(engine);
        self.dispatcher.finish();
    }
}
