//! The order in which one source's messages are admitted.

use std::collections::HashMap;

use ahash::RandomState;

/// What a sequence number says about its message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is the one awaited, which is now the next.
    Next,
    /// Others come before it.
    Early,
    /// It was there before.
    Repeated,
}

/// Messages overtake each other where several links lead to a peer, or where one waits for a device's copy. Numbers
/// wrap; those up to half the range ahead are early, the others repeated.
pub(crate) struct Sequence<M> {
    awaited: u32,
    /// None while nothing is parked, which is nearly always.
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

    /// Whether `seq` is awaited and nothing waits for it to pass.
    #[inline]
    pub(crate) fn is_next_alone(&self, seq: u32) -> bool {
        seq == self.awaited && self.parked.is_none()
    }

    /// The number that is awaited, if nothing waits for it to pass.
    pub(crate) fn next_alone(&self) -> Option<u32> {
        self.parked.is_none().then_some(self.awaited)
    }

    /// The awaited message was admitted.
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
