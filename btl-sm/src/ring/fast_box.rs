//! The fast box: a ring from one sender to one receiver that carries small messages inline.
//!
//! A ring consists of cache lines of two slots each. The first word of a message is its *stamp*: the lap of the ring,
//! the kind and the length. A short message fills one slot, so that two messages share a line and move together in a
//! stream. A longer message begins at a line and fills one or more lines. Each of these lines begins with a stamp, so
//! that payload never lies where the receiver looks for the stamp of a line. Payload may lie where the stamp of a
//! line's second slot would be. Therefore the next writer of the first slot also stamps the second one, with the
//! previous lap. So a ring needs no clearing: old contents simply have the wrong lap. The receiver needs only a
//! message's stamp and never reads the sender's position. The receiver stores its own position once for each quarter of
//! the ring. The sender reads it only when the ring seems full.
//!
//! Stamp: bits 0 to 31 the lap, counted from 1; bits 32 to 55 the length, or a fragment's reference; bits 56 to 63 the
//! kind.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{Corrupt, Word};

/// Bytes in a slot.
pub(crate) const SLOT: usize = 32;
/// Bytes in a cache line.
const LINE: usize = 2 * SLOT;
/// Bytes in a stamp.
pub(crate) const STAMP: usize = 8;
/// The longest message that fits into a slot.
pub(crate) const SHORT: usize = SLOT - STAMP;
/// The longest message that fits into a line.
pub(crate) const PAYLOAD: usize = LINE - STAMP;
/// The longest inline message of any ring. A receiver has a buffer of this size to assemble it.
pub(crate) const MAX_INLINE: usize = 8192;
/// A receiver returns credits after each such fraction of the ring.
const CREDIT_SHARE: u64 = 4;

const INLINE: u8 = 1;
const FRAGMENT: u8 = 2;
const CONTINUED: u8 = 3;
/// Padding in a second slot before a message that needs a whole line.
const SKIPPED: u8 = 4;

/// The memory of a ring.
pub(crate) trait Slots {
    type Word: Word;
    /// The number of slots, a power of two and at least two.
    fn count(&self) -> u64;
    /// Returns the first word of a slot.
    fn stamp(&self, slot: usize) -> &Self::Word;
    /// Returns the receiver's position.
    fn consumed(&self) -> &Self::Word;
    /// Copies `bytes` to the offset `at` from the first slot.
    ///
    /// # Safety
    /// The sender owns the bytes there, and they lie within a line.
    unsafe fn write(&self, at: usize, bytes: &[u8]);
    /// Copies the bytes at `at` out of the ring.
    ///
    /// # Safety
    /// The receiver owns the bytes there, and they lie within a line.
    unsafe fn read(&self, at: usize, out: &mut [u8]);
}

/// Returns the number of slots that a message of `len` bytes fills.
#[inline(always)]
fn slots_for(len: usize) -> u64 {
    if len <= SHORT { 1 } else { 2 * len.div_ceil(PAYLOAD) as u64 }
}

/// Returns the offset of the message that begins in a slot.
#[inline(always)]
fn start_of(slot: usize) -> usize {
    slot * SLOT + STAMP
}

#[inline(always)]
fn lap_of(position: u64, count: u64) -> u32 {
    (position >> count.trailing_zeros()) as u32 + 1
}

#[inline(always)]
fn stamp_of(lap: u32, kind: u8, value: u32) -> u64 {
    u64::from(lap) | u64::from(value) << 32 | u64::from(kind) << 56
}

/// The sending end.
pub(crate) struct Writer<S> {
    slots: S,
    /// The number of slots written since the ring was made.
    head: u64,
    /// The receiver's position, as last read.
    consumed: u64,
}

impl<S: Slots> Writer<S> {
    /// Makes the sending end of a zeroed ring.
    pub(crate) fn new(slots: S) -> Self {
        Writer { slots, head: 0, consumed: 0 }
    }

    /// Returns whether `needed` slots and one more are free. The extra one is needed because a writer to the first slot
    /// of a line also stamps the second.
    #[inline]
    pub(crate) fn has_room(&mut self, needed: u64) -> Result<bool, Corrupt> {
        Ok(self.head + needed - self.consumed < self.slots.count() || self.has_room_now(needed)?)
    }

