//! The receiving side of a connected link.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::sys::Socket;
use cableway_btl::{Received, Retain, SharedBytes, Upcalls};

use crate::decode::{Body, Decoder, Step, Violation};
use crate::link::Link;
use crate::outbox::is_transient;
use crate::pool::Buffer;
use crate::regions::{BadPut, Landing, Window};
use crate::shared::Shared;
use crate::sys::{self, Slice};
use crate::{gather, wire};

/// The number of bytes that one call reads from one connection before it serves others.
const BUDGET: usize = 4 << 20;
/// The number of bytes read into the receive buffer after data with another destination: the next frame's header, and a
/// little data that must be copied.
const SPILL: usize = 4 << 10;
/// The number of queued bytes of confirmations for a peer that does not read. Beyond it, nothing is read from the peer.
const CONFIRMATIONS: usize = 256 << 10;

/// Receives on one connection. Only the engine touches it.
pub(crate) struct Reader {
    pub(crate) link: Arc<Link>,
    pub(crate) socket: Arc<Socket>,
    decoder: Decoder,
    sink: Sink,
    /// The peer has said goodbye.
    pub(crate) left: bool,
    /// Too many confirmations are queued. Reading pauses until they are written.
    stalled: bool,
    /// Writing failed. The connection ends when nothing is left to read.
    pub(crate) suspect: Option<String>,
    /// The time since which the peer's kernel owes an acknowledgement.
    pub(crate) silent_since: Option<Instant>,
    /// The number of polls since data last arrived.
    pub(crate) cold: u32,
}

/// The destination of the current frame's data.
enum Sink {
    None,
    Message {
        buffer: Buffer,
        filled: usize,
        length: usize,
    },
    Put {
        window: Window,
        filled: usize,
        confirmation: Option<u64>,
    },
    /// The data is discarded.
    Discard {
        confirmation: Option<u64>,
    },
}

/// The result of one turn of reading.
pub(crate) enum Turn {
    /// Nothing is left to read. The value is the number of frames.
    Drained(usize),
    /// The budget is used up.
    More(usize),
    Ended(usize, End),
}

/// Why the connection has ended.
pub(crate) enum End {
    Eof,
    Io(io::Error),
    Violation(String),
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        End::Violation(violation.to_string())
    }
}

impl From<BadPut> for End {
    fn from(bad: BadPut) -> Self {
        End::Violation(bad.to_string())
    }
}

/// A message's buffer during its upcall. Shared, because the upcall may retain it.
struct Keep<'a> {
    buffer: Arc<Buffer>,
    retained: &'a Arc<AtomicUsize>,
}

impl Retain for Keep<'_> {
    fn retain(&self) -> Box<dyn Send> {
        self.retained.fetch_add(self.buffer.len(), Ordering::Relaxed);
        Box::new(Kept { buffer: Arc::clone(&self.buffer), retained: Arc::clone(self.retained) })
    }
}

/// A buffer that outlives its upcall. It counts against the limit of retained bytes.
struct Kept {
    buffer: Arc<Buffer>,
    retained: Arc<AtomicUsize>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.retained.fetch_sub(self.buffer.len(), Ordering::Relaxed);
    }
}

impl Reader {
    pub(crate) fn new(link: Arc<Link>, socket: Arc<Socket>, max_message: usize) -> Self {
        Reader {
            link,
            socket,
            decoder: Decoder::new(max_message),
            sink: Sink::None,
            left: false,
            stalled: false,
            suspect: None,
            silent_since: None,
            cold: 0,
        }
    }

