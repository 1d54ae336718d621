//! Offers: work that exactly one of two processes will do.
//!
//! An offer is one word in the segment of its maker, which one other process may claim. Bits 0 to 1 hold the state,
//! bits 2 to 63 the sequence number. A word of zeroes offers nothing.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use super::{Corrupt, Word};

const OFFERED: u64 = 1;
const CLAIMED: u64 = 2;
const WITHDRAWN: u64 = 3;

fn state(generation: u64, state: u64) -> u64 {
    generation << 2 | state
}

/// Makes an offer. The claimer sees all earlier writes.
pub(crate) fn make<W: Word>(word: &W, generation: u64) {
    word.store(state(generation, OFFERED), Release);
}

/// Claims the offer in the other process. Returns whether it succeeded.
pub(crate) fn claim<W: Word>(word: &W, generation: u64) -> bool {
    word.compare_exchange(state(generation, OFFERED), state(generation, CLAIMED), AcqRel, Acquire).is_ok()
}

/// Withdraws the offer in the process that made it. Returns false if the peer has claimed it.
pub(crate) fn withdraw<W: Word>(word: &W, generation: u64) -> Result<bool, Corrupt> {
    match word.compare_exchange(state(generation, OFFERED), state(generation, WITHDRAWN), AcqRel, Acquire) {
        Ok(_) => Ok(true),
        Err(now) if now == state(generation, CLAIMED) => Ok(false),
        Err(_) => Err(Corrupt("an offer's word has another sequence number")),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn an_offer_is_had_once() {
        let word = AtomicU64::new(0);
        assert!(!claim(&word, 0) && !claim(&word, 1), "nothing is on offer");
        make(&word, 1);
        assert!(claim(&word, 1));
        assert!(!claim(&word, 1));
        assert_eq!(withdraw(&word, 1), Ok(false));
        make(&word, 2);
        assert!(!claim(&word, 1), "the previous offer");
        assert_eq!(withdraw(&word, 2), Ok(true));
        assert!(!claim(&word, 2));
    }

    #[test]
    fn a_word_that_was_overwritten_is_seen() {
        for bits in [0, 1, state(2, CLAIMED), state(3, WITHDRAWN), u64::MAX] {
            let word = AtomicU64::new(0);
            make(&word, 3);
            word.store(bits, Relaxed);
            assert!(withdraw(&word, 3).is_err(), "{bits:#x}");
        }
    }
}