    #[cold]
    fn has_room_now(&mut self, needed: u64) -> Result<bool, Corrupt> {
        let consumed = self.slots.consumed().load(Acquire);
        if consumed < self.consumed || consumed > self.head {
            return Err(Corrupt("the credits of a fast box are ahead of the sender or decrease"));
        }
        self.consumed = consumed;
        Ok(self.head + needed - consumed < self.slots.count())
    }

    /// Sends `header` and `payload` as one message and leaves `reserved` slots free. Returns false if there is no room.
    #[inline]
    pub(crate) fn push_inline(&mut self, header: &[u8], payload: &[u8], reserved: u64) -> Result<bool, Corrupt> {
        let len = header.len() + payload.len();
        if len > SHORT {
            return self.push_lines(header, payload, reserved);
        }
        if !self.has_room(1 + reserved)? {
            return Ok(false);
        }
        let at = self.begin_short();
        // SAFETY: the credits show that the receiver has released the slot, and both parts fit into it.
        unsafe {
            self.slots.write(at, header);
            self.slots.write(at + header.len(), payload);
        }
        self.publish(INLINE, len as u32, 1);
        Ok(true)
    }

    /// Sends a fragment's reference and eight more bytes. Returns false if there is no room, which cannot happen to a
    /// caller that has reserved a slot.
    #[inline]
    pub(crate) fn push_fragment(&mut self, reference: u32, about: u64) -> Result<bool, Corrupt> {
        if !self.has_room(1)? {
            return Ok(false);
        }
        let at = self.begin_short();
        // SAFETY: the credits show that the receiver has released the slot.
        unsafe { self.slots.write(at, &about.to_ne_bytes()) };
        self.publish(FRAGMENT, reference, 1);
        Ok(true)
    }

    /// Returns the slot for a message of one slot. The receiver then checks the other slot of the line and must find it
    /// empty. That slot is free, because one more slot always is.
    #[inline(always)]
    fn begin_short(&self) -> usize {
        let slot = self.slot(self.head);
        if self.head.is_multiple_of(2) {
            let nothing = stamp_of(lap_of(self.head, self.slots.count()).wrapping_sub(1), 0, 0);
            self.slots.stamp(slot + 1).store(nothing, Relaxed);
        }
        start_of(slot)
    }

    /// Sends a message of whole lines. The first line is written last, because the receiver polls it and would
    /// otherwise take the line away between two writes.
    fn push_lines(&mut self, header: &[u8], payload: &[u8], reserved: u64) -> Result<bool, Corrupt> {
        let len = header.len() + payload.len();
        let (skipped, needed) = (self.head % 2, slots_for(len));
        if !self.has_room(skipped + needed + reserved)? {
            return Ok(false);
        }
        let skip = self.head;
        self.head += skipped;
        for line in 1..needed as usize / 2 {
            let position = self.head + 2 * line as u64;
            self.write_line(position, line * PAYLOAD, header, payload);
            let stamp = stamp_of(lap_of(position, self.slots.count()), CONTINUED, 0);
            self.slots.stamp(self.slot(position)).store(stamp, Relaxed);
        }
        self.write_line(self.head, 0, header, payload);
        self.publish(INLINE, len as u32, needed);
        if skipped != 0 {
            let stamp = stamp_of(lap_of(skip, self.slots.count()), SKIPPED, 0);
            self.slots.stamp(self.slot(skip)).store(stamp, Release);
        }
        Ok(true)
    }

    /// Writes the bytes of a message from `from` on into one line.
    #[inline]
    fn write_line(&self, position: u64, from: usize, header: &[u8], payload: &[u8]) {
        let to = (from + PAYLOAD).min(header.len() + payload.len());
        let of_header = |at: usize| at.min(header.len());
        let of_payload = |at: usize| at.saturating_sub(header.len());
        let (header, payload) = (&header[of_header(from)..of_header(to)], &payload[of_payload(from)..of_payload(to)]);
        let at = start_of(self.slot(position));
        // SAFETY: the credits show that the receiver has released the line, and both parts fit into it.
        unsafe {
            self.slots.write(at, header);
            self.slots.write(at + header.len(), payload);
        }
    }

