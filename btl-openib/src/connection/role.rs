//! Who of two that ask each other for a connection gets it, without a device and without a clock.
//!
//! A connection that the manager makes has an end that asks and one that answers. Where both ask, each before it has
//! seen of the other, the one of the two that [decides](cableway_btl::Identity::decides) has its way: it refuses, and the
//! other, be it by that refusal or by the question, learns that it is to answer.

use ahash::AHashMap;
use cableway_base::Rank;

/// One end's role in connecting to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectRole {
    /// Ours goes first, where both ask.
    decides: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Our question is under way.
    Active,
    /// It was refused, for the peer's is under way.
    Yielded,
    /// The peer's was agreed to.
    Passive,
}

/// What becomes of a peer's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is agreed to. Our own, if there is one, is withdrawn.
    Accept,
    /// Ours goes first.
    Reject,
}

impl ConnectRole {
    /// This end asks.
    pub(super) fn active(decides: bool) -> Self {
        ConnectRole { decides, stage: Stage::Active }
    }

    /// This end was asked, and had not thought of it.
    pub(super) fn passive() -> Self {
        ConnectRole { decides: false, stage: Stage::Passive }
    }

    /// The peer asks.
    pub(super) fn handle_request(&mut self) -> Verdict {
        match self.stage {
            Stage::Active if self.decides => Verdict::Reject,
            Stage::Active | Stage::Yielded => {
                self.stage = Stage::Passive;
                Verdict::Accept
            }
            // It asks once, until it has seen what became of that.
            Stage::Passive => Verdict::Reject,
        }
    }

    /// The peer refuses, because its own question goes first. False: it has no reason to say so.
    pub(super) fn crossed(&mut self) -> bool {
        if self.stage != Stage::Active || self.decides {
            return false;
        }
        self.stage = Stage::Yielded;
        true
    }

    /// Whether the peer's question was agreed to.
    pub(super) fn is_passive(&self) -> bool {
        self.stage == Stage::Passive
    }
}

/// Questions that were seen, so that none is seen again, whoever brings it.
#[derive(Default)]
pub(super) struct SeenRequests(AHashMap<Rank, u32>);

impl SeenRequests {
    /// Whether a question is new. Who asks numbers its questions, and asks anew only once the last came to something.
    pub(super) fn is_new(&mut self, rank: Rank, number: u32) -> bool {
        let last = self.0.entry(rank).or_default();
        let new = number > *last;
        *last = number.max(*last);
        new
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Said {
        Request,
        Agreement,
        Refusal,
    }

    /// As the manager has it: a question that was withdrawn hears no answer.
    #[derive(Default)]
    struct Side {
        role: Option<ConnectRole>,
        request: bool,
        connected: usize,
    }

    proptest! {
        /// Whoever asks, and however slow each way is: exactly one connection comes of it.
        #[test]
        fn simultaneous_requests_make_one_connection(asks in 1..4_u8, picks in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut sides = [Side::default(), Side::default()];
            // Questions, one way and the other, and answers. The manager keeps no order among them.
            let mut flying: Vec<(usize, Said)> = Vec::new();
            let mut yet: Vec<usize> = (0..2).filter(|side| asks & 1 << side != 0).collect();
            let mut picks = picks.into_iter();
            while !flying.is_empty() || !yet.is_empty() {
                let pick = usize::from(picks.next().unwrap_or(0)) % (flying.len() + yet.len());
                if pick >= flying.len() {
                    let side = yet.swap_remove(pick - flying.len());
                    if sides[side].role.is_none() {
                        sides[side].role = Some(ConnectRole::active(side == 0));
                        sides[side].request = true;
                        flying.push((1 - side, Said::Request));
                    }
                    continue;
                }
                let (to, said) = flying.swap_remove(pick);
                let side = &mut sides[to];
                match said {
                    Said::Request => {
                        // What the other has withdrawn is refused like any other, and nobody hears that.
                        let verdict = match &mut side.role {
                            Some(role) if side.connected == 0 => role.handle_request(),
                            Some(_) => Verdict::Reject,
                            None => {
                                side.role = Some(ConnectRole::passive());
                                Verdict::Accept
                            }
                        };
                        let agreed = verdict == Verdict::Accept;
                        if agreed {
                            side.request = false;
                            side.connected += 1;
                        }
                        flying.push((1 - to, if agreed { Said::Agreement } else { Said::Refusal }));
                    }
                    Said::Agreement => {
                        prop_assert!(side.request, "what was withdrawn is never agreed to");
                        side.request = false;
                        side.connected += 1;
                    }
                    Said::Refusal if side.request => {
                        side.request = false;
                        prop_assert!(side.role.as_mut().unwrap().crossed(), "the one that decides is not refused");
                    }
                    Said::Refusal => {}
                }
            }
            prop_assert_eq!((sides[0].connected, sides[1].connected), (1, 1));
        }
    }

    #[test]
    fn a_request_is_accepted_once() {
        let mut seen = SeenRequests::default();
        let new =
            [(1, 1), (1, 1), (2, 1), (1, 3), (1, 2), (1, 3), (2, 1), (1, 4)].map(|(rank, n)| seen.is_new(rank, n));
        assert_eq!(new, [true, false, true, true, false, false, false, true]);
    }

    #[test]
    fn an_unfounded_rejection_is_ignored() {
        assert!(!ConnectRole::active(true).crossed());
        assert!(!ConnectRole::passive().crossed());
        let mut yielded = ConnectRole::active(false);
        assert!(yielded.crossed() && !yielded.crossed());
        assert_eq!((yielded.handle_request(), yielded.handle_request()), (Verdict::Accept, Verdict::Reject));
    }
}
