//! Admits the messages of one source in order.

use std::collections::HashMap;

use ahash::RandomState;

/// The position of a message in the sequence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is the awaited message. The one after it is awaited now.
    Next,
    /// Earlier messages have not arrived.
    Early,
    /// It has arrived before.
    Repeated,
}

/// The sequence of one source. A message may overtake another if several links lead to a peer, or if one of them waits
/// for a device's copy. Sequence numbers wrap: numbers up to half the range ahead are early, the others are repeated.
pub(crate) struct Sequence<M> {
    awaited: u32,
    /// `None` while no message is parked, which is nearly always.
    #[expect(clippy::box_collection, reason = "one word per rank of every communicator, not six")]
    parked: Option<Box<HashMap<u32, M, RandomState>>>,
}

impl<M> Default for Sequence<M> {
    fn default() -> Self {
        Sequence { awaited: 0, parked: None }
    }
}

impl<M> Sequence<M> {
    #[inline]
    pub(crate) fn admit(&mut self, seq: u32) -> Admission {
        if seq == self.awaited {
            self.awaited = seq.wrapping_add(1);
            return Admission::Next;
        }
        let ahead = seq.wrapping_sub(self.awaited);
        let parked = || self.parked.as_ref().is_some_and(|parked| parked.contains_key(&seq));
        if ahead > u32::MAX / 2 || parked() { Admission::Repeated } else { Admission::Early }
    }

    /// Returns whether `seq` is awaited and no message is parked.
    #[inline]
    pub(crate) fn is_next_alone(&self, seq: u32) -> bool {
        seq == self.awaited && self.parked.is_none()
    }

    /// Notes that the awaited message was admitted.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.awaited = self.awaited.wrapping_add(1);
    }

    pub(crate) fn park(&mut self, seq: u32, message: M) {
        self.parked.get_or_insert_default().insert(seq, message);
    }

    #[inline]
    pub(crate) fn parks(&self) -> bool {
        self.parked.is_some()
    }

    #[inline]
    pub(crate) fn release(&mut self) -> Option<M> {
        let parked = self.parked.as_mut()?;
        let message = parked.remove(&self.awaited)?;
        if parked.is_empty() {
            self.parked = None;
        }
        self.awaited = self.awaited.wrapping_add(1);
        Some(message)
    }

    pub(crate) fn clear(&mut self) -> Vec<M> {
        self.parked.take().map_or_else(Vec::new, |parked| parked.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap() {
        let mut sequence = Sequence { awaited: u32::MAX, parked: None };
        assert_eq!(sequence.admit(0), Admission::Early);
        sequence.park(0, "second");
        assert_eq!(sequence.release(), None);
        assert_eq!(sequence.admit(0), Admission::Repeated);
        assert_eq!(sequence.admit(u32::MAX), Admission::Next);
        assert_eq!(sequence.release(), Some("second"));
        assert_eq!(sequence.release(), None);
        assert_eq!(sequence.admit(1), Admission::Next);
        assert_eq!(sequence.admit(u32::MAX), Admission::Repeated);
    }
}
