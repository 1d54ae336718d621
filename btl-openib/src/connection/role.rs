//! Decides between two processes that request a connection from each other, without a device or a clock.
//!
//! A connection of the manager has an active and a passive side. When both send a request before either has received
//! one, the process that [decides](cableway_btl::Identity::decides) stays active: it rejects the peer's request. The
//! other process becomes passive, either by that rejection or by the request.

use ahash::AHashMap;
use cableway_base::Rank;

/// One end's role in connecting to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectRole {
    /// The own request wins if both sides send one.
    decides: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The own request is under way.
    Active,
    /// The peer rejected the own request, since its own is under way.
    Yielded,
    /// The peer's request was accepted.
    Passive,
}

/// The verdict on a peer's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Accept it, and withdraw the own request if there is one.
    Accept,
    /// The own request wins.
    Reject,
}

impl ConnectRole {
    /// The active side: sends connection requests.
    pub(super) fn active(decides: bool) -> Self {
        ConnectRole { decides, stage: Stage::Active }
    }

    /// Creates the passive role, without an own request.
    pub(super) fn passive() -> Self {
        ConnectRole { decides: false, stage: Stage::Passive }
    }

    /// Decides on a peer's request.
    pub(super) fn handle_request(&mut self) -> Verdict {
        match self.stage {
            Stage::Active if self.decides => Verdict::Reject,
            Stage::Active | Stage::Yielded => {
                self.stage = Stage::Passive;
                Verdict::Accept
            }
            // A peer sends one request, and no other before it knows the result of the first.
            Stage::Passive => Verdict::Reject,
        }
    }

    /// Handles a rejection because the peer's request wins. Returns false if this end decides or has no request under
    /// way.
    pub(super) fn crossed(&mut self) -> bool {
        if self.stage != Stage::Active || self.decides {
            return false;
        }
        self.stage = Stage::Yielded;
        true
    }

    /// Whether the peer's request was accepted.
    pub(super) fn is_passive(&self) -> bool {
        self.stage == Stage::Passive
    }
}

/// The requests that were seen. A replayed request is rejected, whoever sends it.
#[derive(Default)]
pub(super) struct SeenRequests(AHashMap<Rank, u32>);

impl SeenRequests {
    /// Whether a request is new. A process numbers its requests and sends the next one only after the last was
    /// answered.
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

    /// Models the manager: a withdrawn request receives no answer.
    #[derive(Default)]
    struct Side {
        role: Option<ConnectRole>,
        request: bool,
        connected: usize,
    }

    proptest! {
        /// Requests and replies in any order make exactly one connection.
        #[test]
        fn simultaneous_requests_make_one_connection(asks in 1..4_u8, picks in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut sides = [Side::default(), Side::default()];
            // Requests and replies in both directions. The manager keeps no order among them.
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
                        // A withdrawn request is rejected, too; its sender ignores that.
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
