//! Slots in which the blocks of copies in streams count.

/// The number of slots, as in kernels/copy.cu.
const SLOTS: u32 = 4096;

/// The number of a slot in which the blocks of a launch count.
#[derive(Clone, Copy, Debug)]
pub struct CopySlotNumber(u32);

impl CopySlotNumber {
    #[cfg(test)]
    pub(super) const FIRST: CopySlotNumber = CopySlotNumber(0);

    pub(super) fn index(self) -> u32 {
        self.0
    }
}

/// The slots that are not in use.
pub(super) struct Slots {
    free: Vec<u32>,
    /// Those from this one on were never used.
    unused: u32,
}

impl Slots {
    pub(super) const fn new() -> Slots {
        Slots { free: Vec::new(), unused: 0 }
    }

    pub(super) fn take(&mut self) -> Option<CopySlotNumber> {
        let free = self.free.pop().or_else(|| {
            let next = (self.unused < SLOTS).then_some(self.unused);
            self.unused += u32::from(next.is_some());
            next
        });
        free.map(CopySlotNumber)
    }

    pub(super) fn give_back(&mut self, slot: CopySlotNumber) {
        self.free.push(slot.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_user() {
        let mut slots = Slots::new();
        let all: std::collections::HashSet<u32> =
            std::iter::from_fn(|| slots.take()).map(CopySlotNumber::index).collect();
        assert_eq!((all.len() as u32, all.iter().max()), (SLOTS, Some(&(SLOTS - 1))));
        slots.give_back(CopySlotNumber(17));
        assert_eq!(slots.take().map(CopySlotNumber::index), Some(17));
        assert!(slots.take().is_none());
    }
}
