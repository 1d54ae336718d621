//! A small cache with numbers as keys. It is read without a lock: even an uncontended lock takes longer than the
//! look-up, which every message makes.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;

/// The number of slots. A key selects its slot and replaces the entry there. Programs use hundreds of allocations in turn.
const SLOTS: usize = 1024;

/// Pairs of words by numbers other than 0.
pub(crate) struct Memo {
    slots: Box<[Slot]>,
    writing: Mutex<()>,
}

struct Slot {
    /// Odd during a write, and never reused: reading the same version twice shows that no write happened in between.
    version: AtomicU64,
    number: AtomicU64,
    words: [AtomicU64; 2],
}

impl Default for Memo {
    fn default() -> Self {
        let zero = AtomicU64::default;
        let slot = |_| Slot { version: zero(), number: zero(), words: [zero(), zero()] };
        Memo { slots: (0..SLOTS).map(slot).collect(), writing: Mutex::new(()) }
    }
}

impl Memo {
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize % SLOTS]
    }

    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<[u64; 2]> {
        let slot = self.slot(number);
        let version = slot.version.load(Ordering::Acquire);
        if number == 0 || slot.number.load(Ordering::Relaxed) != number {
            return None;
        }
        let words = [slot.words[0].load(Ordering::Relaxed), slot.words[1].load(Ordering::Relaxed)];
        // A reader that has seen a part of a later write also sees its version.
        fence(Ordering::Acquire);
        let whole = version.is_multiple_of(2) && slot.version.load(Ordering::Relaxed) == version;
        whole.then_some(words)
    }

    pub(crate) fn set(&self, number: u64, words: [u64; 2]) {
        let _alone = self.writing.lock();
        let slot = self.slot(number);
        let version = slot.version.load(Ordering::Relaxed);
        slot.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        slot.number.store(number, Ordering::Relaxed);
        slot.words[0].store(words[0], Ordering::Relaxed);
        slot.words[1].store(words[1], Ordering::Relaxed);
        slot.version.store(version + 2, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn entries_are_found_by_their_key() {
        let memo = Memo::default();
        assert_eq!(memo.get(0), None);
        memo.set(7, [1, 2]);
        assert_eq!(memo.get(7), Some([1, 2]));
        assert_eq!(memo.get(7 + SLOTS as u64), None);
        memo.set(7, [1, 3]);
        assert_eq!(memo.get(7), Some([1, 3]));
        memo.set(7 + SLOTS as u64, [4, 5]);
        assert_eq!((memo.get(7), memo.get(7 + SLOTS as u64)), (None, Some([4, 5])));
    }

    #[test]
    fn entries_of_two_keys_are_never_mixed() {
        let (memo, over) = (Memo::default(), AtomicBool::new(false));
        let numbers = [3, 3 + SLOTS as u64, 3 + 2 * SLOTS as u64];
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let (memo, over) = (&memo, &over);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let number = numbers[(round + writer) % numbers.len()];
                        memo.set(number, [number, 10 * number]);
                    }
                    over.store(true, Ordering::Relaxed);
                });
            }
            while !over.load(Ordering::Relaxed) {
                for number in numbers {
                    assert!(memo.get(number).is_none_or(|words| words == [number, 10 * number]));
                }
            }
        });
    }
}
