//! Messages that wait for other operations, or for a kernel, before they start.

use std::sync::Arc;

use super::operation::{Message, StreamJob};
use crate::error::Error;
use crate::tag::Engine;

/// Tells when a message may start. The thread of streams asks.
pub trait StartGate: Send {
    /// Returns whether the message may start now. It is asked again if not.
    ///
    /// # Errors
    /// The message will never start, and fails with this.
    fn is_open(&mut self) -> Result<bool, Error>;

    /// Notes that the message has started or failed, so that the next one may start.
    fn note_started(&mut self);
}

/// A message that starts once its gate is open.
pub(super) struct Gated {
    engine: Arc<Engine>,
    message: Arc<Message>,
    gate: Box<dyn StartGate>,
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
    /// Makes the job of a message that has not started. The program keeps its buffer until the job is over.
    pub(super) fn new(engine: &Arc<Engine>, message: Arc<Message>, gate: Box<dyn StartGate>) -> Gated {
        Gated { engine: engine.clone(), message, gate, state: State::Waits }
    }
}

impl StreamJob for Gated {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        match self.state {
            State::Waits => {
                match self.gate.is_open() {
                    Ok(false) => return None,
                    // SAFETY: this value keeps the message until the job is over, and the thread leaks it if it ends
                    // before. The program keeps the buffer.
                    Ok(true) => unsafe { self.message.start(&self.engine) },
                    Err(error) => {
                        self.message.end(Err(error));
                        self.message.let_go();
                    }
                }
                self.state = State::IsUnderWay;
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
