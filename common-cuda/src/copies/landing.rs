//! Detection of small copies to host memory by the bytes that arrive.
//!
//! The driver reports the end of a copy of 8 bytes from a device 7.4 us after the call. The bytes are in memory after
//! 4.6 us (H200, driver 580). So memory is first filled with a random word, and the copy has landed once no word of it
//! has that value. Words may land in any order. An aligned word of 32 bits lands whole: the PCI Express specification
//! (section 2.4.3) recommends that processors see no smaller parts of a write, and x86 caches hold lines that devices
//! write as a whole. Data that contains the random word is never seen to land. The driver is asked then.

use crate::copy::RowCopy;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
use std::time::Instant;

/// Most bytes of one operation that are polled. Polling more costs as much as it saves.
const MOST: usize = 4096;

const WORD: usize = size_of::<u32>();

/// The destinations of one operation's bytes.
pub(super) struct Landing {
    word: u32,
    /// Pieces that have landed, and bytes of the next piece.
    landed: (usize, usize),
    pub(super) since: Instant,
}

impl Landing {
    /// Checks whether the destinations can be polled.
    pub(super) fn suits(pieces: &[RowCopy]) -> bool {
        let aligned = |piece: &RowCopy| piece.rows == 1 && (piece.dst as usize).is_multiple_of(WORD);
        pieces.iter().map(|piece| piece.width).sum::<usize>() <= MOST && pieces.iter().all(aligned)
    }

    /// Makes the destinations ready.
    ///
    /// # Safety
    /// The destinations suit, are valid host memory, and are not accessed by others until the copies are issued.
    pub(super) unsafe fn prepare(pieces: &[RowCopy]) -> Landing {
        // SAFETY: the caller's promise.
        unsafe { Landing::prepare_with(pieces, word()) }
    }

    /// # Safety
    /// As [`prepare`](Self::prepare).
    unsafe fn prepare_with(pieces: &[RowCopy], word: u32) -> Landing {
        for piece in pieces {
            for at in (0..piece.width).step_by(WORD) {
                let len = WORD.min(piece.width - at);
                // SAFETY: `len` bytes of the piece, by the caller's promise.
                unsafe { piece.dst.add(at).copy_from_nonoverlapping(word.to_ne_bytes().as_ptr(), len) };
            }
        }
        // The fill must precede the submission of the copies. (Drivers order that themselves.)
        fence(Ordering::SeqCst);
        Landing { word, landed: (0, 0), since: Instant::now() }
    }

    /// Checks whether all bytes have landed. The caller may then read them.
    ///
    /// # Safety
    /// The pieces are those that were prepared, and only the device has touched their destinations since.
    pub(super) unsafe fn look(&mut self, pieces: &[RowCopy]) -> bool {
        let (mut index, mut at) = self.landed;
        while let Some(piece) = pieces.get(index) {
            // SAFETY: the caller's promise, of as many bytes.
            at = unsafe { self.land(piece, at) };
            if at < piece.width {
                self.landed = (index, at);
                return false;
            }
            (index, at) = (index + 1, 0);
        }
        self.landed = (index, 0);
        fence(Ordering::Acquire);
        true
    }

    /// Counts the bytes of a piece that have landed without a gap. `from` of them were seen before.
    ///
    /// # Safety
    /// As `look`.
    unsafe fn land(&self, piece: &RowCopy, from: usize) -> usize {
        let whole = piece.width - piece.width % WORD;
        for at in (from..whole).step_by(WORD) {
            // SAFETY: an aligned word of the piece.
            let word = unsafe { AtomicU32::from_ptr(piece.dst.add(at).cast()) };
            if word.load(Ordering::Relaxed) == self.word {
                return at;
            }
        }
        // The bytes of the last word land together, too.
        let changed = |at: usize| {
            // SAFETY: a byte of the piece.
            let byte = unsafe { AtomicU8::from_ptr(piece.dst.add(at)) };
            byte.load(Ordering::Relaxed) != self.word.to_ne_bytes()[at % WORD]
        };
        if whole == piece.width || (whole..piece.width).any(changed) { piece.width } else { whole }
    }
}

/// Returns a different word each time. No program writes it on purpose.
fn word() -> u32 {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) as u64;
    // The address is random because of address space randomisation. The last step of splitmix64 spreads its bits.
    let mut bits = (count ^ (&raw const COUNT) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (bits >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD_OF_TEST: u32 = 0x1234_5678;

    fn piece(memory: &mut [u32], width: usize) -> RowCopy {
        let dst = memory.as_mut_ptr().cast::<u8>();
        RowCopy { dst, dst_pitch: width, src: std::ptr::null(), src_pitch: width, width, rows: 1 }
    }

    /// Lets bytes land in this order, a word at a time; answers after which of them all was seen.
    fn land(data: &[u8], order: impl Iterator<Item = usize>) -> Vec<bool> {
        let mut memory = vec![0xEEEE_EEEE_u32; data.len() / WORD + 1];
        let pieces = [piece(&mut memory, data.len())];
        assert!(Landing::suits(&pieces));
        // SAFETY: the memory is the test's.
        let mut landing = unsafe { Landing::prepare_with(&pieces, WORD_OF_TEST) };
        let seen = order.map(|word| {
            let part = &data[word * WORD..data.len().min((word + 1) * WORD)];
            // SAFETY: as above.
            unsafe {
                pieces[0].dst.add(word * WORD).copy_from_nonoverlapping(part.as_ptr(), part.len());
                landing.look(&pieces)
            }
        });
        let seen = seen.collect();
        let end = data.len() % WORD;
        assert!(memory[data.len() / WORD].to_ne_bytes()[end..].iter().all(|&byte| byte == 0xEE), "nothing beside it");
        seen
    }

    #[test]
    fn a_copy_has_landed_with_its_last_word() {
        for len in [1_usize, 2, 3, 4, 5, 8, 63, 1000] {
            let data: Vec<u8> = (0..len).map(|byte| byte as u8 | 0x80).collect();
            let words = len.div_ceil(WORD);
            for seen in [land(&data, 0..words), land(&data, (0..words).rev())] {
                assert_eq!(seen.iter().position(|&seen| seen), Some(words - 1), "{len} bytes");
            }
        }
    }

    #[test]
    fn data_that_contains_the_word_never_lands() {
        let word = WORD_OF_TEST.to_ne_bytes();
        for (before, after) in [(0, 0), (8, 0), (0, 8), (4, 2)] {
            let data = [vec![1; before], word.to_vec(), vec![2; after]].concat();
            assert!(land(&data, 0..data.len().div_ceil(WORD)).iter().all(|&seen| !seen));
        }
        // Nor where it ends like it.
        let data = [&[1; 4][..], &word[..2]].concat();
        assert!(land(&data, 0..2).iter().all(|&seen| !seen));
    }

    #[test]
    fn unsuitable_destinations_are_refused() {
        let mut memory = vec![0_u32; 2048];
        let good = piece(&mut memory, 100);
        assert!(Landing::suits(&[good, good]));
        assert!(!Landing::suits(&[good, RowCopy { dst: good.dst.wrapping_add(2), ..good }]));
        assert!(!Landing::suits(&[RowCopy { rows: 2, ..good }]));
        assert!(!Landing::suits(&[good, RowCopy { width: MOST, ..good }]));
    }

    #[test]
    fn words_differ() {
        let mut words: Vec<u32> = (0..1000).map(|_| word()).collect();
        words.sort_unstable();
        words.dedup();
        assert!(words.len() > 990);
    }
}
