//! Flow control: how much data that nobody asked for a peer may have here.
//!
//! Each message that brings its data along takes its cost off the sender's credit, and the receiver gives it back once
//! the message has been received into a user's buffer. A sender without credit only announces its messages, whatever
//! their size: announcements always flow, so that a receive of a later tag can be matched, and each keeps its sender's
//! request open, so that their number is the sender's own choice.

/// What keeping a message takes beside its payload, roughly: so that empty messages are not free.
const OVERHEAD: u64 = 128;

/// What a message takes off its sender's credit.
#[inline]
pub(crate) fn cost(eager: bool, payload: usize) -> u64 {
    if eager || payload != 0 { payload as u64 + OVERHEAD } else { 0 }
}

/// The sender's account with one peer.
#[derive(Debug, Default)]
pub(crate) struct Credit {
    window: u64,
    sent: u64,
    consumed: u64,
}

impl Credit {
    pub(crate) fn new(window: u64) -> Self {
        Credit { window, sent: 0, consumed: 0 }
    }

    /// Whether a message of this cost may bring its data along.
    #[inline]
    pub(crate) fn covers(&self, cost: u64) -> bool {
        self.sent - self.consumed + cost <= self.window
    }

    #[inline]
    pub(crate) fn take(&mut self, cost: u64) {
        self.sent += cost;
    }

    /// The peer has consumed this much since the start. An old figure that was overtaken changes nothing.
    ///
    /// # Errors
    /// That is more than was sent, which is returned.
    pub(crate) fn consumed(&mut self, total: u64) -> Result<(), u64> {
        if total > self.sent {
            return Err(self.sent);
        }
        self.consumed = self.consumed.max(total);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_runs_out_and_comes_back() {
        let mut credit = Credit::new(1000);
        let each = cost(true, 372);
        assert_eq!(each, 500);
        credit.take(each);
        assert!(credit.covers(each));
        credit.take(each);
        assert!(!credit.covers(each) && !credit.covers(cost(true, 0)));
        assert_eq!(credit.consumed(500), Ok(()));
        assert_eq!(credit.consumed(0), Ok(()), "overtaken");
        assert!(credit.covers(each));
        assert_eq!(credit.consumed(1001), Err(1000));
    }

    #[test]
    fn announcements_are_free_and_empty_messages_are_not() {
        assert_eq!(cost(false, 0), 0);
        assert!(cost(true, 0) > 0);
        assert_eq!(cost(false, 8), cost(true, 8));
    }
}