    /// Passes the slots from `head` on to the receiver. Its acquiring load of the first stamp makes all writes visible.
    #[inline(always)]
    fn publish(&mut self, kind: u8, value: u32, slots: u64) {
        let stamp = stamp_of(lap_of(self.head, self.slots.count()), kind, value);
        self.slots.stamp(self.slot(self.head)).store(stamp, Release);
        self.head += slots;
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> usize {
        (position & (self.slots.count() - 1)) as usize
    }
}

/// The next message in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// An inline message with this length, at this offset from the first slot.
    Inline { at: usize, len: usize },
    /// A fragment's reference, and the word sent with it.
    Fragment { reference: u32, about: u64 },
}

/// The receiving end.
pub(crate) struct Reader<S> {
    slots: S,
    /// The number of slots read since the ring was made.
    tail: u64,
    /// The number of slots credited to the sender.
    published: u64,
}

impl<S: Slots> Reader<S> {
    /// Makes the receiving end of a zeroed ring.
    pub(crate) fn new(slots: S) -> Self {
        Reader { slots, tail: 0, published: 0 }
    }

    /// Returns the next message. The receiver owns its slots until `release`.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Arrival>, Corrupt> {
        let slot = self.slot(self.tail);
        let stamp = self.slots.stamp(slot).load(Acquire);
        let lap = lap_of(self.tail, self.slots.count());
        if stamp as u32 == lap { self.take(slot, stamp) } else { self.nothing(stamp as u32, lap) }
    }

    #[inline(always)]
    fn nothing(&self, stamped: u32, lap: u32) -> Result<Option<Arrival>, Corrupt> {
        if stamped == lap.wrapping_sub(1) { Ok(None) } else { Err(Corrupt("a slot of a fast box has the wrong lap")) }
    }

    #[inline(always)]
    fn take(&mut self, slot: usize, stamp: u64) -> Result<Option<Arrival>, Corrupt> {
        let value = (stamp >> 32) as u32 & 0xff_ffff;
        let at = start_of(slot);
        let (arrival, slots) = match (stamp >> 56) as u8 {
            INLINE => (Arrival::Inline { at, len: value as usize }, slots_for(value as usize)),
            FRAGMENT => {
                let mut about = [0; 8];
                // SAFETY: the stamp passes the slot to this receiver.
                unsafe { self.slots.read(at, &mut about) };
                (Arrival::Fragment { reference: value, about: u64::from_ne_bytes(about) }, 1)
            }
            // The sender wrote the message after the padding before it wrote the padding.
            SKIPPED if self.tail % 2 == 1 => {
                self.tail += 1;
                return self.next();
            }
            _ => return Err(Corrupt("a slot of a fast box has an unknown kind")),
        };
        if slots > 1 && (value as usize > MAX_INLINE || slots > self.slots.count() || self.tail % 2 == 1) {
            return Err(Corrupt("a message in a fast box is longer than the box allows"));
        }
        self.tail += slots;
        Ok(Some(arrival))
    }

    /// Assembles a message that fills several lines.
    pub(crate) fn gather(&self, at: usize, out: &mut [u8]) {
        let mask = self.slots.count() as usize * SLOT - 1;
        for (line, part) in out.chunks_mut(PAYLOAD).enumerate() {
            // SAFETY: `take` got these lines from the sender, and the receiver owns them until `release`.
            unsafe { self.slots.read((at + line * LINE) & mask, part) };
        }
    }

    /// Returns the slots of all messages from `next` to the sender, at the latest after a quarter of the ring.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        if self.tail - self.published >= self.slots.count() / CREDIT_SHARE {
            self.slots.consumed().store(self.tail, Release);
            self.published = self.tail;
        }
    }

    /// Returns the memory.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &S {
        &self.slots
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> usize {
        (position & (self.slots.count() - 1)) as usize
    }
}
