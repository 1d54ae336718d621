//! The fast box: a ring from one sender to one receiver that carries small messages in line.
//!
//! A ring is cache lines of two slots each. The first word of a message is its *stamp*: which lap of the ring wrote it,
//! what it is, and how long. A message of a few words fills one slot, so that two of them share a line and move
//! together in a stream. A longer one begins with a line and fills it, or several; the lines that continue it bear
//! stamps too, so that payload never lies where the stamp of a line is looked for. Where it lies in a line's second slot,
//! whoever next writes to the first one stamps the second as well, with the lap before. So a ring needs no clearing: what
//! is left of the lap before simply bears the wrong lap. The receiver reads a message's stamp and knows all; it never
//! reads where the sender is. Backwards flows only how far the receiver has come, stored once a quarter ring, and the
//! sender reads it only when it believes the ring to be full.
//!
//! Stamp: bits 0 to 31 the lap, counted from 1; 32 to 55 the length, or a fragment's reference; 56 to 63 the kind.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{Corrupt, Word};

/// Bytes of a slot.
pub(crate) const SLOT: usize = 32;
/// Bytes of a line: what processors pass to each other.
const LINE: usize = 2 * SLOT;
/// Bytes of a stamp.
pub(crate) const STAMP: usize = 8;
/// Longest message that fits into a slot.
pub(crate) const SHORT: usize = SLOT - STAMP;
/// Longest message that fits into a line.
pub(crate) const PAYLOAD: usize = LINE - STAMP;
/// Longest message that any ring may carry in line: what a receiver has room to put together.
pub(crate) const MAX_INLINE: usize = 8192;
/// The part of the ring after which a receiver returns credits: one in so many.
const CREDIT_SHARE: u64 = 4;

const INLINE: u8 = 1;
const FRAGMENT: u8 = 2;
const CONTINUED: u8 = 3;
/// A second slot that is passed over, because a message needs a whole line.
const SKIPPED: u8 = 4;

/// Where a ring lives.
pub(crate) trait Slots {
    type Word: Word;
    /// Slots, a power of two and at least two.
    fn count(&self) -> u64;
    /// The first word of a slot.
    fn stamp(&self, slot: usize) -> &Self::Word;
    /// How far the receiver has come.
    fn consumed(&self) -> &Self::Word;
    /// Copies `bytes` to `at` bytes behind the first slot's beginning.
    ///
    /// # Safety
    /// The bytes there are the sender's, and within a line.
    unsafe fn write(&self, at: usize, bytes: &[u8]);
    /// Copies the bytes at `at` out.
    ///
    /// # Safety
    /// The bytes there are the receiver's, and within a line.
    unsafe fn read(&self, at: usize, out: &mut [u8]);
}

/// Slots that a message of `len` bytes takes.
#[inline(always)]
fn slots_for(len: usize) -> u64 {
    if len <= SHORT { 1 } else { 2 * len.div_ceil(PAYLOAD) as u64 }
}

/// Where the message that begins in a slot does.
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

/// The sender's end.
pub(crate) struct Writer<S> {
    slots: S,
    /// Slots written since the ring was made.
    head: u64,
    /// How far the receiver was known to have come.
    consumed: u64,
}

impl<S: Slots> Writer<S> {
    /// The sending end of a ring of zeroes.
    pub(crate) fn new(slots: S) -> Self {
        Writer { slots, head: 0, consumed: 0 }
    }

    /// Whether `needed` slots are free, and one more: who writes to the first slot of a line stamps the second, too.
    #[inline]
    pub(crate) fn has_room(&mut self, needed: u64) -> Result<bool, Corrupt> {
        Ok(self.head + needed - self.consumed < self.slots.count() || self.has_room_now(needed)?)
    }

    #[cold]
    fn has_room_now(&mut self, needed: u64) -> Result<bool, Corrupt> {
        let consumed = self.slots.consumed().load(Acquire);
        if consumed < self.consumed || consumed > self.head {
            return Err(Corrupt("a fast box's credits run ahead or backwards"));
        }
        self.consumed = consumed;
        Ok(self.head + needed - consumed < self.slots.count())
    }

