//! A copy in a stream of the program with the words that the stream writes beside it, as kernels/copy.cu declares it.
//!
//! A driver has a copy engine make a copy of a stream. The stream changes from its queue to that of the engine and back,
//! which takes longer than a small copy: 5 us on each side of it, once the stream has waited for a word or run a kernel
//! (`docs/decisions/022-copies-in-streams.md`). A kernel makes the copy and writes the words without that. Its last
//! block writes the words. Blocks count in a slot, which launches that may overlap do not share.

use std::ffi::c_void;

use super::Kernels;
use super::slots::CopySlotNumber;
use crate::driver::{Failure, Stream};
use crate::word_operation::{WordAccess, WordOperation};

/// The longest copy that a kernel makes (H200, NVLink): longer ones are as fast by a copy engine, whose stream changes queues.
const MOST: u64 = 1 << 20;
/// The longest copy of one block.
const MOST_ALONE: u64 = 64 << 10;
/// The bytes of each of several blocks, and the most blocks.
const PART: u64 = 16 << 10;
const MOST_BLOCKS: u64 = 32;
/// The number of words that are written behind the copy.
const MOST_BEHIND: usize = 2;

#[derive(Clone, Copy)]
#[repr(C)]
struct Written {
    /// 0 if nothing is written.
    address: u64,
    value: u64,
}

/// A copy, with a word that is written before it, and words that are written behind it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Signalled {
    to: u64,
    from: u64,
    len: u64,
    slot: u64,
    /// The address of a word with the number of bytes that have arrived, or 0.
    arrived: u64,
    before: Written,
    behind: [Written; MOST_BEHIND],
}
const _: () = assert!(size_of::<Signalled>() == 40 + 3 * 16);

impl Signalled {
    const NOTHING: Signalled = {
        let none = Written { address: 0, value: 0 };
        Signalled { to: 0, from: 0, len: 0, slot: 0, arrived: 0, before: none, behind: [none; MOST_BEHIND] }
    };

    /// Describes a copy without words. Returns `None` if a copy engine makes it as fast.
    pub(crate) fn new(to: *mut u8, from: *const u8, len: usize, slot: CopySlotNumber) -> Option<Signalled> {
        let (to, from, len, slot) = (to as u64, from as u64, len as u64, u64::from(slot.index()));
        (1..=MOST).contains(&len).then_some(Signalled { to, from, len, slot, ..Signalled::NOTHING })
    }

    fn blocks(&self) -> u32 {
        if self.len <= MOST_ALONE { 1 } else { self.len.div_ceil(PART).min(MOST_BLOCKS) as u32 }
    }

    /// Sets the word that is cleared before the copy, if there is one.
    pub(crate) fn clear_before(&mut self, address: Option<u64>) {
        self.before = Written { address: address.unwrap_or(0), value: 0 };
    }

    /// Has the kernel copy at most as many bytes as the word at this address says when the copy begins. The word is 0 after the
    /// copy.
    pub(crate) fn arrived_at(&mut self, address: u64) {
        self.arrived = address;
    }

    /// Adds a word that is written behind the copy. Returns false if the operation is no write of 64 bits, or there is no
    /// room.
    pub(crate) fn write_behind(&mut self, operation: WordOperation) -> bool {
        let WordOperation { address, value, wide: true, access: WordAccess::Write } = operation else { return false };
        let free = self.behind.iter_mut().find(|word| word.address == 0);
        free.map(|word| *word = Written { address, value }).is_some()
    }
}

impl Kernels {
    /// Adds a copy with its words to a stream of the context, or to the graph that the stream captures. Returns false if
    /// no kernel can be launched. The context is current.
    ///
    /// # Safety
    /// Kernels in the context can access all of the memory, which is valid until the stream has passed the copy. Nobody
    /// uses it conflictingly meanwhile.
    pub(crate) unsafe fn copy_signalled(&self, mut copy: Signalled, stream: &Stream) -> Result<bool, Failure> {
        let blocks = copy.blocks();
        // SAFETY: the kernel's argument as it declares it, and the caller's promise.
        unsafe { self.launch_signalled(blocks, (&raw mut copy).cast::<c_void>(), stream) }
    }

    /// Takes a slot, until [`give_slot_back`](Self::give_slot_back). Returns `None` if all are in use.
    pub(crate) fn take_slot(&self) -> Option<CopySlotNumber> {
        self.slots.lock().take()
    }

    /// Gives a slot back whose launches are over.
    pub(crate) fn give_slot_back(&self, slot: CopySlotNumber) {
        self.slots.lock().give_back(slot);
    }

    /// Returns the argument of a launch that does nothing.
    pub(super) fn nothing_signalled() -> Signalled {
        Signalled::NOTHING
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word_operation::WaitCondition;

    fn new(len: usize) -> Option<Signalled> {
        let (to, from) = (std::ptr::without_provenance_mut(64), std::ptr::without_provenance(128));
        Signalled::new(to, from, len, CopySlotNumber::FIRST)
    }

    #[test]
    fn blocks_are_as_many_as_the_length_needs() {
        assert!(new(0).is_none() && new((1 << 20) + 1).is_none());
        let blocks = |len| new(len).map(|copy| copy.blocks());
        assert_eq!([1, 64 << 10, (64 << 10) + 1, 1 << 20].map(blocks), [Some(1), Some(1), Some(5), Some(32)]);
    }

    #[test]
    fn only_writes_of_whole_words_are_taken() {
        let mut copy = new(8).unwrap();
        let narrow = WordOperation { wide: false, ..WordOperation::write(8, 1) };
        assert!(!copy.write_behind(WordOperation::wait(8, 1, WaitCondition::Equal)) && !copy.write_behind(narrow));
        copy.clear_before(Some(8));
        assert!(copy.write_behind(WordOperation::write(16, 2)) && copy.write_behind(WordOperation::write(24, 3)));
        assert!(!copy.write_behind(WordOperation::write(32, 4)), "there is no room");
        assert_eq!((copy.before.address, copy.behind[0].value, copy.behind[1].address), (8, 2, 24));
    }
}
