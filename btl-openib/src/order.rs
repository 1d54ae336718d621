//! Messages of several queue pairs of one connection, which come in no order among each other, put into that of their
//! sending. Where there are several, a word beside each message is its number; a goodbye's is that of the message that
//! will not follow, with a bit set. A message that comes early is copied: would it stay in its buffer, connections could
//! wait for each other's.

use std::collections::BTreeMap;

use smallvec::SmallVec;

/// In the word beside a goodbye. Without it the rest is a message's number.
pub(crate) const GOODBYE: u32 = 1 << 31;

/// The word for what follows `sent` messages.
#[inline]
pub(crate) fn immediate(sent: u64) -> u32 {
    sent as u32 & !GOODBYE
}

/// How many messages come between the `consumed` first and what has this word.
#[inline]
pub(crate) fn ahead(immediate: u32, consumed: u64) -> u32 {
    immediate.wrapping_sub(consumed as u32) & !GOODBYE
}

/// What has come early, and what the peer was not told of each queue.
pub(crate) struct Arrivals {
    /// By the number of messages before it.
    early: BTreeMap<u64, Early>,
    /// Of each queue, messages consumed since the peer was told.
    untold: SmallVec<[u32; 4]>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Early {
    /// Of which queue, and what.
    Message(usize, Box<[u8]>),
    Goodbye,
}

impl Arrivals {
    pub(crate) fn new(queues: usize) -> Self {
        Arrivals { early: BTreeMap::new(), untold: SmallVec::from_elem(0, queues) }
    }

    /// Keeps what comes after `before` messages. False: it has come already.
    pub(crate) fn keep(&mut self, before: u64, what: Early) -> bool {
        self.early.insert(before, what).is_none()
    }

    /// What comes after the `consumed` first, if it is here.
    pub(crate) fn next(&mut self, consumed: u64) -> Option<Early> {
        self.early.remove(&consumed)
    }

    /// A message of a queue was consumed; returns how many since the peer was told.
    pub(crate) fn consume(&mut self, queue: usize) -> usize {
        let untold = &mut self.untold[queue];
        *untold += 1;
        *untold as usize
    }

    /// The peer was told of all.
    pub(crate) fn told(&mut self) {
        self.untold.fill(0);
    }

    /// Nobody will want it any more.
    pub(crate) fn clear(&mut self) {
        self.early.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever overtakes what within the windows, all come out once, in order, the goodbye last.
        #[test]
        fn messages_come_out_in_order(first in prop_oneof![Just(0_u64), Just((1 << 31) - 9), Just((1 << 32) - 5)],
                                      count in 0..40_u64, picks in proptest::collection::vec(0..8_usize, 41)) {
            let mut flying: Vec<(u32, Early)> = (0..count)
                .map(|n| (immediate(first + n), Early::Message((n % 3) as usize, Box::from((first + n).to_le_bytes()))))
                .collect();
            flying.push((immediate(first + count) | GOODBYE, Early::Goodbye));
            let (mut arrivals, mut consumed, mut ended) = (Arrivals::new(3), first, false);
            for pick in picks.into_iter().take(count as usize + 1) {
                let (immediate, what) = flying.remove(pick.min(flying.len() - 1));
                prop_assert_eq!(immediate & GOODBYE != 0, what == Early::Goodbye);
                prop_assert!(arrivals.keep(consumed + u64::from(ahead(immediate, consumed)), what));
                while let Some(next) = arrivals.next(consumed) {
                    prop_assert!(!ended);
                    match next {
                        Early::Message(_, bytes) => {
                            prop_assert_eq!(&*bytes, consumed.to_le_bytes());
                            consumed += 1;
                        }
                        Early::Goodbye => ended = true,
                    }
                }
            }
            prop_assert!(ended && consumed == first + count);
        }
    }

    #[test]
    fn what_comes_twice_is_told() {
        let mut arrivals = Arrivals::new(2);
        assert!(arrivals.keep(7, Early::Goodbye) && !arrivals.keep(7, Early::Goodbye));
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
