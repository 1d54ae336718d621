//! The slots of a communicator's ranks, in host memory that all of them share.
//!
//! Rank 0 makes a file of memory, and the others map it. All numbers are in the byte order of the machine.
//!
//! | bytes | |
//! |---|---|
//! | 0 to 7 | cookie: a random number, by which members know the file |
//! | 64 on | the slots of all ranks for even exchanges, and then those for odd ones |
//!
//! Two sets of slots are enough. A rank begins an exchange after it has ended the last one, for which it needed the data of
//! all others. So all of them had ended the exchange before that, whose slots it uses again.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cableway_common_cuda::{DeviceIndex, DeviceSlots, Devices, HostSlots, Location, SlotLayout, SlotWords, WordsFile};
use parking_lot::Mutex;

use crate::plan::one_shot::MOST_DATA;

/// Where the slots begin in the file.
const FIRST: usize = 64;
/// Numbers of exchanges are used again after so many. Before that each rank clears its slots, so that no line has the number
/// of a later exchange.
const NUMBERS: u64 = 1 << 31;
/// How often each rank clears its slots.
const CLEARED_EVERY: u64 = NUMBERS / 2;

/// The slots of a communicator.
pub(crate) struct Slots {
    file: WordsFile,
    words: HostSlots,
    ranks: usize,
    name: SlotsName,
    registered: Mutex<Registered>,
    /// The exchanges that this rank has begun.
    begun: AtomicU64,
}

/// The contexts of devices that were met.
#[derive(Default)]
struct Registered {
    /// For those whose kernels reach the slots.
    slots: Vec<Arc<DeviceSlots>>,
    /// The device and context of those that were refused.
    refused: Vec<(Option<DeviceIndex>, u64)>,
}

/// What members need to find the file of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotsName {
    /// The process of rank 0.
    pub process: u32,
    /// Its descriptor of the file.
    pub descriptor: u32,
    /// What the file begins with.
    pub cookie: u64,
}

/// A rank's place in the order of exchanges.
#[derive(Clone)]
pub(crate) struct Turn {
    slots: Arc<Slots>,
    turn: u64,
}

impl Slots {
    /// Returns the bytes of a slot: data in a segment for each rank, of which each has a first line, and a last one that may
    /// not be full.
    const fn slot_len(ranks: usize) -> usize {
        SlotLayout::segment_len(MOST_DATA as usize) + 2 * ranks * SlotLayout::segment_len(0)
    }

    /// Returns where the segment for each rank begins in a slot, if all have room for the same number of bytes.
    pub(crate) fn even_places(ranks: u32) -> Vec<u32> {
        let room = Slots::slot_len(ranks as usize) / ranks as usize / SlotLayout::LINE * SlotLayout::LINE;
        (0..ranks).map(|rank| rank * room as u32).collect()
    }

    /// Returns where segments of these numbers of bytes begin in a slot, one behind the other.
    pub(crate) fn places(lengths: impl Iterator<Item = u64>) -> Vec<u32> {
        let segments = lengths.scan(0, |place, len| {
            let begin = *place;
            *place += SlotLayout::segment_len(len as usize) as u32;
            Some(begin)
        });
        segments.collect()
    }

    /// Returns the words of the file.
    const fn words_of(ranks: usize) -> usize {
        (FIRST + 2 * ranks * Slots::slot_len(ranks)) / size_of::<u64>()
    }

    /// Makes the slots of so many ranks.
    pub(crate) fn new(ranks: usize) -> io::Result<Slots> {
        let file = WordsFile::new(Slots::words_of(ranks))?;
        let descriptor = file.as_fd().as_raw_fd().unsigned_abs();
        let cookie = RandomState::new().build_hasher().finish();
        let slots = Slots::of(file, ranks, SlotsName { process: std::process::id(), descriptor, cookie })?;
        slots.words.store(0, cookie);
        Ok(slots)
    }

    /// Maps the slots that rank 0 has made.
    pub(crate) fn open(name: SlotsName, ranks: usize) -> io::Result<Slots> {
        let file = WordsFile::open(name.process, name.descriptor, Slots::words_of(ranks))?;
        let slots = Slots::of(file, ranks, name)?;
        if slots.words.load(0) != name.cookie {
            // Process numbers mean something else here.
            return Err(io::Error::new(io::ErrorKind::NotFound, "it is another process's file"));
        }
        Ok(slots)
    }

    fn of(file: WordsFile, ranks: usize, name: SlotsName) -> io::Result<Slots> {
        let words = file.map()?;
        Ok(Slots { file, words, ranks, name, registered: Mutex::default(), begun: AtomicU64::new(0) })
    }

    /// Returns what other members need to map the slots.
    pub(crate) fn name(&self) -> SlotsName {
        self.name
    }

