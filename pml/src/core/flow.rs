//! Flow control: limits the unexpected data that a peer may have here.
//!
//! Each message with data costs the sender credit. The receiver returns the credit once the data is in a user's buffer.
//! A sender without credit only announces its messages, of any size. Announcements always flow, so that a receive with
//! a later tag can be matched. Each announcement keeps a request of its sender open, so their number is the sender's
//! own choice.

use crate::wire::Malformed;

/// Approximate cost of an unexpected message beside its payload, so that empty messages are not free.
const OVERHEAD: u64 = 128;

/// Returns the credit that a message costs.
#[inline]
pub(crate) fn cost(eager: bool, payload: usize) -> u64 {
    if eager || payload != 0 { payload as u64 + OVERHEAD } else { 0 }
}

/// The sender's credit account with one peer.
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

    /// Returns whether a message of this cost may carry its data.
    #[inline]
    pub(crate) fn covers(&self, cost: u64) -> bool {
        self.sent - self.consumed + cost <= self.window
    }

    #[inline]
    pub(crate) fn take(&mut self, cost: u64) {
        self.sent += cost;
    }

    /// Gives back the cost of data that was not sent.
    pub(crate) fn refund(&mut self, cost: u64) {
        self.sent -= cost;
    }

    /// Notes the total cost that the peer has consumed. A report that a newer one overtook changes nothing.
    ///
    /// # Errors
    /// The peer reports more than was sent.
    pub(crate) fn consumed(&mut self, total: u64) -> Result<(), Malformed> {
        if total > self.sent {
            return Err(Malformed::Credit { consumed: total, sent: self.sent });
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
        assert_eq!(credit.consumed(1001), Err(Malformed::Credit { consumed: 1001, sent: 1000 }));
        credit.refund(each);
        assert!(credit.covers(cost(true, 0)) && credit.covers(each));
        assert_eq!(credit.consumed(501), Err(Malformed::Credit { consumed: 501, sent: 500 }));
    }

    #[test]
    fn announcements_are_free_and_empty_messages_are_not() {
        assert_eq!(cost(false, 0), 0);
        assert!(cost(true, 0) > 0);
        assert_eq!(cost(false, 8), cost(true, 8));
    }
}
