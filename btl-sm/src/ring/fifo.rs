//! The FIFO: a ring of one receiver. Every process of the node pushes references into it.
//!
//! A record is one word and is pushed by one compare-and-swap. A producer that is killed at any instruction therefore
//! leaves either nothing or a whole record, and never a claimed cell for which others would wait. The shared tail is
//! only a hint, which all producers advance. Only the cells decide.
//!
//! Cell: bits 0 to 15 the producer's number at the receiver; bits 16 to 39 the value; bits 40 to 43 the kind, 0 in a
//! free cell; bits 44 to 63 the lap, counted from 0. A zeroed ring is empty.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::{Corrupt, Word};

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A fragment is ready. The value is its reference.
    Fragment = 1,
    /// The producer now writes to its fast box, whose number is the value.
    FastBox = 2,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The producer's number at the receiver.
    pub(crate) producer: u16,
    /// The kind of the record.
    pub(crate) kind: Kind,
    /// A value of 24 bits.
    pub(crate) value: u32,
}

/// The memory of a FIFO.
pub(crate) trait Cells {
    type Word: Word;
    /// The number of cells, a power of two.
    fn count(&self) -> u64;
    /// Returns one cell.
    fn cell(&self, index: usize) -> &Self::Word;
    /// Returns the tail hint: the position after the last record, or an earlier one.
    fn tail(&self) -> &Self::Word;
    /// Returns the receiver's position.
    fn head(&self) -> &Self::Word;
}

const LAPS: u64 = 1 << 20;

#[inline(always)]
fn lap_of(position: u64, count: u64) -> u64 {
    (position >> count.trailing_zeros()) & (LAPS - 1)
}

#[inline(always)]
fn free_word(position: u64, count: u64) -> u64 {
    lap_of(position, count) << 44
}

#[inline(always)]
fn index(position: u64, count: u64) -> usize {
    (position & (count - 1)) as usize
}

/// Pushes a record and returns its position. Returns `None` if the FIFO is full.
pub(crate) fn push<C: Cells>(cells: &C, record: Record) -> Option<u64> {
    let count = cells.count();
    let body = u64::from(record.producer) | u64::from(record.value & 0xff_ffff) << 16 | (record.kind as u64) << 40;
    let mut position = cells.tail().load(Relaxed);
    // The loop is bounded, so that corrupt words cannot hold a producer here.
    for _ in 0..=2 * count {
        let cell = cells.cell(index(position, count));
        let free = free_word(position, count);
        match cell.compare_exchange(free, free | body, AcqRel, Acquire) {
            Ok(_) => {
                cells.tail().fetch_max(position.wrapping_add(1), Relaxed);
                return Some(position);
            }
            Err(other) => {
                // The cell is one lap behind: its record was not read yet.
                let behind = (lap_of(position, count).wrapping_sub(other >> 44)) & (LAPS - 1);
                if behind == 1 {
                    return None;
                }
                cells.tail().fetch_max(position.wrapping_add(1), Relaxed);
                position = position.wrapping_add(1).max(cells.tail().load(Relaxed));
            }
        }
    }
    None
}

/// Returns the receiver's position. All records before it have been read.
pub(crate) fn head<C: Cells>(cells: &C) -> u64 {
    cells.head().load(Acquire)
}

/// The receiving end.
pub(crate) struct Consumer<C> {
    cells: C,
    position: u64,
    published: u64,
}

impl<C: Cells> Consumer<C> {
    /// Makes the receiving end of a zeroed FIFO.
    pub(crate) fn new(cells: C) -> Self {
        Consumer { cells, position: 0, published: 0 }
    }

    /// Returns the next record. Clears and skips a corrupt cell.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Result<Option<Record>, Corrupt> {
        let count = self.cells.count();
        let word = self.cells.cell(index(self.position, count)).load(Acquire);
        if word == free_word(self.position, count) { Ok(None) } else { self.take(word).map(Some) }
    }

    fn take(&mut self, word: u64) -> Result<Record, Corrupt> {
        let count = self.cells.count();
        let expected = lap_of(self.position, count);
        // Only the receiver frees a cell, so a plain store suffices. The load already returned the record.
        self.cells.cell(index(self.position, count)).store(free_word(self.position + count, count), Release);
        self.position += 1;
        let kind = match (word >> 40) as u8 & 0xf {
            1 => Kind::Fragment,
            2 => Kind::FastBox,
            _ => return Err(Corrupt("a cell of the FIFO has an unknown kind")),
        };
        if word >> 44 != expected {
            return Err(Corrupt("a cell of the FIFO has the wrong lap"));
        }
        Ok(Record { producer: word as u16, kind, value: (word >> 16) as u32 & 0xff_ffff })
    }

    /// Publishes the receiver's position to producers.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        if self.published != self.position {
            self.cells.head().store(self.position, Release);
            self.published = self.position;
        }
    }
}
