//! Plain types that describe an exchange of little data through slots in shared host memory.
//!
//! Each rank of a node has a slot, to which only it writes. A slot has segments, for one rank each or one for all. A
//! segment has lines of 16 bytes. The first line holds the number of bytes in the segment, or [`FAILED`]. Each later line
//! holds eight bytes of data.
//!
//! | bytes of a line | |
//! |---|---|
//! | 0 to 3 | the first four bytes of data |
//! | 4 to 7 | the number of the exchange |
//! | 8 to 11 | the last four bytes of data |
//! | 12 to 15 | the number of the exchange |
//!
//! Data and number arrive together, because both are in one store of eight bytes. So a reader waits for the number, and
//! needs no other signal.

use crate::reduction::MOST_SOURCES;

/// The largest number of ranks: one kernel reduces the data of all of them.
pub const MOST_SLOTS: usize = MOST_SOURCES;

/// The bytes of a line, and those of its data.
const LINE: usize = SlotLayout::LINE;
const LINE_DATA: usize = 8;
/// The words of 64 bits in a line.
const LINE_WORDS: usize = LINE / size_of::<u64>();

/// What the first line of a segment holds if its sender has failed.
const FAILED: u64 = u64::MAX;

/// Where the slots of all ranks are in their memory. All ranks use the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    /// The bytes before the slot of the first rank.
    pub offset: usize,
    /// The bytes from one slot to the next.
    pub slot: usize,
}

/// An exchange, as one rank takes part in it. Lists have one entry for each rank.
#[derive(Clone, Copy, Debug)]
pub struct OneShot<'a> {
    /// Where the slots are.
    pub layout: SlotLayout,
    /// This rank.
    pub me: usize,
    /// The number of the exchange. No line of the slots has it from an earlier one.
    pub number: u32,
    /// The bytes from the beginning of a slot to the segment for each rank, or `None` if all ranks read one segment, which
    /// begins the slot.
    pub places: Option<&'a [u32]>,
    /// What goes to each rank, as addresses and lengths. If all ranks read one segment, only the first entry counts.
    pub sends: &'a [(*const u8, u32)],
    /// Where the data of each rank goes. A null address of this rank says that nothing is copied.
    pub receives: &'a [(*mut u8, u32)],
}

/// Words of 64 bits in memory that ranks share.
pub trait SlotWords {
    /// Reads a word, before everything that this thread does after that.
    fn load(&self, index: usize) -> u64;
    /// Writes a word, after everything that this thread did before.
    fn store(&self, index: usize, value: u64);
}

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Not all of its lines have come.
    No,
    /// All of the data has come.
    Yes,
    /// The sender has sent another number of bytes.
    OtherLength(u64),
    /// The sender has failed.
    Failed,
}

impl SlotLayout {
    /// The bytes of a line. Slots and segments begin at multiples of it.
    pub const LINE: usize = 16;

    /// Returns the bytes that a segment of so many bytes of data needs.
    pub const fn segment_len(data: usize) -> usize {
        (1 + data.div_ceil(LINE_DATA)) * LINE
    }
}

impl OneShot<'_> {
    /// Returns the first word of the segment of one rank for another.
    fn words(&self, from: usize, to: usize) -> usize {
        let place = self.places.map_or(0, |places| places[to] as usize);
        (self.layout.offset + from * self.layout.slot + place) / size_of::<u64>()
    }

    /// Returns the ranks for each of which this one stores a segment.
    fn segments(&self) -> impl Iterator<Item = usize> {
        let (shared, me) = (self.places.is_none(), self.me);
        (0..if shared { 1 } else { self.receives.len() }).filter(move |&to| shared || to != me)
    }

    /// Stores this rank's data in its slot by the CPU. All of it is in host memory.
    ///
    /// # Safety
    /// The memory that is sent is readable.
    pub unsafe fn publish(&self, words: &impl SlotWords) {
        for to in self.segments() {
            let (address, len) = self.sends[to];
            let (at, len) = (self.words(self.me, to), len as usize);
            for begin in (0..len).step_by(LINE_DATA) {
                let mut data = [0; LINE_DATA];
                let some = LINE_DATA.min(len - begin);
                // SAFETY: within the memory of the caller's promise, and within the array.
                unsafe { std::ptr::copy_nonoverlapping(address.add(begin), data.as_mut_ptr(), some) };
                put(words, at + (1 + begin / LINE_DATA) * LINE_WORDS, u64::from_le_bytes(data), self.number);
            }
            put(words, at, len as u64, self.number);
        }
    }

    /// Tells those ranks that this one has failed that do not have all of its data.
    pub fn publish_failure(&self, words: &impl SlotWords) {
        for to in self.segments() {
            let (at, len) = (self.words(self.me, to), self.sends[to].1 as usize);
            let mut lines = (0..SlotLayout::segment_len(len) / LINE).map(|line| at + line * LINE_WORDS);
            if !lines.all(|line| take(words, line, self.number).is_some()) {
                put(words, at, FAILED, self.number);
            }
        }
    }

    /// Checks whether all data of a rank has come. Reads no data, so that a kernel may fetch it.
    pub fn has_come(&self, words: &impl SlotWords, from: usize) -> Arrived {
        // SAFETY: nothing is copied.
        unsafe { self.look(words, from, std::ptr::null_mut()) }
    }

    /// Copies the data of a rank to host memory by the CPU, if all of it has come.
    ///
    /// # Safety
    /// The memory where the rank's data goes is writable.
    pub unsafe fn fetch(&self, words: &impl SlotWords, from: usize) -> Arrived {
        // SAFETY: the caller's promise.
        unsafe { self.look(words, from, self.receives[from].0) }
    }

    unsafe fn look(&self, words: &impl SlotWords, from: usize, to: *mut u8) -> Arrived {
        let at = self.words(from, self.me);
        let expected = self.receives[from].1 as usize;
        match take(words, at, self.number) {
            None => return Arrived::No,
            Some(FAILED) => return Arrived::Failed,
            Some(len) if len != expected as u64 => return Arrived::OtherLength(len),
            Some(_) => {}
        }
        for begin in (0..expected).step_by(LINE_DATA) {
            let Some(data) = take(words, at + (1 + begin / LINE_DATA) * LINE_WORDS, self.number) else {
                return Arrived::No;
            };
            if to.is_null() {
                continue;
            }
            let some = LINE_DATA.min(expected - begin);
            // SAFETY: within the memory of the caller's promise, and within the array.
            unsafe { std::ptr::copy_nonoverlapping(data.to_le_bytes().as_ptr(), to.add(begin), some) };
        }
        Arrived::Yes
    }
}

