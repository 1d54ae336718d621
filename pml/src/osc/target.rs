//! The target's side: what peers ask of this process's window, and the answers.
//!
//! An ask is checked before anything is written: the range, the length of the data, and the reduction.

use std::sync::Arc;

use parking_lot::Mutex;

use super::accumulates::{Accumulate, Change, Queues, Ready, allocate};
use super::exposure::{Exposure, Reached};
use super::host::Host;
use super::wire::{ANSWER, ANSWER_LEN, Answer, Ask, Reach, Wish};
use crate::am::{Arrival, Poster};
use crate::buffer::Buffer;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::shapes::Gathered;
use crate::wire::Malformed;

pub(super) struct Target {
    pub(super) exposure: Exposure,
    host: Arc<dyn Host>,
    pub(super) shapes: Gathered,
    queues: Mutex<Queues>,
}

impl Target {
    pub(super) fn new(exposure: Exposure, host: Arc<dyn Host>) -> Self {
        Target { exposure, host, shapes: Gathered::default(), queues: Mutex::default() }
    }

    /// Returns whether no accumulate waits for its turn.
    pub(super) fn is_idle(&self) -> bool {
        self.queues.lock().is_empty()
    }

    /// Does what a peer asks for, and answers. Data may land later.
    pub(super) fn serve(self: &Arc<Self>, arrival: Arrival<'_>) -> Result<(), Malformed> {
        let (ask, inline) = Ask::parse(arrival.header())?;
        let expected = match ask.reach {
            Reach::Run { .. } => 0,
            Reach::Elements { blocks, .. } => blocks,
        };
        let blocks = self.shapes.complete_next(arrival.source(), inline, expected)?;
        let reply = Reply { poster: arrival.poster().clone(), to: arrival.source(), number: ask.number };
        // The drop of the arrival drops the data of what is refused.
        let reached = match self.exposure.find(ask.displacement, &ask.reach, &blocks) {
            Ok(reached) => reached,
            Err(refusal) => return refuse(&reply, refusal),
        };
        let (change, fetch) = match ask.wish {
            Wish::Put => return put(arrival, reached, reply),
            Wish::Get => {
                reply.answer_with(&reached);
                return Ok(());
            }
            Wish::Accumulate { combine, fetch } => (Change::Combine(combine), fetch),
            Wish::CompareSwap => (Change::CompareSwap, true),
        };
        self.accumulate(arrival, Accumulate { reached, change, fetch, number: ask.number }, &reply)
    }

    fn accumulate(
        self: &Arc<Self>,
        arrival: Arrival<'_>,
        accumulate: Accumulate,
        reply: &Reply,
    ) -> Result<(), Malformed> {
        let expected = match accumulate.data_len(&*self.host) {
            Ok(expected) if expected == arrival.len() => expected,
            Ok(_) => return Err(Malformed::OneSided("the data of an accumulate has another length than its target")),
            Err(refusal) => return refuse(reply, refusal),
        };
        let memory = usize::try_from(expected).map_err(|_| Refusal::NoMemory).and_then(allocate);
        let mut data = match memory {
            Ok(data) => data,
            Err(refusal) => return refuse(reply, refusal),
        };
        let origin = arrival.source();
        let place = self.queues.lock().add(origin, accumulate);
        if let Some(inline) = arrival.data() {
            data.copy_from_slice(inline);
            self.queues.lock().landed(origin, place, Ok(data));
            self.make_ready(origin, &reply.poster);
            return Ok(());
        }
        let (target, poster) = (self.clone(), reply.poster.clone());
        let into = Buffer::bytes(data.as_mut_ptr(), expected);
        // SAFETY: the completion owns the memory.
        unsafe {
            arrival.receive(into, move |landed| {
                let data = landed.map(|_| data).map_err(|error| incomplete(&error));
                target.queues.lock().landed(origin, place, data);
                target.make_ready(origin, &poster);
            });
        }
        Ok(())
    }

    /// Makes the accumulates of an origin whose turn it is. Runs in handlers and completions, so one at a time.
    fn make_ready(&self, origin: u32, poster: &Poster) {
        loop {
            // The lock is not held meanwhile.
            let next = self.queues.lock().next(origin);
            let Some((accumulate, data)): Option<Ready> = next else { return };
            let reply = Reply { poster: poster.clone(), to: origin, number: accumulate.number };
            // SAFETY: the window's memory is valid, as its owner promised; the data was checked to have this length.
            let made = data.and_then(|data| unsafe { accumulate.make(&*self.host, poster.engine().devices(), data) });
            reply.fetched(accumulate.fetch, made);
        }
    }
}

fn put(arrival: Arrival<'_>, reached: Reached, reply: Reply) -> Result<(), Malformed> {
    if arrival.len() != reached.len {
        return Err(Malformed::OneSided("the data of a put has another length than its target"));
    }
    // SAFETY: the window's memory is valid, as its owner promised, and peers may write it.
    unsafe {
        arrival.receive(reply.buffer(&reached), move |landed| {
            reply.answer(landed.map(drop).map_err(|error| incomplete(&error)));
        });
    }
    Ok(())
}

/// Answers what is well-formed, but not possible here.
fn refuse(reply: &Reply, refusal: Refusal) -> Result<(), Malformed> {
    reply.answer(Err(refusal));
    Ok(())
}

fn incomplete(error: &Error) -> Refusal {
    match error {
        Error::Device { .. } => Refusal::Device,
        _ => Refusal::Incomplete,
    }
}

/// Where an answer goes.
struct Reply {
    poster: Poster,
    to: u32,
    number: u64,
}

impl Reply {
    /// Describes the window's bytes. Copies follow no default stream while one of the program's streams may wait for them,
    /// because the default stream may wait for that one.
    fn buffer<'r>(&self, reached: &'r Reached) -> Buffer<'r> {
        let held = self.poster.engine().devices().are_mappings_held();
        if held { reached.buffer().settled() } else { reached.buffer() }
    }

    fn header(&self, result: Result<(), Refusal>) -> [u8; ANSWER_LEN] {
        Answer { number: self.number, result }.to_bytes()
    }

    /// Answers without data.
    fn answer(&self, result: Result<(), Refusal>) {
        // SAFETY: there is no data.
        let posted = unsafe { self.poster.post_inline(self.to, ANSWER, &self.header(result), Buffer::EMPTY) };
        self.note(posted.map(drop));
    }

    /// Answers with the window's bytes.
    fn answer_with(&self, reached: &Reached) {
        // SAFETY: the window's memory is valid, as its owner promised. Which bytes are sent of memory that peers write
        // meanwhile is not promised.
        let posted =
            unsafe { self.poster.post_then(self.to, ANSWER, &self.header(Ok(())), self.buffer(reached), |_sent| {}) };
        self.note(posted);
    }

    /// Answers an accumulate.
    fn fetched(&self, fetch: bool, made: Result<Vec<u8>, Refusal>) {
        match made {
            Ok(before) if fetch => {
                let buffer = Buffer::bytes(before.as_ptr(), before.len() as u64);
                let header = self.header(Ok(()));
                // SAFETY: the completion owns the bytes.
                let posted =
                    unsafe { self.poster.post_then(self.to, ANSWER, &header, buffer, move |_sent| drop(before)) };
                self.note(posted);
            }
            other => self.answer(other.map(drop)),
        }
    }

    fn note(&self, posted: Result<(), Error>) {
        if let Err(error) = posted {
            log::debug!("an answer of a window is lost with rank {}: {error}", self.to);
        }
    }
}
