//! Answers to asks.

use super::accumulates::Operand;
use super::exposure::Reached;
use super::wire::{ANSWER, ANSWER_LEN, Answer};
use crate::am::{Arrival, Poster};
use crate::buffer::Buffer;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::tag::Engine;

/// Where an answer goes.
pub(super) struct Reply {
    poster: Poster,
    to: u32,
    /// Names the operation at its origin.
    number: u64,
}

impl Reply {
    pub(super) fn new(arrival: &Arrival<'_>, number: u64) -> Self {
        Reply { poster: arrival.poster().clone(), to: arrival.source(), number }
    }

    /// Returns the rank that gets the answer.
    pub(super) fn to(&self) -> u32 {
        self.to
    }

    pub(super) fn engine(&self) -> &Engine {
        self.poster.engine()
    }

    /// Describes the window's bytes.
    pub(super) fn buffer<'r>(&self, reached: &'r Reached) -> Buffer<'r> {
        reached.buffer().for_peer(self.engine().devices())
    }

    /// Answers without data.
    pub(super) fn answer(&self, result: Result<(), Refusal>) {
        // SAFETY: there is no data.
        let posted = unsafe { self.poster.post_inline(self.to, ANSWER, &self.header(result), Buffer::EMPTY) };
        self.note(posted.map(drop));
    }

    /// Answers with the window's bytes.
    pub(super) fn answer_with(&self, reached: &Reached) {
        // SAFETY: the window's memory is valid, as its owner promised. Which bytes are sent of memory that peers write
        // meanwhile is not promised.
        let posted =
            unsafe { self.poster.post_then(self.to, ANSWER, &self.header(Ok(())), self.buffer(reached), |_sent| {}) };
        self.note(posted);
    }

    /// Answers an accumulate, with the elements before if they were asked for.
    pub(super) fn answer_accumulate(&self, made: Result<Option<Operand>, Refusal>) {
        match made {
            Ok(Some(before)) => {
                let (header, buffer) = (self.header(Ok(())), before.buffer());
                // SAFETY: the completion owns the bytes.
                let posted =
                    unsafe { self.poster.post_then(self.to, ANSWER, &header, buffer, move |_sent| drop(before)) };
                self.note(posted);
            }
            other => self.answer(other.map(drop)),
        }
    }

    fn header(&self, result: Result<(), Refusal>) -> [u8; ANSWER_LEN] {
        Answer { number: self.number, result }.to_bytes()
    }

    fn note(&self, posted: Result<(), Error>) {
        if let Err(error) = posted {
            log::debug!("an answer of a window is lost with rank {}: {error}", self.to);
        }
    }
}