    /// Checks whether kernels in the context of the device memory at `at` reach the slots, after an attempt to have the
    /// driver register them.
    pub(crate) fn are_reached_at(&self, devices: &Devices, at: &Location) -> bool {
        self.registered_at(devices, at).is_some()
    }

    pub(crate) fn registered_at(&self, devices: &Devices, at: &Location) -> Option<Arc<DeviceSlots>> {
        let mut registered = self.registered.lock();
        if let Some(found) = registered.slots.iter().find(|slots| slots.are_for(devices, at)) {
            return Some(found.clone());
        }
        if registered.refused.contains(&(at.device, at.context)) {
            return None;
        }
        match devices.register_slots(at, &self.file) {
            Ok(made) => {
                let slots = Arc::new(made?);
                registered.slots.push(slots.clone());
                Some(slots)
            }
            Err(error) => {
                log::info!("the host exchanges little data of collectives: {error}");
                registered.refused.push((at.device, at.context));
                None
            }
        }
    }

    /// Takes the next turn. All members take their turns for the same calls.
    pub(crate) fn next_turn(slots: &Arc<Slots>) -> Turn {
        Turn { slots: slots.clone(), turn: slots.begun.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Turn {
    pub(crate) fn words(&self) -> &HostSlots {
        &self.slots.words
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Returns the number of the exchange. It is never 0, which lines have that nobody has written.
    pub(crate) fn number(&self) -> u32 {
        (self.turn % NUMBERS) as u32 + 1
    }

    pub(crate) fn layout(&self) -> SlotLayout {
        let slot = Slots::slot_len(self.slots.ranks);
        let set = if self.turn.is_multiple_of(2) { 0 } else { self.slots.ranks * slot };
        SlotLayout { offset: FIRST + set, slot }
    }

    /// Clears a rank's slot now and then, so that none of its lines has the number of a later exchange. Nobody reads the
    /// slot before the rank stores its data there.
    pub(crate) fn prepare(&self, rank: usize) {
        if self.turn < 2 || self.turn % CLEARED_EVERY > 1 {
            return;
        }
        let layout = self.layout();
        let first = (layout.offset + rank * layout.slot) / size_of::<u64>();
        (first..first + layout.slot / size_of::<u64>()).for_each(|word| self.slots.words.store(word, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_find_the_slots_by_their_name() {
        let made = Slots::new(3).unwrap();
        let name = made.name();
        let opened = Slots::open(name, 3).unwrap();
        made.words.store(9, 17);
        assert_eq!(opened.words.load(9), 17);
        assert!(Slots::open(SlotsName { cookie: name.cookie ^ 1, ..name }, 3).is_err());
        assert!(Slots::open(name, 4).is_err(), "of another size");
        assert!(Slots::open(SlotsName { descriptor: u32::MAX, ..name }, 3).is_err());
    }

    #[test]
    fn sets_alternate_and_lie_in_the_file() {
        for ranks in 2..=16 {
            let slots = Arc::new(Slots::new(ranks).unwrap());
            let [even, odd] = [(); 2].map(|()| Slots::next_turn(&slots));
            let (first, second) = (even.layout(), odd.layout());
            assert_eq!((even.number(), odd.number()), (1, 2));
            assert_eq!((first.slot, first.offset + ranks * first.slot), (second.slot, second.offset));
            assert_eq!(second.offset + ranks * second.slot, Slots::words_of(ranks) * 8);
            assert!(first.slot.is_multiple_of(16) && first.offset.is_multiple_of(16));
        }
    }

    #[test]
    fn no_line_keeps_a_number_until_it_is_used_again() {
        let slots = Arc::new(Slots::new(2).unwrap());
        let old = Turn { slots: slots.clone(), turn: CLEARED_EVERY - 2 };
        let word = old.layout().offset / 8 + 1;
        slots.words.store(word, u64::MAX);
        Turn { slots: slots.clone(), turn: CLEARED_EVERY }.prepare(1);
        assert_eq!(slots.words.load(word), u64::MAX, "it is another rank's");
        Turn { slots: slots.clone(), turn: CLEARED_EVERY + 1 }.prepare(0);
        assert_eq!(slots.words.load(word), u64::MAX, "it is of the other set");
        Turn { slots: slots.clone(), turn: CLEARED_EVERY + 2 }.prepare(0);
        assert_eq!(slots.words.load(word), u64::MAX, "it is not time");
        Turn { slots: slots.clone(), turn: CLEARED_EVERY }.prepare(0);
        assert_eq!(slots.words.load(word), 0);
        let again = Turn { slots, turn: NUMBERS };
        assert_eq!(again.number(), 1);
    }
}
