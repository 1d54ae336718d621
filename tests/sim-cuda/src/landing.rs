//! The arrival of bytes in memory: copies and fills, divided into units that arrive in any order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::early::{Early, Return};
use crate::schedule::Work;
use crate::space::Range;

/// Up to this size the 32-bit words of a copy arrive one by one, in any order.
const WORDWISE: usize = 4096;
/// Larger copies arrive in at least this many units, of at most this many bytes.
const UNITS: usize = 64;
const UNIT_BYTES: usize = 1 << 20;

/// Rows of bytes; a plain copy is one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) dst: usize,
    pub(crate) dst_pitch: usize,
    pub(crate) src: usize,
    pub(crate) src_pitch: usize,
    pub(crate) width: usize,
    pub(crate) rows: usize,
}

impl Block {
    pub(crate) fn row(dst: usize, src: usize, width: usize) -> Block {
        Block { dst, dst_pitch: width, src, src_pitch: width, width, rows: 1 }
    }
}

/// Keeps the memory of work in flight alive.
#[derive(Default)]
pub(crate) struct Keep {
    pub(crate) ranges: Vec<Arc<Range>>,
    /// Bytes of pageable memory, copied at the submission.
    pub(crate) staged: Vec<u8>,
    /// Of a synchronous call that has returned.
    pub(crate) early: Early,
}

impl Keep {
    /// Notes when the call returns whose work this is, and whether it waits for the work before.
    pub(crate) fn note_return(&mut self, returns: Return, waits: bool) {
        if returns == Return::Synchronous && !waits {
            self.early = Early::of(self.ranges.iter().map(|range| range.id));
        }
    }
}

/// A permutation of `0..count`.
struct Shuffle {
    count: usize,
    factor: usize,
    offset: usize,
}

impl Shuffle {
    fn new(count: usize, salt: usize) -> Self {
        let gcd = |mut a: usize, mut b: usize| {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        // Coprime with the count, so that multiples of it reach every index.
        let mut factor = (count * 5 / 8).max(1);
        while gcd(factor, count) != 1 {
            factor += 1;
        }
        Shuffle { count, factor, offset: salt % count.max(1) }
    }

    fn at(&self, index: usize) -> usize {
        ((index as u128 * self.factor as u128 + self.offset as u128) % self.count as u128) as usize
    }
}

/// A copy.
pub(crate) struct Landing {
    blocks: Vec<Block>,
    _keep: Keep,
    salt: usize,
    block: usize,
    unit: usize,
}

impl Landing {
    /// Invariant: the blocks lie in memory that `keep` holds, or that the driver's caller keeps until the copy is done,
    /// as the documentation requires.
    pub(crate) fn new(blocks: Vec<Block>, keep: Keep, salt: usize) -> Self {
        Landing { blocks, _keep: keep, salt, block: 0, unit: 0 }
    }

    /// Returns unit `unit` of `block`, and its number of units.
    fn unit(&self, block: Block) -> (usize, Block) {
        if block.rows == 1 {
            let size = block.width.max(1).div_ceil(UNITS).next_multiple_of(WORDWISE).min(UNIT_BYTES);
            let units = block.width.div_ceil(size).max(1);
            let start = Shuffle::new(units, self.salt).at(self.unit) * size;
            let width = size.min(block.width - start);
            (units, Block::row(block.dst + start, block.src + start, width))
        } else {
            let rows = (UNIT_BYTES / block.width.max(1)).clamp(1, block.rows.div_ceil(8).max(1));
            let units = block.rows.div_ceil(rows).max(1);
            let start = Shuffle::new(units, self.salt).at(self.unit) * rows;
            let dst = block.dst + start * block.dst_pitch;
            let src = block.src + start * block.src_pitch;
            (units, Block { dst, src, rows: rows.min(block.rows - start), ..block })
        }
    }
}

impl Work for Landing {
    fn step(&mut self) -> bool {
        let Some(&block) = self.blocks.get(self.block) else { return true };
        let (units, unit) = self.unit(block);
        if unit.width > 0 {
            let rows = Shuffle::new(unit.rows, self.salt);
            for row in (0..unit.rows).map(|index| rows.at(index)) {
                let (dst, src) = (unit.dst + row * unit.dst_pitch, unit.src + row * unit.src_pitch);
                // SAFETY: within the block, whose memory is kept by the invariant of `Landing`.
                unsafe { land(dst, src, unit.width, self.salt) }
            }
        }
        self.unit += 1;
        if self.unit == units {
            (self.block, self.unit) = (self.block + 1, 0);
        }
        self.block == self.blocks.len()
    }
}

/// Copies one row.
///
/// # Safety
/// `width` bytes are readable at `src` and writable at `dst`.
unsafe fn land(dst: usize, src: usize, width: usize, salt: usize) {
    if width > WORDWISE {
        // SAFETY: the caller's promise; `copy` allows for overlap.
        unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, width) };
        return;
    }
    // Read everything before the first write: the two may overlap.
    let mut bytes = [0_u8; WORDWISE];
    // SAFETY: the caller's promise, and `bytes` has room for WORDWISE.
    unsafe { std::ptr::copy_nonoverlapping(src as *const u8, bytes.as_mut_ptr(), width) };
    let first = dst & !3;
    let words = (dst + width - first).div_ceil(4);
    let shuffle = Shuffle::new(words, salt);
    for word in (0..words).map(|index| first + 4 * shuffle.at(index)) {
        let (from, to) = (word.max(dst), (word + 4).min(dst + width));
        let value = &bytes[from - dst..to - dst];
        // SAFETY: the aligned word has at least one byte in the destination, so it lies in the same page.
        let cell = unsafe { AtomicU32::from_ptr(word as *mut u32) };
        if let Ok(whole) = <[u8; 4]>::try_from(value) {
            cell.store(u32::from_ne_bytes(whole), Ordering::Relaxed);
        } else {
            // The bytes of a word arrive together, and the bytes beside them do not change.
            let merge = |old: u32| {
                let mut new = old.to_ne_bytes();
                new[from - word..to - word].copy_from_slice(value);
                Some(u32::from_ne_bytes(new))
            };
            let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
        }
    }
}

