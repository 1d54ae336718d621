//! Sends that wait for other operations before they start.

use std::sync::Arc;

use super::operation::{Described, Message, StreamJob};
use crate::error::Error;
use crate::tag::Engine;

/// Tells when a send may start. The thread of streams asks.
pub trait SendGate: Send {
    /// Returns whether the send may start now. It is asked again if not.
    fn is_open(&mut self) -> bool;

    /// Notes that the send has started, so that the next one may.
    fn note_started(&mut self);
}

/// A send that starts once its gate is open.
pub(super) struct Gated {
    engine: Arc<Engine>,
    message: Arc<Message>,
    gate: Box<dyn SendGate>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    IsUnderWay,
    /// The thread has ended before.
    GivenUp,
}

impl Gated {
    pub(super) fn new(engine: &Arc<Engine>, described: Described, gate: Box<dyn SendGate>) -> Gated {
        Gated { engine: engine.clone(), message: Message::new(described), gate, state: State::Waits }
    }
}

impl StreamJob for Gated {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        match self.state {
            State::Waits if !self.gate.is_open() => return None,
            State::Waits => {
                self.state = State::IsUnderWay;
                // SAFETY: this value keeps the message until the job is over, and the thread leaks it if it ends before.
                // The caller of `isend_gated` keeps the buffer.
                unsafe { self.message.start(&self.engine) };
                self.gate.note_started();
            }
            State::IsUnderWay => {}
            State::GivenUp => return Some(Err(Error::StreamsEnded)),
        }
        self.message.look();
        self.message.result().map(|result| result.clone().map(drop))
    }

    fn let_go(&mut self) {
        if self.state == State::Waits {
            self.state = State::GivenUp;
        }
    }
}
