//! Messages that a service takes as they come, instead of receives.
//!
//! All messages with one tag wait here, in the order in which they were admitted. The service takes them together, and
//! handles them in place. So a message costs neither a node of the queue of unexpected messages nor an allocation.

use std::collections::VecDeque;

/// The largest capacities, in bytes of payload and in messages, that an empty batch keeps.
const KEPT_CAPACITY: usize = 256 << 10;
const KEPT_MESSAGES: usize = 4096;

/// Messages in the order in which they were admitted. `U` is a message that did not come whole.
pub(crate) struct Batch<U> {
    entries: VecDeque<Entry<U>>,
    /// The payloads of whole messages, one after the other.
    bytes: Vec<u8>,
    /// Where the payload of the next whole message begins.
    at: usize,
}

struct Entry<U> {
    source: u32,
    kind: Kind<U>,
}

enum Kind<U> {
    /// A message of so many bytes, which are in the batch.
    Whole(usize),
    Other(Box<U>),
}

/// A message that was taken out of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken<'b, U> {
    /// All bytes of a message.
    Whole(&'b [u8]),
    Other(Box<U>),
}

impl<U> Default for Batch<U> {
    fn default() -> Self {
        Batch { entries: VecDeque::new(), bytes: Vec::new(), at: 0 }
    }
}

impl<U> Batch<U> {
    /// Adds a whole message, whose bytes `append` appends.
    #[inline]
    pub(super) fn push_whole(&mut self, source: u32, append: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        append(&mut self.bytes);
        self.entries.push_back(Entry { source, kind: Kind::Whole(self.bytes.len() - before) });
    }

    pub(super) fn push_other(&mut self, source: u32, message: U) {
        self.entries.push_back(Entry { source, kind: Kind::Other(Box::new(message)) });
    }

    /// Removes the oldest message, and returns it with its source.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u32, Taken<'_, U>)> {
        let Entry { source, kind } = self.entries.pop_front()?;
        let taken = match kind {
            Kind::Whole(len) => {
                let begin = self.at;
                self.at += len;
                Taken::Whole(&self.bytes[begin..self.at])
            }
            Kind::Other(message) => Taken::Other(message),
        };
        Some((source, taken))
    }

    /// Returns the number of messages.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no message.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Exchanges an empty batch for this one.
    #[inline]
    pub(super) fn take_into(&mut self, empty: &mut Self) {
        debug_assert!(empty.is_empty());
        (empty.at, self.at) = (0, 0);
        empty.bytes.clear();
        empty.bytes.shrink_to(KEPT_CAPACITY);
        empty.entries.shrink_to(KEPT_MESSAGES);
        std::mem::swap(self, empty);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_leave_in_the_order_in_which_they_came() {
        let (mut inbox, mut taken) = (Batch::default(), Batch::default());
        for round in 0..3_u8 {
            inbox.push_whole(1, |bytes| bytes.extend([round; 3]));
            inbox.push_other(2, round);
            inbox.push_whole(3, |_| {});
            inbox.push_whole(1, |bytes| bytes.extend([9, round]));
            inbox.take_into(&mut taken);
            // Others come before the batch is handled.
            inbox.push_whole(4, |bytes| bytes.push(round));
            assert_eq!((taken.len(), inbox.len()), (if round == 0 { 4 } else { 5 }, 1));
            if round > 0 {
                assert_eq!(taken.pop(), Some((4, Taken::Whole(&[round - 1][..]))));
            }
            assert_eq!(taken.pop(), Some((1, Taken::Whole(&[round; 3][..]))));
            assert_eq!(taken.pop(), Some((2, Taken::Other(Box::new(round)))));
            assert_eq!(taken.pop(), Some((3, Taken::Whole(&[][..]))));
            assert_eq!(taken.pop(), Some((1, Taken::Whole(&[9, round][..]))));
            assert_eq!(taken.pop(), None);
        }
    }

    #[test]
    fn a_large_batch_gives_its_memory_back() {
        let (mut inbox, mut taken) = (Batch::<()>::default(), Batch::default());
        inbox.push_whole(0, |bytes| bytes.resize(4 * KEPT_CAPACITY, 7));
        inbox.take_into(&mut taken);
        assert!(taken.pop().is_some());
        inbox.take_into(&mut taken);
        assert!(inbox.bytes.capacity() <= 2 * KEPT_CAPACITY && taken.bytes.capacity() == 0);
    }
}
