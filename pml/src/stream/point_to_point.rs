//! Messages that are added to a stream.

use std::sync::Arc;

use cableway_common_cuda::{CopySlotNumber, MemoryClass, StreamStep};

use super::batch::StreamBatch;
use super::bounce::{ARRIVED, ARRIVING, MOST};
use super::gated::{Gated, StartGate};
use super::message::StreamMessage;
use super::operation::{Described, Message, Way};
use super::prepared::pair::{Agreed, Pair};
use crate::buffer::Buffer;
use crate::error::Error;
use crate::status::PROC_NULL;
use crate::tag::Communicator;

/// The most numbers that a stream has to write before a kernel is added to it. A driver accepts about 1000 operations behind a
/// wait. A launch behind them waits, and other threads' copies wait for the launch, perhaps those that would end the wait.
const MOST_AHEAD: u64 = 512;

/// The buffer of a message that can pass through host memory.
struct Run {
    address: *mut u8,
    len: usize,
    slot: CopySlotNumber,
}

impl StreamBatch<'_> {
    /// As [`Stream::isend`](super::Stream::isend).
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// A bad rank or tag. The other calls of the batch are not affected.
    pub unsafe fn isend(
        &mut self,
        to: &Arc<Communicator>,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        self.start(Described::send(to, dest, tag, buffer)?)
    }

    /// As [`Stream::irecv`](super::Stream::irecv).
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn irecv(
        &mut self,
        on: &Arc<Communicator>,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        self.start(Described::receive(on, source, tag, buffer)?)
    }

    /// As [`Stream::send`](super::Stream::send).
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn send(
        &mut self,
        to: &Arc<Communicator>,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        self.start_and_wait(Described::send(to, dest, tag, buffer)?)
    }

    /// As [`Stream::recv`](super::Stream::recv).
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn recv(
        &mut self,
        on: &Arc<Communicator>,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<StreamMessage, Error> {
        self.start_and_wait(Described::receive(on, source, tag, buffer)?)
    }

    /// Starts a send when the stream gets there and the gate is open, which does not hold the stream up.
    ///
    /// # Safety
    /// As [`Stream::isend`](super::Stream::isend).
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn isend_gated(
        &mut self,
        to: &Arc<Communicator>,
        (dest, tag): (i32, i32),
        buffer: Buffer<'_>,
        gate: Box<dyn StartGate>,
    ) -> Result<StreamMessage, Error> {
        let described = Described::send(to, dest, tag, buffer)?;
        described.check_early(self.shared.engine.devices())?;
        let job = Gated::new(&self.shared.engine, Message::new(described), gate);
        Ok(self.start_message(Message::job(Box::new(job))))
    }

    /// Appends a post of a prepared operation that both sides have agreed on.
    ///
    /// # Errors
    /// They have not, or it is of another stream, or it has failed.
    pub(super) fn post_pair(&mut self, pair: &Arc<Pair>) -> Result<(), Error> {
        if !Arc::ptr_eq(pair.state(), self.state) {
            return Err(Error::BadRequest { reason: "it was prepared on another stream" });
        }
        pair.check()?;
        match pair.agreed() {
            None => return Err(Error::BadRequest { reason: "the peer has not agreed: call `agree` before" }),
            Some(Err(error)) => return Err(error.clone()),
            Some(Ok(Agreed::Nobody)) => return Ok(()),
            Some(Ok(Agreed::Direct(direct))) => pair.append_steps(direct, &mut self.steps),
            Some(Ok(Agreed::Thread { obstacle, tag })) => {
                self.start_and_wait(pair.describe(*tag))?;
                self.refuse_captures_for(pair.peer(), obstacle.reason());
            }
        }
        self.note_prepared(pair);
        Ok(())
    }

    fn start(&mut self, described: Described) -> Result<StreamMessage, Error> {
        described.check_early(self.shared.engine.devices())?;
        Ok(self.start_message(Message::new(described)))
    }

    /// Starts a message, for which the stream waits.
    fn start_and_wait(&mut self, described: Described) -> Result<StreamMessage, Error> {
        described.check_early(self.shared.engine.devices())?;
        let Some(run) = self.bounces(&described) else {
            let message = self.start_message(Message::new(described));
            self.wait(&[&message]);
            return Ok(message);
        };
        Ok(match described.way {
            Way::Send => self.send_by_chunk(&described, &run),
            Way::Receive => self.receive_by_bounce(&described, &run),
        })
    }

    /// Returns the buffer if the message can pass through host memory.
    fn bounces(&self, described: &Described) -> Option<Run> {
        let (engine, state) = (&self.shared.engine, self.state);
        let buffer = described.buffer.borrow();
        let (address, len) = buffer.contiguous()?;
        let len = usize::try_from(len).ok().filter(|len| (1..=MOST).contains(len))?;
        let possible = !engine.core().copy_only() && state.program.copies_by_kernel() && !state.is_partly_refused();
        if described.peer == PROC_NULL || !possible || self.ahead() >= MOST_AHEAD {
            return None;
        }
        let (found, here) = (buffer.classify(engine.devices()), state.program.location());
        if found.class != MemoryClass::Device || found.context != here.context {
            return None;
        }
        Some(Run { address, len, slot: state.copy_slot()? })
    }

    /// Adds a send through a chunk, for which the stream may have to wait. Its later work can reuse the buffer.
    fn send_by_chunk(&mut self, described: &Described, run: &Run) -> StreamMessage {
        let (state, words) = (self.state, self.state.words());
        let (at, open) = state.chunks.lock().next();
        if let Some(open) = open {
            self.wait_for(vec![open]);
        }
        let message = Message::new(described.in_host(words.address(at), run.len));
        self.take_chunk(&message);
        let dst = std::ptr::with_exposed_provenance_mut(words.device_address(at) as usize);
        self.steps.push(StreamStep::Copy { dst, src: run.address, len: run.len, by_kernel: Some(run.slot) });
        self.start_message(message)
    }

    /// Adds a receive, and the copy of what has arrived. The stream's later work begins when the message is in the buffer.
    fn receive_by_bounce(&mut self, described: &Described, run: &Run) -> StreamMessage {
        let words = self.state.words().clone();
        let message = Message::new(described.in_host(words.address(ARRIVING), run.len));
        // The message that is returned tells the error.
        message.tell();
        let arrived = Arc::downgrade(&words);
        message.then(Box::new(move |result| {
            if let (Some(words), Ok(status)) = (arrived.upgrade(), result) {
                words.store(ARRIVED, status.len);
            }
        }));
        self.note_received(&message);
        self.start_message(message.clone());
        self.wait_for(vec![message.clone()]);
        let src = std::ptr::with_exposed_provenance(words.device_address(ARRIVING) as usize);
        let (arrived, slot) = (words.device_address(ARRIVED), run.slot);
        self.steps.push(StreamStep::CopyArrived { dst: run.address, src, most: run.len, arrived, slot });
        self.start_message(Message::landing(message))
    }
}
