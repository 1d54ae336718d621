//! Who of two that ask each other for a connection gets it, without a device and without a clock.
//!
//! A connection that the manager makes has an end that asks and one that answers. Where both ask, each before it has
//! heard of the other, the one of the two that [decides](cableway_btl::Identity::decides) has its way: it refuses, and the
//! other, be it by that refusal or by the question, learns that it is to answer.

use ahash::AHashMap;
use cableway_base::Rank;

/// One end's part in meeting a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    /// Ours goes first, where both ask.
    decides: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Our question is under way.
    Asking,
    /// It was refused, for the peer's is under way.
    Waiting,
    /// The peer's was agreed to.
    Answering,
}

/// What becomes of a peer's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is agreed to. Our own, if there is one, is withdrawn.
    Agree,
    /// Ours goes first.
    Refuse,
}

impl Meeting {
    /// This end asks.
    pub(super) fn asking(decides: bool) -> Self {
        Meeting { decides, stage: Stage::Asking }
    }

    /// This end was asked, and had not thought of it.
    pub(super) fn answering() -> Self {
        Meeting { decides: false, stage: Stage::Answering }
    }

    /// The peer asks.
    pub(super) fn asked(&mut self) -> Verdict {
        match self.stage {
            Stage::Asking if self.decides => Verdict::Refuse,
            Stage::Asking | Stage::Waiting => {
                self.stage = Stage::Answering;
                Verdict::Agree
            }
            // It asks once, until it has heard what became of that.
            Stage::Answering => Verdict::Refuse,
        }
    }

    /// The peer refuses, because its own question goes first. False: it has no reason to say so.
    pub(super) fn crossed(&mut self) -> bool {
        if self.stage != Stage::Asking || self.decides {
            return false;
        }
        self.stage = Stage::Waiting;
        true
    }

    /// Whether the peer's question was agreed to.
    pub(super) fn is_answering(&self) -> bool {
        self.stage == Stage::Answering
    }
}

/// Questions that were heard, so that none is heard again, whoever brings it.
#[derive(Default)]
pub(super) struct Heard(AHashMap<Rank, u32>);

impl Heard {
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
        Question,
        Agreement,
        Refusal,
    }

    /// As the manager has it: a question that was withdrawn hears no answer.
    #[derive(Default)]
    struct Side {
        meeting: Option<Meeting>,
        question: bool,
        connected: usize,
    }

    proptest! {
        /// Whoever asks, and however slow each way is: exactly one connection comes of it.
        #[test]
        fn two_meet_once(asks in 1..4_u8, picks in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut sides = [Side::default(), Side::default()];
            // Questions, one way and the other, and answers. The manager keeps no order among them.
            let mut flying: Vec<(usize, Said)> = Vec::new();
            let mut yet: Vec<usize> = (0..2).filter(|side| asks & 1 << side != 0).collect();
            let mut picks = picks.into_iter();
            while !flying.is_empty() || !yet.is_empty() {
                let pick = usize::from(picks.next().unwrap_or(0)) % (flying.len() + yet.len());
                if pick >= flying.len() {
                    let side = yet.swap_remove(pick - flying.len());
                    if sides[side].meeting.is_none() {
                        sides[side].meeting = Some(Meeting::asking(side == 0));
                        sides[side].question = true;
                        flying.push((1 - side, Said::Question));
                    }
                    continue;
                }
                let (to, said) = flying.swap_remove(pick);
                let side = &mut sides[to];
                match said {
                    Said::Question => {
                        // What the other has withdrawn is refused like any other, and nobody hears that.
                        let verdict = match &mut side.meeting {
                            Some(meeting) if side.connected == 0 => meeting.asked(),
                            Some(_) => Verdict::Refuse,
                            None => {
                                side.meeting = Some(Meeting::answering());
                                Verdict::Agree
                            }
                        };
                        let agreed = verdict == Verdict::Agree;
                        if agreed {
                            side.question = false;
                            side.connected += 1;
                        }
                        flying.push((1 - to, if agreed { Said::Agreement } else { Said::Refusal }));
                    }
                    Said::Agreement => {
                        prop_assert!(side.question, "what was withdrawn is never agreed to");
                        side.question = false;
                        side.connected += 1;
                    }
                    Said::Refusal if side.question => {
                        side.question = false;
                        prop_assert!(side.meeting.as_mut().unwrap().crossed(), "the one that decides is not refused");
                    }
                    Said::Refusal => {}
                }
            }
            prop_assert_eq!((sides[0].connected, sides[1].connected), (1, 1));
        }
    }

    #[test]
    fn a_question_is_heard_once() {
        let mut heard = Heard::default();
        let new =
            [(1, 1), (1, 1), (2, 1), (1, 3), (1, 2), (1, 3), (2, 1), (1, 4)].map(|(rank, n)| heard.is_new(rank, n));
        assert_eq!(new, [true, false, true, true, false, false, false, true]);
    }

    #[test]
    fn a_refusal_without_reason_is_none() {
        assert!(!Meeting::asking(true).crossed());
        assert!(!Meeting::answering().crossed());
        let mut waiting = Meeting::asking(false);
        assert!(waiting.crossed() && !waiting.crossed());
        assert_eq!((waiting.asked(), waiting.asked()), (Verdict::Agree, Verdict::Refuse));
    }
}
