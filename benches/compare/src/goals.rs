//! What Cableway is to reach, relative to its peers in the same run.

use crate::plan::Test;

/// A bound on the ratio of Cableway's figure to a peer's.
pub(crate) struct Goal {
    pub(crate) test: Test,
    pub(crate) btl: &'static str,
    /// Message sizes that it holds for.
    pub(crate) sizes: (u64, u64),
    pub(crate) of: Of,
    pub(crate) bound: Bound,
}

/// Whose figure is the measure.
#[derive(Clone, Copy)]
pub(crate) enum Of {
    Peer(&'static str),
    BestPeer,
}

pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    /// In words, as a table shows it.
    pub(crate) fn aim(&self) -> String {
        let of = match self.of {
            Of::Peer(name) => name,
            Of::BestPeer => "the best peer",
        };
        match self.bound {
            Bound::AtMost(bound) => format!("at most {bound} of {of}'s"),
            Bound::AtLeast(bound) => format!("at least {bound} of {of}'s"),
        }
    }
}

impl Bound {
    pub(crate) fn holds(&self, ratio: f64) -> bool {
        match self {
            Bound::AtMost(bound) => ratio <= *bound,
            Bound::AtLeast(bound) => ratio >= *bound,
        }
    }
}

const ANY_BULK: (u64, u64) = (64 << 10, 64 << 20);
const WORD: (u64, u64) = (8, 8);

pub(crate) const GOALS: &[Goal] = &[
    Goal { test: Test::Latency, btl: "sm", sizes: WORD, of: Of::Peer("ob1"), bound: Bound::AtMost(0.55) },
    Goal { test: Test::Latency, btl: "sm", sizes: WORD, of: Of::Peer("ucx"), bound: Bound::AtMost(1.0) },
    Goal { test: Test::MessageRate, btl: "sm", sizes: WORD, of: Of::Peer("ob1"), bound: Bound::AtLeast(1.5) },
    Goal { test: Test::MessageRate, btl: "sm", sizes: WORD, of: Of::Peer("ucx"), bound: Bound::AtLeast(1.0) },
    Goal { test: Test::Bandwidth, btl: "sm", sizes: ANY_BULK, of: Of::BestPeer, bound: Bound::AtLeast(0.97) },
    Goal { test: Test::Latency, btl: "tcp", sizes: WORD, of: Of::Peer("ob1"), bound: Bound::AtMost(1.0) },
    Goal { test: Test::Bandwidth, btl: "tcp", sizes: ANY_BULK, of: Of::Peer("ob1"), bound: Bound::AtLeast(1.1) },
];
