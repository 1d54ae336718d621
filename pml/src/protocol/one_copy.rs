//! Whether a peer fetches small device messages that are announced to it, or asks for them as fragments after all.

/// So many in a row that it did not fetch, and the next ones are sent eagerly.
const PATIENCE: u32 = 8;
/// So many are sent eagerly before one is announced again.
const PAUSE: u32 = 256;

/// What is known of one peer. A message to a receiver in host memory is better sent eagerly, and only the receiver
/// knows where its buffer is.
#[derive(Debug, Default)]
pub(crate) struct OneCopyHistory {
    /// In a row that were not fetched.
    missed: u32,
    /// Messages yet to be sent eagerly.
    pause: u32,
    /// It costs less if the peer copies: to fetch takes less time there, or its device is ours, and its rank is lower.
    peer_copies: bool,
}

impl OneCopyHistory {
    /// Whether the next small message should be announced rather than sent eagerly.
    pub(crate) fn next_is_one_copy(&mut self) -> bool {
        if self.missed < PATIENCE {
            return true;
        }
        match self.pause.checked_sub(1) {
            Some(left) => self.pause = left,
            None => {
                self.pause = PAUSE;
                return true;
            }
        }
        false
    }

    /// The peer moved an announced message by one copy, or let us do so.
    pub(crate) fn succeeded(&mut self) {
        *self = OneCopyHistory { peer_copies: self.peer_copies, ..OneCopyHistory::default() };
    }

    /// Whether the next message should be copied by the peer.
    pub(crate) fn peer_copies(&self) -> bool {
        self.peer_copies
    }

    /// What was learnt about that.
    pub(crate) fn let_peer_copy(&mut self, peer_copies: bool) {
        self.peer_copies = peer_copies;
    }

    /// The peer asked for the fragments of an announced message.
    pub(crate) fn missed(&mut self) {
        if self.missed < PATIENCE {
            self.missed += 1;
            self.pause = PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
