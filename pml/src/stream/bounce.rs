//! Small messages of a stream, which pass through host memory.
//!
//! A kernel of the stream copies the data of a send into a chunk of host memory, and writes the number of the call beside it.
//! The thread sends the chunk, as any host memory. A receive goes into another piece of host memory. Then a kernel of the stream
//! copies what has arrived into the program's buffer. So the engine copies nothing from or to a device while the stream waits,
//! and the receiver need not know how the sender sends (`docs/decisions/027-small-messages-of-streams.md`).
//!
//! ```text
//! words of a stream   0 reached | 1 released | 16 bytes that have arrived | 32 what arrives | chunks of sends
//! ```

use std::sync::{Arc, Weak};

use super::operation::Message;

/// The most bytes of a message that passes through host memory (H200).
pub(super) const MOST: usize = 8 << 10;
/// The sends of a stream that have chunks at once.
const CHUNKS: usize = 8;

/// The word with the number of bytes that have arrived, until the stream has copied them. It has a cache line of its own.
pub(super) const ARRIVED: usize = 16;
/// The first word of what arrives.
pub(super) const ARRIVING: usize = 32;
const MOST_WORDS: usize = MOST / size_of::<u64>();
/// The words of a stream: those of its state, which come first, and these.
pub(super) const WORDS: usize = ARRIVING + (1 + CHUNKS) * MOST_WORDS;

/// The chunks of a stream's sends. Changed by calls that hold the stream's lock.
#[derive(Clone, Default)]
pub(super) struct Chunks {
    /// The last send from each chunk.
    sends: [Weak<Message>; CHUNKS],
    next: usize,
}

impl Chunks {
    /// Returns whether every send from a chunk is over.
    pub(super) fn are_unused(&self) -> bool {
        (0..CHUNKS).all(|chunk| self.open(chunk).is_none())
    }

    /// Returns the first word of the chunk of the next send, and the send that still needs it.
    pub(super) fn next(&self) -> (usize, Option<Arc<Message>>) {
        (ARRIVING + (1 + self.next) * MOST_WORDS, self.open(self.next))
    }

    /// Gives the next chunk to a send.
    pub(super) fn take(&mut self, send: &Arc<Message>) {
        self.sends[self.next] = Arc::downgrade(send);
        self.next = (self.next + 1) % CHUNKS;
    }

    /// Returns the send that still needs a chunk.
    fn open(&self, chunk: usize) -> Option<Arc<Message>> {
        self.sends[chunk].upgrade().filter(|message| !message.is_over())
    }
}
