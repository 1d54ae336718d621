//! One side of the replay after a link broke: a state machine without links, which ensures that each message arrives
//! once.
//!
//! A link delivers in order. So each side reports how many messages it received, and the other side knows which of its
//! messages arrived. Until a side has that report, it sends nothing but its own report by the new link. Then it sends
//! the missing messages in order, and then everything else.

use std::collections::VecDeque;

use cableway_btl::Remains;

use crate::wire::Malformed;

#[derive(Debug)]
pub(crate) struct Replay {
    /// Messages received from the peer, and whether the peer was told.
    received: u64,
    told: bool,
    /// Messages that the peer is known to have received.
    delivered: u64,
    /// The messages after those.
    uncertain: VecDeque<Box<[u8]>>,
    /// The peer's report. The messages after it are to be sent.
    heard: Option<u64>,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<'r> {
    /// Report to the peer how many of its messages arrived.
    Tell(u64),
    Send(&'r [u8]),
    /// Wait for the peer's report.
    Wait,
    /// Nothing: the new link is like any other.
    Over,
}

impl Replay {
    pub(crate) fn new(remains: Remains) -> Self {
        let Remains { received, delivered, uncertain } = remains;
        Replay { received, told: false, delivered, uncertain, heard: None }
    }

    /// Notes the peer's report of how many messages it received. The peer may repeat it.
    ///
    /// # Errors
    /// The number is impossible, or differs from an earlier report.
    pub(crate) fn hear(&mut self, received: u64) -> Result<(), Malformed> {
        if self.heard == Some(received) {
            return Ok(());
        }
        let sent = self.delivered + self.uncertain.len() as u64;
        if self.heard.is_some() || !(self.delivered..=sent).contains(&received) {
            return Err(Malformed::Resume { received, delivered: self.delivered, sent });
        }
        self.heard = Some(received);
        self.uncertain.drain(..(received - self.delivered) as usize);
        self.delivered = received;
        Ok(())
    }

    pub(crate) fn next(&self) -> Next<'_> {
        match (self.told, self.heard, self.uncertain.front()) {
            (false, ..) => Next::Tell(self.received),
            (true, None, _) => Next::Wait,
            (true, Some(_), Some(message)) => Next::Send(message),
            (true, Some(_), None) => Next::Over,
        }
    }

    /// Returns the peer's report, once it came.
    pub(crate) fn heard(&self) -> Option<u64> {
        self.heard
    }

    /// Notes that the replacement broke: the peer may not have received the report.
    pub(crate) fn tell_again(&mut self) {
        self.told = false;
    }

    /// Notes that the step of [`next`](Self::next) is done.
    pub(crate) fn sent(&mut self) {
        if std::mem::replace(&mut self.told, true) {
            self.uncertain.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Describes one end of a link: messages taken, received, and known to be received.
    fn remains(received: u64, sent: u64, known: u64) -> Remains {
        let message = |number: u64| number.to_le_bytes().into();
        Remains { received, delivered: known, uncertain: (known..sent).map(message).collect() }
    }

    proptest! {
        /// Checks that each message comes once and in order and that both sides end, wherever the link breaks.
        #[test]
        fn each_message_comes_once(ways in proptest::array::uniform2((0u64..20, 0u64..20, 0u64..20)),
                                   turns in proptest::collection::vec(0usize..2, 0..100)) {
            // For each direction: taken, delivered, and known to be delivered.
            let ways = ways.map(|(a, b, c)| (a, b.min(a), c.min(b).min(a)));
            let mut sides: [Option<Replay>; 2] = [None, None];
            let mut came = [ways[0].1, ways[1].1];
            let mut said: [Vec<Option<u64>>; 2] = [Vec::new(), Vec::new()];
            let mut heard = [None, None];
            for step in 0..turns.len() + 200 {
                let side = turns.get(step).map_or(step % 2, |&side| side);
                // A report tells the other side of a failure that it has not noticed.
                let other = 1 - side;
                let replay = sides[side].get_or_insert_with(|| {
                    Replay::new(remains(ways[other].1, ways[side].0, ways[side].2))
                });
                if let Some(received) = heard[side].take() {
                    replay.hear(received).unwrap();
                }
                match replay.next() {
                    Next::Tell(received) => said[other].push(Some(received)),
                    Next::Send(message) => {
                        prop_assert_eq!(message, came[side].to_le_bytes());
                        came[side] += 1;
                        said[other].push(None);
                    }
                    Next::Wait | Next::Over => continue,
                }
                replay.sent();
                for word in said[other].drain(..) {
                    heard[other] = word.or(heard[other]);
                }
            }
            prop_assert!(sides.iter().all(|side| side.as_ref().is_some_and(|side| side.next() == Next::Over)));
            prop_assert_eq!(came, [ways[0].0, ways[1].0]);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let replay = || Replay::new(remains(0, 9, 5));
        assert!(replay().hear(4).is_err());
        assert!(replay().hear(10).is_err());
        let mut twice = replay();
        assert!(twice.hear(8).is_ok());
        assert!(twice.hear(9).is_err());
        assert!(twice.hear(8).is_ok(), "as before");
        assert_eq!(twice.next(), Next::Tell(0));
        twice.sent();
        assert!(matches!(twice.next(), Next::Send(_)));
        twice.tell_again();
        assert_eq!(twice.next(), Next::Tell(0));
        twice.sent();
        twice.sent();
        assert_eq!(twice.next(), Next::Over);
    }
}
