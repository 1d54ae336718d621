//! The FIFO: a ring that belongs to one receiver and into which every process of the node pushes references.
//!
//! A record is one word and goes in with one compare-and-swap, so that a producer killed at any instruction leaves
//! either nothing or a whole record, and never a claimed cell on which everyone else would wait. The shared tail is a
//! hint that producers help each other to advance; the cells alone say what is true.
//!
//! Cell: bits 0 to 15 the producer, as the receiver numbers them; 16 to 39 the value; 40 to 43 the kind, 0 in a free
//! cell; 44 to 63 the lap, counted from 0. A ring of zeroes is empty.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::{Corrupt, Word};

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A fragment is to be read; the value refers to it.
    Fragment = 1,
    /// From here on the producer writes to its fast box of the number in the value.
    FastBox = 2,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The producer, as the receiver numbers them.
    pub(crate) producer: u16,
    /// The kind.
    pub(crate) kind: Kind,
    /// 24 bits.
    pub(crate) value: u32,
}

/// Where a FIFO lives.
pub(crate) trait Cells {
    type Word: Word;
    /// Cells, a power of two.
    fn count(&self) -> u64;
    /// One cell.
    fn cell(&self, index: usize) -> &Self::Word;
    /// Position after the last record, or before it.
    fn tail(&self) -> &Self::Word;
    /// How far the receiver has come.
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

/// Pushes a record and returns its position. None: the FIFO is full.
pub(crate) fn push<C: Cells>(cells: &C, record: Record) -> Option<u64> {
    let count = cells.count();
    let body = u64::from(record.producer) | u64::from(record.value & 0xff_ffff) << 16 | (record.kind as u64) << 40;
    let mut position = cells.tail().load(Relaxed);
    // Bounded, so that words which nobody may write cannot hold a producer here.
    for _ in 0..=2 * count {
        let cell = cells.cell(index(position, count));
        let free = free_word(position, count);
        match cell.compare_exchange(free, free | body, AcqRel, Acquire) {
            Ok(_) => {
                cells.tail().fetch_max(position.wrapping_add(1), Relaxed);
                return Some(position);
            }
            Err(other) => {
                // A lap behind: this record was not read yet.
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

/// How far the receiver has come: records at lower positions have been read.
pub(crate) fn head<C: Cells>(cells: &C) -> u64 {
    cells.head().load(Acquire)
}

/// The receiver's end.
pub(crate) struct Consumer<C> {
    cells: C,
    position: u64,
    published: u64,
}

impl<C: Cells> Consumer<C> {
    /// The receiving end of a FIFO of zeroes.
    pub(crate) fn new(cells: C) -> Self {
        Consumer { cells, position: 0, published: 0 }
    }

    /// The next record. A cell that makes no sense is cleared and skipped.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Result<Option<Record>, Corrupt> {
        let count = self.cells.count();
        let word = self.cells.cell(index(self.position, count)).load(Acquire);
        if word == free_word(self.position, count) { Ok(None) } else { self.take(word).map(Some) }
    }

    fn take(&mut self, word: u64) -> Result<Record, Corrupt> {
        let count = self.cells.count();
        let expected = lap_of(self.position, count);
        // Only the receiver frees a cell, so a plain store suffices; the record itself was taken with the load.
        self.cells.cell(index(self.position, count)).store(free_word(self.position + count, count), Release);
        self.position += 1;
        let kind = match (word >> 40) as u8 & 0xf {
            1 => Kind::Fragment,
            2 => Kind::FastBox,
            _ => return Err(Corrupt("a cell of the FIFO bears an unknown kind")),
        };
        if word >> 44 != expected {
            return Err(Corrupt("a cell of the FIFO bears the wrong lap"));
        }
        Ok(Record { producer: word as u16, kind, value: (word >> 16) as u32 & 0xff_ffff })
    }

    /// Tells producers how far the receiver has come.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        if self.published != self.position {
            self.cells.head().store(self.position, Release);
            self.published = self.position;
        }
    }
}
