//! Restores the order of messages that arrive by several queue pairs of one connection. Each message then carries its
//! number as immediate data. A goodbye carries the number of the message that will not follow, with a bit set. Early
//! messages are copied: if they stayed in their buffers, connections could deadlock on each other's buffers.

use std::collections::BTreeMap;

use smallvec::SmallVec;

/// Marks the immediate data of a goodbye. The other bits are a message number.
pub(crate) const GOODBYE: u32 = 1 << 31;

/// Returns the immediate data of what follows `sent` messages.
#[inline]
pub(crate) fn immediate(sent: u64) -> u32 {
    sent as u32 & !GOODBYE
}

/// Returns how many messages are missing between the first `consumed` ones and the one with this immediate data.
#[inline]
pub(crate) fn ahead(immediate: u32, consumed: u64) -> u32 {
    immediate.wrapping_sub(consumed as u32) & !GOODBYE
}

/// Early messages, and the credits owed for each queue.
pub(crate) struct Arrivals {
    /// Early messages, by the number of messages before each.
    early: BTreeMap<u64, EarlyArrival>,
    /// Messages of each queue consumed since the last credit.
    untold: SmallVec<[u32; 4]>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EarlyArrival {
    /// Its queue and its bytes.
    Message(usize, Box<[u8]>),
    Goodbye,
}

impl Arrivals {
    pub(crate) fn new(queues: usize) -> Self {
        Arrivals { early: BTreeMap::new(), untold: SmallVec::from_elem(0, queues) }
    }

    /// Keeps the message that follows `before` others. Returns false for a duplicate.
    pub(crate) fn keep(&mut self, before: u64, what: EarlyArrival) -> bool {
        self.early.insert(before, what).is_none()
    }

    /// Takes the message after the first `consumed` ones, if it has arrived.
    pub(crate) fn next(&mut self, consumed: u64) -> Option<EarlyArrival> {
        self.early.remove(&consumed)
    }

    /// Counts a consumed message of a queue; returns how many were consumed since the last credit.
    pub(crate) fn consume(&mut self, queue: usize) -> usize {
        let untold = &mut self.untold[queue];
        *untold += 1;
        *untold as usize
    }

    /// Resets the counts after a credit was sent.
    pub(crate) fn told(&mut self) {
        self.untold.fill(0);
    }

    /// Drops all early messages.
    pub(crate) fn clear(&mut self) {
        self.early.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// In any arrival order within the windows, all messages come out once, in order, and the goodbye last.
        #[test]
        fn messages_come_out_in_order(first in prop_oneof![Just(0_u64), Just((1 << 31) - 9), Just((1 << 32) - 5)],
                                      count in 0..40_u64, picks in proptest::collection::vec(0..8_usize, 41)) {
            let mut flying: Vec<(u32, EarlyArrival)> = (0..count)
                .map(|n| (immediate(first + n), EarlyArrival::Message((n % 3) as usize, Box::from((first + n).to_le_bytes()))))
                .collect();
            flying.push((immediate(first + count) | GOODBYE, EarlyArrival::Goodbye));
            let (mut arrivals, mut consumed, mut ended) = (Arrivals::new(3), first, false);
            for pick in picks.into_iter().take(count as usize + 1) {
                let (immediate, what) = flying.remove(pick.min(flying.len() - 1));
                prop_assert_eq!(immediate & GOODBYE != 0, what == EarlyArrival::Goodbye);
                prop_assert!(arrivals.keep(consumed + u64::from(ahead(immediate, consumed)), what));
                while let Some(next) = arrivals.next(consumed) {
                    prop_assert!(!ended);
                    match next {
                        EarlyArrival::Message(_, bytes) => {
                            prop_assert_eq!(&*bytes, consumed.to_le_bytes());
                            consumed += 1;
                        }
                        EarlyArrival::Goodbye => ended = true,
                    }
                }
            }
            prop_assert!(ended && consumed == first + count);
        }
    }

    #[test]
    fn duplicates_are_detected() {
        let mut arrivals = Arrivals::new(2);
        assert!(arrivals.keep(7, EarlyArrival::Goodbye) && !arrivals.keep(7, EarlyArrival::Goodbye));
        arrivals.clear();
        assert_eq!(arrivals.next(7), None);
    }

    #[test]
    fn queues_are_counted_apart() {
        let mut arrivals = Arrivals::new(2);
        assert_eq!([0, 1, 0, 0].map(|queue| arrivals.consume(queue)), [1, 1, 2, 3]);
        arrivals.told();
        assert_eq!([0, 1].map(|queue| arrivals.consume(queue)), [1, 1]);
    }
}