/// Writes a line.
fn put(words: &impl SlotWords, at: usize, data: u64, number: u32) {
    let number = u64::from(number) << 32;
    words.store(at, data & u64::from(u32::MAX) | number);
    words.store(at + 1, data >> 32 | number);
}

/// Reads the data of a line, if it has this number.
fn take(words: &impl SlotWords, at: usize, number: u32) -> Option<u64> {
    let [low, high] = [at, at + 1].map(|word| words.load(word));
    let is_it = |word: u64| (word >> 32) as u32 == number;
    (is_it(low) && is_it(high)).then_some(low & u64::from(u32::MAX) | high << 32)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    struct Words(RefCell<Vec<u64>>);

    impl SlotWords for Words {
        fn load(&self, index: usize) -> u64 {
            self.0.borrow()[index]
        }

        fn store(&self, index: usize, value: u64) {
            self.0.borrow_mut()[index] = value;
        }
    }

    const DATA: usize = 21;

    const SEGMENT: usize = SlotLayout::segment_len(DATA);
    const LAYOUT: SlotLayout = SlotLayout { offset: 64, slot: 2 * SEGMENT };
    const PLACES: &[u32] = &[0, SEGMENT as u32];

    fn words() -> Words {
        Words(RefCell::new(vec![0; 64]))
    }

    #[test]
    fn what_one_rank_stores_the_other_one_fetches() {
        for to_each in [false, true] {
            for len in 0..=DATA {
                let (words, data) = (words(), [7_u8; DATA].map(|byte| byte.wrapping_mul(len as u8)));
                let mut got = [0xEE_u8; DATA + 1];
                let sends = [(data.as_ptr(), len as u32); 2];
                let receives = [(got.as_mut_ptr(), len as u32); 2];
                let shot = |me| OneShot {
                    layout: LAYOUT,
                    me,
                    number: 9,
                    places: to_each.then_some(PLACES),
                    sends: &sends,
                    receives: &receives,
                };
                // SAFETY: the memory of the arrays.
                unsafe {
                    assert_eq!(shot(1).fetch(&words, 0), Arrived::No);
                    shot(0).publish(&words);
                    assert_eq!(shot(1).has_come(&words, 0), Arrived::Yes);
                    assert_eq!(shot(1).fetch(&words, 0), Arrived::Yes);
                }
                assert_eq!((&got[..len], got[len]), (&data[..len], 0xEE));
                let later = OneShot { number: 10, ..shot(1) };
                assert_eq!(later.has_come(&words, 0), Arrived::No);
            }
        }
    }

    #[test]
    fn other_lengths_and_failures_are_seen() {
        let (words, data) = (words(), [1_u8; DATA]);
        let sends = [(data.as_ptr(), 16); 2];
        let receives = [(std::ptr::null_mut(), 8); 2];
        let places = Some(PLACES);
        let shot = |me| OneShot { layout: LAYOUT, me, number: 1, places, sends: &sends, receives: &receives };
        // SAFETY: the memory of the array.
        unsafe { shot(0).publish(&words) };
        assert_eq!(shot(1).has_come(&words, 0), Arrived::OtherLength(16));
        shot(0).publish_failure(&words);
        assert_eq!(shot(1).has_come(&words, 0), Arrived::OtherLength(16), "data that was stored stays");
        // A kernel that failed has stored some of its lines.
        put(&words, shot(1).words(1, 0), 16, 1);
        assert_eq!(shot(0).has_come(&words, 1), Arrived::OtherLength(16));
        shot(1).publish_failure(&words);
        assert_eq!(shot(0).has_come(&words, 1), Arrived::Failed);
    }
}