    /// Reads and delivers what has arrived. `scratch` is the buffer in which small messages are parsed. It is empty
    /// between calls.
    pub(crate) fn turn(&mut self, scratch: &mut [u8], shared: &Shared, upcalls: &dyn Upcalls) -> Turn {
        let mut frames = 0;
        if self.stalled && self.confirm(None, shared) {
            return Turn::Drained(0);
        }
        let mut budget = BUDGET;
        while budget != 0 {
            let (wanted, direct, result) = self.receive(scratch);
            let count = match result {
                Ok(0) => return Turn::Ended(frames, End::Eof),
                Ok(count) => count,
                Err(error) if is_transient(&error) => return Turn::Drained(frames),
                Err(error) => return Turn::Ended(frames, End::Io(error)),
            };
            self.cold = 0;
            budget = budget.saturating_sub(count);
            let in_place = count.min(direct);
            let spilled = &scratch[..count - in_place];
            if let Err(end) = self.take(in_place, spilled, shared, upcalls, &mut frames) {
                return Turn::Ended(frames, end);
            }
            // The read returned less than requested, so the socket was empty a moment ago, and another system call
            // would be wasted.
            if count < wanted || self.stalled {
                return Turn::Drained(frames);
            }
        }
        Turn::More(frames)
    }

    /// Reads once. Returns the requested number of bytes, how many of these go directly to their destination, and the
    /// result.
    fn receive(&mut self, scratch: &mut [u8]) -> (usize, usize, io::Result<usize>) {
        let socket = &self.socket;
        match &mut self.sink {
            Sink::None => (scratch.len(), 0, sys::receive(socket, scratch)),
            Sink::Message { buffer, filled, length } => {
                let spill = scratch.len().min(SPILL);
                let rest = &mut buffer[*filled..*length];
                let direct = rest.len();
                let slices = [Slice::of_mut(rest), Slice::of_mut(&mut scratch[..spill])];
                // SAFETY: both are borrowed.
                let result = unsafe { sys::receive_vectored(socket, &slices) };
                (direct + spill, direct, result)
            }
            Sink::Put { window, filled, .. } => {
                let spill = scratch.len().min(SPILL);
                let read = window.write(*filled, |address, direct| {
                    let slices = [Slice::new(address, direct), Slice::of_mut(&mut scratch[..spill])];
                    // SAFETY: the window is registered for this, and stays so while it is being written to.
                    (direct + spill, direct, unsafe { sys::receive_vectored(socket, &slices) })
                });
                match read {
                    Some(read) => read,
                    None => self.receive_discarded(scratch),
                }
            }
            Sink::Discard { .. } => self.receive_discarded(scratch),
        }
    }

    /// Discards data whose registration has ended.
    fn receive_discarded(&mut self, scratch: &mut [u8]) -> (usize, usize, io::Result<usize>) {
        if let Sink::Put { confirmation, .. } = &self.sink {
            self.sink = Sink::Discard { confirmation: *confirmation };
        }
        (scratch.len(), 0, sys::receive(&self.socket, scratch))
    }

    /// Records that `direct` bytes are at their destination, and then parses `bytes`.
    fn take(
        &mut self,
        direct: usize,
        mut bytes: &[u8],
        shared: &Shared,
        upcalls: &dyn Upcalls,
        frames: &mut usize,
    ) -> Result<(), End> {
        self.placed(direct);
        let mut first = true;
        loop {
            // The answer to one message is sent at once. Answers to several messages are sent together.
            if !std::mem::take(&mut first) && !bytes.is_empty() {
                gather::begin();
            }
            if !matches!(self.sink, Sink::None) {
                self.place(&mut bytes);
                if self.decoder.missing() != 0 {
                    return Ok(());
                }
                *frames += 1;
                self.finish(shared, upcalls);
            }
            match self.decoder.step(&mut bytes)? {
                Step::Starved => return Ok(()),
                Step::Message(message) => {
                    *frames += 1;
                    upcalls.receive(self.link.peer.rank, Received::new(SharedBytes::from_private(message), None));
                }
                Step::Begin(body) => self.begin(body, shared)?,
                Step::PutDone(confirmation) => {
                    *frames += 1;
                    self.put_done(confirmation, shared)?;
                }
                Step::Goodbye => {
                    *frames += 1;
                    self.left = true;
                }
            }
            if self.left && !bytes.is_empty() {
                return Err(End::Violation("frames after its goodbye".to_owned()));
            }
        }
    }