    /// Sends `header` and `payload` as one message, but leaves `reserved` slots free. False: no room now.
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
        // SAFETY: the room says that the receiver is done with the slot; both parts fit into it.
        unsafe {
            self.slots.write(at, header);
            self.slots.write(at + header.len(), payload);
        }
        self.publish(INLINE, len as u32, 1);
        Ok(true)
    }

    /// Sends a reference to a fragment, and eight bytes with it. False: no room, which a caller that reserved a slot
    /// does not see.
    #[inline]
    pub(crate) fn push_fragment(&mut self, reference: u32, about: u64) -> Result<bool, Corrupt> {
        if !self.has_room(1)? {
            return Ok(false);
        }
        let at = self.begin_short();
        // SAFETY: the room says that the receiver is done with the slot.
        unsafe { self.slots.write(at, &about.to_ne_bytes()) };
        self.publish(FRAGMENT, reference, 1);
        Ok(true)
    }

    /// Where a message of one slot is to be written. The receiver will look at the line's other slot right after the
    /// first one, in which it must find nothing; that slot is free, as one more always is.
    #[inline(always)]
    fn begin_short(&self) -> usize {
        let slot = self.slot(self.head);
        if self.head.is_multiple_of(2) {
            let nothing = stamp_of(lap_of(self.head, self.slots.count()).wrapping_sub(1), 0, 0);
            self.slots.stamp(slot + 1).store(nothing, Relaxed);
        }
        start_of(slot)
    }

    /// Sends a message of whole lines. The first is written last: the receiver looks at it all the time, and would take
    /// it away between two writes.
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

    /// Writes as many bytes of a message, from `from` on, as a line takes.
    #[inline]
    fn write_line(&self, position: u64, from: usize, header: &[u8], payload: &[u8]) {
        let to = (from + PAYLOAD).min(header.len() + payload.len());
        let of_header = |at: usize| at.min(header.len());
        let of_payload = |at: usize| at.saturating_sub(header.len());
        let (header, payload) = (&header[of_header(from)..of_header(to)], &payload[of_payload(from)..of_payload(to)]);
        let at = start_of(self.slot(position));
        // SAFETY: the room says that the receiver is done with the line, into which both parts fit.
        unsafe {
            self.slots.write(at, header);
            self.slots.write(at + header.len(), payload);
        }
    }

    /// Makes the slots from `head` on the receiver's: its acquiring load of the first stamp sees all that was written.
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
    /// A message of this length, beginning so many bytes behind the first slot's beginning.
    Inline { at: usize, len: usize },
    /// A reference to a fragment, and what was sent with it.
    Fragment { reference: u32, about: u64 },
}

/// The receiver's end.
pub(crate) struct Reader<S> {
    slots: S,
    /// Slots read since the ring was made.
    tail: u64,
    /// The part of them that the sender has been told of.
    published: u64,
}

impl<S: Slots> Reader<S> {
    /// The receiving end of a ring of zeroes.
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
        if stamped == lap.wrapping_sub(1) {
            Ok(None)
        } else {
            Err(Corrupt("a slot of a fast box bears a lap that is neither this nor the one before"))
        }
    }

    #[inline(always)]
    fn take(&mut self, slot: usize, stamp: u64) -> Result<Option<Arrival>, Corrupt> {
        let value = (stamp >> 32) as u32 & 0xff_ffff;
        let at = start_of(slot);
        let (arrival, slots) = match (stamp >> 56) as u8 {
            INLINE => (Arrival::Inline { at, len: value as usize }, slots_for(value as usize)),
            FRAGMENT => {
                let mut about = [0; 8];
                // SAFETY: the stamp says that the slot is ours.
                unsafe { self.slots.read(at, &mut about) };
                (Arrival::Fragment { reference: value, about: u64::from_ne_bytes(about) }, 1)
            }
            // The message behind the padding was written before the padding.
            SKIPPED if self.tail % 2 == 1 => {
                self.tail += 1;
                return self.next();
            }
            _ => return Err(Corrupt("a slot of a fast box bears an unknown kind")),
        };
        if slots > 1 && (value as usize > MAX_INLINE || slots > self.slots.count() || self.tail % 2 == 1) {
            return Err(Corrupt("a message in a fast box is longer than the box allows"));
        }
        self.tail += slots;
        Ok(Some(arrival))
    }

    /// Copies a message together that fills several lines.
    pub(crate) fn gather(&self, at: usize, out: &mut [u8]) {
        let mask = self.slots.count() as usize * SLOT - 1;
        for (line, part) in out.chunks_mut(PAYLOAD).enumerate() {
            // SAFETY: `take` made these lines ours, and they stay so until `release`.
            unsafe { self.slots.read((at + line * LINE) & mask, part) };
        }
    }

    /// Gives the slots of all that `next` has yielded back to the sender, at the latest after a quarter ring.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        if self.tail - self.published >= self.slots.count() / CREDIT_SHARE {
            self.slots.consumed().store(self.tail, Release);
            self.published = self.tail;
        }
    }

    /// The memory.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &S {
        &self.slots
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> usize {
        (position & (self.slots.count() - 1)) as usize
    }
}