/// A memset.
pub(crate) struct Fill {
    pub(crate) dst: usize,
    pub(crate) value: u32,
    /// The repeated bytes of `value`: 1, 2 or 4.
    pub(crate) size: usize,
    pub(crate) bytes: usize,
    pub(crate) _keep: Keep,
}

impl Work for Fill {
    fn step(&mut self) -> bool {
        let part = self.bytes.min(UNIT_BYTES);
        let pattern = &self.value.to_ne_bytes()[..self.size];
        // From the end, unlike any copy.
        let start = self.dst + self.bytes - part;
        for (index, byte) in pattern.iter().enumerate() {
            if self.size == 1 {
                // SAFETY: the memory is kept by `_keep`.
                unsafe { std::ptr::write_bytes(start as *mut u8, *byte, part) };
            } else {
                for at in (index..part).step_by(self.size) {
                    // SAFETY: as above.
                    unsafe { ((start + at) as *mut u8).write(*byte) };
                }
            }
        }
        self.bytes -= part;
        self.bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_reaches_every_index_once() {
        for count in [1, 2, 3, 8, 64, 100, 1023] {
            let shuffle = Shuffle::new(count, 7);
            let mut seen: Vec<usize> = (0..count).map(|index| shuffle.at(index)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }
        let shuffle = Shuffle::new(64, 7);
        assert!((0..63).any(|index| shuffle.at(index) > shuffle.at(index + 1)), "words land in order");
    }

    #[test]
    fn every_size_and_alignment_lands_whole_and_nothing_beside_it() {
        for len in (0..70).chain([4095, 4096, 4097, 70_000, 3 << 20]) {
            for shift in [0, 1, 3] {
                let src: Vec<u8> = (0..len + 8).map(|index| (index % 251) as u8).collect();
                let mut dst = vec![0xEE_u8; len + 16];
                let block = Block::row(dst.as_mut_ptr() as usize + 4 + shift, src.as_ptr() as usize + 2, len);
                let mut landing = Landing::new(vec![block], Keep::default(), 12345);
                while !landing.step() {}
                assert_eq!(dst[4 + shift..4 + shift + len], src[2..2 + len], "{len} bytes at {shift}");
                assert!(dst[..4 + shift].iter().chain(&dst[4 + shift + len..]).all(|byte| *byte == 0xEE));
            }
        }
    }

    #[test]
    fn rows_land_at_their_pitch() {
        let src: Vec<u8> = (0..64 * 100).map(|index| (index % 253) as u8).collect();
        let mut dst = vec![0_u8; 32 * 100];
        let (to, from) = (dst.as_mut_ptr() as usize, src.as_ptr() as usize);
        let block = Block { dst: to, dst_pitch: 32, src: from, src_pitch: 64, width: 24, rows: 100 };
        let mut landing = Landing::new(vec![block], Keep::default(), 3);
        while !landing.step() {}
        for row in 0..100 {
            assert_eq!(dst[32 * row..32 * row + 24], src[64 * row..64 * row + 24]);
            assert!(dst[32 * row + 24..32 * row + 32].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_fill_repeats_its_pattern() {
        let mut dst = vec![0_u8; 4 * 1000];
        let value = 0x0102_0304;
        let mut fill = Fill { dst: dst.as_mut_ptr() as usize, value, size: 4, bytes: 4000, _keep: Keep::default() };
        while !fill.step() {}
        assert!(dst.chunks(4).all(|word| word == value.to_ne_bytes()));
    }
}