    fn begin(&mut self, body: Body, shared: &Shared) -> Result<(), End> {
        self.sink = match body {
            Body::Message { length } => {
                let buffer = shared.pool.take(length).map_err(|error| End::Io(io::Error::other(error)))?;
                Sink::Message { buffer, filled: 0, length }
            }
            Body::Put { key, offset, length, confirmation } => {
                match shared.regions.land(self.link.peer.rank, key, offset, length)? {
                    Landing::Memory(window) => Sink::Put { window, filled: 0, confirmation },
                    Landing::Nowhere => Sink::Discard { confirmation },
                }
            }
        };
        Ok(())
    }

    /// Copies data of the current frame from the front of `bytes` to its destination.
    fn place(&mut self, bytes: &mut &[u8]) {
        let count = self.decoder.missing().min(bytes.len());
        let (data, rest) = bytes.split_at(count);
        *bytes = rest;
        match &mut self.sink {
            Sink::None | Sink::Discard { .. } => {}
            Sink::Message { buffer, filled, .. } => buffer[*filled..*filled + count].copy_from_slice(data),
            Sink::Put { window, filled, .. } => {
                let copied = window.write(*filled, |address, room| {
                    // SAFETY: the window is registered for this; `data` is private memory.
                    unsafe { address.copy_from_nonoverlapping(data.as_ptr(), count.min(room)) }
                });
                // The registration has ended: discard the data.
                let _ = copied;
            }
        }
        self.placed(count);
    }

    fn placed(&mut self, count: usize) {
        match &mut self.sink {
            Sink::None => return,
            Sink::Discard { .. } => {}
            Sink::Message { filled, .. } | Sink::Put { filled, .. } => *filled += count,
        }
        self.decoder.placed(count);
    }

    /// Handles the end of the current frame.
    fn finish(&mut self, shared: &Shared, upcalls: &dyn Upcalls) {
        match std::mem::replace(&mut self.sink, Sink::None) {
            Sink::None => {}
            Sink::Message { buffer, length, .. } => {
                let keep = Keep { buffer: Arc::new(buffer), retained: &shared.retained };
                let bytes = SharedBytes::from_private(&keep.buffer[..length]);
                // Beyond the limit the receiver copies at once, or keeps the message in its own memory.
                let room = shared.retained.load(Ordering::Relaxed) < shared.settings.retained_limit;
                let retain = room.then_some(&keep as &dyn Retain);
                upcalls.receive(self.link.peer.rank, Received::new(bytes, retain));
            }
            Sink::Put { confirmation, .. } | Sink::Discard { confirmation } => {
                if confirmation.is_some() {
                    self.stalled = self.confirm(confirmation, shared);
                }
            }
        }
    }

    /// Confirms to the peer that a `put` is stored. Returns whether too many confirmations are queued.
    fn confirm(&mut self, confirmation: Option<u64>, shared: &Shared) -> bool {
        let mut tx = self.link.tx.lock();
        if tx.closing {
            // Nothing may follow a goodbye. The peer completes all its operations when it receives the goodbye.
            return false;
        }
        if let Some(confirmation) = confirmation {
            tx.outbox.push_copy(&[&wire::put_done(confirmation)], 0);
        }
        tx.flush(&self.link, &shared.request_queue);
        tx.post_finished(&shared.request_queue);
        let piled_up = tx.outbox.copied() > CONFIRMATIONS;
        self.stalled = piled_up;
        piled_up
    }

    fn put_done(&mut self, confirmation: u64, shared: &Shared) -> Result<(), End> {
        let mut tx = self.link.tx.lock();
        if !tx.outbox.confirmed(confirmation) {
            return Err(End::Violation(format!("it confirms put {confirmation}, which it was not sent")));
        }
        tx.post_finished(&shared.request_queue);
        Ok(())
    }
}
