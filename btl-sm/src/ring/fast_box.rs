//! The fast box: a ring from one sender to one receiver that carries small messages in line.
//!
//! A ring is slots of one cache line. The first word of every slot is its *stamp*: which lap of the ring wrote it,
//! what it is, and how long. A message fills one slot, or several if it is longer than a slot's payload; the slots
//! that continue it bear stamps too, so that payload never lies where a stamp is looked for and a ring needs no
//! clearing: what is left of the lap before simply bears the wrong lap. The receiver reads a message's stamp and
//! knows all; it never reads where the sender is. Backwards flows only how far the receiver has come, stored once a
//! quarter ring, and the sender reads it only when it believes the ring to be full.
//!
//! Stamp: bits 0 to 31 the lap, counted from 1; 32 to 55 the length, or a fragment's reference; 56 to 63 the kind.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{Corrupt, Word};

/// Bytes of payload in a slot.
pub(crate) const PAYLOAD: usize = 56;
/// Longest message that any ring may carry in line: what a receiver has room to put together.
pub(crate) const MAX_INLINE: usize = 8192;
/// The part of the ring after which a receiver returns credits: one in so many.
const CREDIT_SHARE: u64 = 4;

const INLINE: u8 = 1;
const FRAGMENT: u8 = 2;
const CONTINUED: u8 = 3;

/// Where a ring lives.
pub(crate) trait Slots {
    type Word: Word;
    /// Slots, a power of two.
    fn count(&self) -> u64;
    /// The first word of a slot.
    fn stamp(&self, slot: usize) -> &Self::Word;
    /// How far the receiver has come.
    fn consumed(&self) -> &Self::Word;
    /// Copies `bytes` into a slot's payload, `at` bytes in.
    ///
    /// # Safety
    /// The slot is the sender's, and `at + bytes.len()` is at most [`PAYLOAD`].
    unsafe fn write(&self, slot: usize, at: usize, bytes: &[u8]);
    /// Copies the first bytes of a slot's payload out.
    ///
    /// # Safety
    /// The slot is the receiver's, and `out` is no longer than [`PAYLOAD`].
    unsafe fn read(&self, slot: usize, out: &mut [u8]);
}

#[inline(always)]
fn slots_for(len: usize) -> u64 {
    if len <= PAYLOAD { 1 } else { len.div_ceil(PAYLOAD) as u64 }
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

    /// Whether `needed` slots are free.
    #[inline]
    pub(crate) fn has_room(&mut self, needed: u64) -> Result<bool, Corrupt> {
        Ok(self.head + needed - self.consumed <= self.slots.count() || self.has_room_now(needed)?)
    }

    #[cold]
    fn has_room_now(&mut self, needed: u64) -> Result<bool, Corrupt> {
        let consumed = self.slots.consumed().load(Acquire);
        if consumed < self.consumed || consumed > self.head {
            return Err(Corrupt("a fast box's credits run ahead or backwards"));
        }
        self.consumed = consumed;
        Ok(self.head + needed - consumed <= self.slots.count())
    }

    /// Sends `header` and `payload` as one message, but leaves `reserved` slots free. False: no room now.
    #[inline]
    pub(crate) fn push_inline(&mut self, header: &[u8], payload: &[u8], reserved: u64) -> Result<bool, Corrupt> {
        let len = header.len() + payload.len();
        let needed = slots_for(len);
        if !self.has_room(needed + reserved)? {
            return Ok(false);
        }
        if needed == 1 {
            let slot = self.slot(self.head);
            // SAFETY: the room says that the receiver is done with the slot; both parts fit into its payload.
            unsafe {
                self.slots.write(slot, 0, header);
                self.slots.write(slot, header.len(), payload);
            }
        } else {
            self.scatter(header, payload);
        }
        self.publish(INLINE, len as u32, needed);
        Ok(true)
    }

    /// Sends a reference to a fragment, and eight bytes with it. False: no room, which a caller that reserved a slot
    /// does not see.
    #[inline]
    pub(crate) fn push_fragment(&mut self, reference: u32, about: u64) -> Result<bool, Corrupt> {
        if !self.has_room(1)? {
            return Ok(false);
        }
        // SAFETY: the room says that the receiver is done with the slot.
        unsafe { self.slots.write(self.slot(self.head), 0, &about.to_ne_bytes()) };
        self.publish(FRAGMENT, reference, 1);
        Ok(true)
    }

    fn scatter(&mut self, header: &[u8], payload: &[u8]) {
        let end = self.head + slots_for(header.len() + payload.len());
        let mut position = 0;
        for mut part in [header, payload] {
            while !part.is_empty() {
                let at = position % PAYLOAD;
                let (now, rest) = part.split_at(part.len().min(PAYLOAD - at));
                let slot = self.slot(self.head + (position / PAYLOAD) as u64);
                // SAFETY: as in `push_inline`; the split keeps each piece within its slot.
                unsafe { self.slots.write(slot, at, now) };
                position += now.len();
                part = rest;
            }
        }
        for position in self.head + 1..end {
            let stamp = stamp_of(lap_of(position, self.slots.count()), CONTINUED, 0);
            self.slots.stamp(self.slot(position)).store(stamp, Relaxed);
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

/// What lies next in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A message of this length, beginning in this slot.
    Inline { slot: usize, len: usize },
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

    /// What has arrived next. Its slots stay the receiver's until `release`.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Result<Option<Arrival>, Corrupt> {
        let slot = self.slot(self.tail);
        let stamp = self.slots.stamp(slot).load(Acquire);
        let lap = lap_of(self.tail, self.slots.count());
        if stamp as u32 == lap { self.take(slot, stamp).map(Some) } else { self.nothing(stamp as u32, lap) }
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
    fn take(&mut self, slot: usize, stamp: u64) -> Result<Arrival, Corrupt> {
        let value = (stamp >> 32) as u32 & 0xff_ffff;
        let (arrival, slots) = match (stamp >> 56) as u8 {
            INLINE => {
                let len = value as usize;
                (Arrival::Inline { slot, len }, slots_for(len))
            }
            FRAGMENT => {
                let mut about = [0; 8];
                // SAFETY: the stamp says that the slot is ours.
                unsafe { self.slots.read(slot, &mut about) };
                (Arrival::Fragment { reference: value, about: u64::from_ne_bytes(about) }, 1)
            }
            _ => return Err(Corrupt("a slot of a fast box bears an unknown kind")),
        };
        if slots > 1 && (value as usize > MAX_INLINE || slots > self.slots.count()) {
            return Err(Corrupt("a message in a fast box is longer than the box allows"));
        }
        self.tail += slots;
        Ok(arrival)
    }

    /// Copies a message together that may fill several slots.
    pub(crate) fn gather(&self, first: usize, out: &mut [u8]) {
        let mask = self.slots.count() as usize - 1;
        for (index, part) in out.chunks_mut(PAYLOAD).enumerate() {
            // SAFETY: `take` made these slots ours, and they stay so until `release`.
            unsafe { self.slots.read((first + index) & mask, part) };
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
