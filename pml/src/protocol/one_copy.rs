//! History of one-copy transfers with a peer: predicts whether it fetches small announced device messages or requests
//! fragments.

use super::attempts::Attempts;

/// Messages sent eagerly before one is announced again.
const PAUSE: u32 = 256;

/// The history of one peer. A message to a receiver in host memory is better sent eagerly, and only the receiver knows
/// where its buffer is.
#[derive(Debug, Default)]
pub(crate) struct OneCopyHistory {
    /// Announced messages. After several in a row without one copy, messages are sent eagerly.
    announced: Attempts<PAUSE>,
    /// Whether it costs less if the peer copies: a GET takes it less time, or both use one device and its rank is
    /// lower.
    peer_copies: bool,
}

impl OneCopyHistory {
    /// Returns whether the next small message should be announced rather than sent eagerly.
    pub(crate) fn next_is_one_copy(&mut self) -> bool {
        self.announced.next()
    }

    /// Notes that an announced message moved by one copy.
    pub(crate) fn succeeded(&mut self) {
        self.announced.note(true);
    }

    /// Returns whether the peer should copy the next message.
    pub(crate) fn peer_copies(&self) -> bool {
        self.peer_copies
    }

    /// Notes whether the peer should copy.
    pub(crate) fn let_peer_copy(&mut self, peer_copies: bool) {
        self.peer_copies = peer_copies;
    }

    /// Notes that the peer requested fragments of an announced message.
    pub(crate) fn missed(&mut self) {
        self.announced.note(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::attempts::PATIENCE;

    #[test]
    fn a_peer_that_never_fetches_is_asked_now_and_then() {
        let mut one_copy = OneCopyHistory::default();
        for _ in 0..PATIENCE {
            assert!(one_copy.next_is_one_copy());
            one_copy.missed();
        }
        for _ in 0..3 {
            assert!((0..PAUSE).all(|_| !one_copy.next_is_one_copy()));
            assert!(one_copy.next_is_one_copy());
            one_copy.missed();
        }
        one_copy.succeeded();
        assert!((0..100).all(|_| one_copy.next_is_one_copy()));
    }
}
