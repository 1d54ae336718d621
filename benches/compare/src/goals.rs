//! Goals for Cableway, by itself and under MPI, relative to its peers in the same run.

use crate::plan::Test;

/// A bound on the ratio of a program's figure to a peer's.
pub(crate) struct Goal {
    /// The programs of Cableway that the goal is for.
    pub(crate) programs: &'static [&'static str],
    pub(crate) test: Test,
    /// The route's name.
    pub(crate) route: &'static str,
    /// The message sizes that the goal is for.
    pub(crate) sizes: (u64, u64),
    pub(crate) of: Of,
    pub(crate) bound: Bound,
}

/// The figure that a goal is relative to.
#[derive(Clone, Copy)]
pub(crate) enum Of {
    Peer(&'static str),
    BestPeer,
    /// The same program's figure over another route.
    Over(&'static str),
    /// No other figure: the bound is in the test's unit.
    Nothing,
}

pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    /// Describes the bound for a table.
    pub(crate) fn aim(&self) -> String {
        let of = match self.of {
            Of::Peer(name) => format!("of {name}'s"),
            Of::BestPeer => "of the best peer's".to_owned(),
            Of::Over(route) => format!("of the one over {route}"),
            Of::Nothing => self.test.unit().to_owned(),
        };
        match self.bound {
            Bound::AtMost(bound) => format!("at most {bound} {of}"),
            Bound::AtLeast(bound) => format!("at least {bound} {of}"),
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

const ANY: (u64, u64) = (0, u64::MAX);
const ANY_BULK: (u64, u64) = (64 << 10, 64 << 20);
const ABOVE_64_KIB: (u64, u64) = ((64 << 10) + 1, u64::MAX);
const WORD: (u64, u64) = (8, 8);

const ALONE: &[&str] = &["cableway"];
const UNDER_MPI: &[&str] = &["cableway-mpi"];
const BOTH: &[&str] = &["cableway", "cableway-mpi"];
const OB1: Of = Of::Peer("ob1");
const UCX: Of = Of::Peer("ucx");

pub(crate) const GOALS: &[Goal] = &[
    goal(ALONE, Test::Latency, "sm", WORD, OB1, Bound::AtMost(0.55)),
    goal(ALONE, Test::Latency, "sm", WORD, UCX, Bound::AtMost(1.0)),
    goal(ALONE, Test::MessageRate, "sm", WORD, OB1, Bound::AtLeast(1.5)),
    goal(ALONE, Test::MessageRate, "sm", WORD, UCX, Bound::AtLeast(1.0)),
    goal(ALONE, Test::Bandwidth, "sm", ANY_BULK, Of::BestPeer, Bound::AtLeast(0.97)),
    goal(ALONE, Test::Latency, "tcp", WORD, OB1, Bound::AtMost(1.0)),
    goal(ALONE, Test::Bandwidth, "tcp", ANY_BULK, OB1, Bound::AtLeast(1.1)),
    goal(UNDER_MPI, Test::Latency, "sm", WORD, OB1, Bound::AtMost(0.7)),
    goal(UNDER_MPI, Test::MessageRate, "sm", WORD, OB1, Bound::AtLeast(1.3)),
    goal(UNDER_MPI, Test::Bandwidth, "sm", ANY, OB1, Bound::AtLeast(1.0)),
    goal(UNDER_MPI, Test::ThreadedRate, "sm", WORD, OB1, Bound::AtLeast(2.0)),
    goal(UNDER_MPI, Test::Start, "sm", ANY, OB1, Bound::AtMost(1.0)),
    goal(UNDER_MPI, Test::Latency, "tcp", ANY, OB1, Bound::AtMost(1.0)),
    goal(UNDER_MPI, Test::Bandwidth, "tcp", ANY, OB1, Bound::AtLeast(1.0)),
    // Device memory on two H200s: the limits of the driver's copies, with a little time for the message around them.
    goal(UNDER_MPI, Test::Latency, "devices", (8, 1 << 10), Of::Nothing, Bound::AtMost(7.3)),
    goal(BOTH, Test::Latency, "devices", of(64 << 10), Of::Nothing, Bound::AtMost(7.7)),
    goal(BOTH, Test::Latency, "devices", ANY, Of::BestPeer, Bound::AtMost(1.0)),
    goal(BOTH, Test::MessageRate, "devices", WORD, Of::Nothing, Bound::AtLeast(2e6)),
    goal(BOTH, Test::MessageRate, "devices", WORD, Of::BestPeer, Bound::AtLeast(1.0)),
    goal(BOTH, Test::Bandwidth, "devices", of(64 << 10), Of::Nothing, Bound::AtLeast(120e3)),
    goal(BOTH, Test::Bandwidth, "devices", of(1 << 20), Of::Nothing, Bound::AtLeast(300e3)),
    goal(BOTH, Test::Bandwidth, "devices", of(4 << 20), Of::Nothing, Bound::AtLeast(330e3)),
    goal(BOTH, Test::Bandwidth, "devices", of(64 << 20), Of::Nothing, Bound::AtLeast(387e3)),
    goal(BOTH, Test::Bandwidth, "devices", of(256 << 20), Of::Nothing, Bound::AtLeast(394e3)),
    goal(BOTH, Test::Bandwidth, "devices", ANY, Of::BestPeer, Bound::AtLeast(1.0)),
    goal(UNDER_MPI, Test::Latency, "devices-copier", WORD, Of::Nothing, Bound::AtMost(5.0)),
    goal(UNDER_MPI, Test::Latency, "devices-copier", of(1 << 10), Of::Nothing, Bound::AtMost(5.5)),
    goal(BOTH, Test::Latency, "devices-copier", (8, 1 << 10), Of::BestPeer, Bound::AtMost(1.0)),
    goal(BOTH, Test::Bandwidth, "devices-staged", of(1 << 20), Of::Nothing, Bound::AtLeast(45e3)),
    goal(BOTH, Test::Bandwidth, "devices-staged", of(64 << 20), Of::Nothing, Bound::AtLeast(51e3)),
    goal(BOTH, Test::Bandwidth, "devices-tcp", of(1 << 20), Of::Over("tcp"), Bound::AtLeast(0.95)),
    goal(BOTH, Test::Latency, "one-device", WORD, Of::Nothing, Bound::AtMost(10.5)),
    goal(BOTH, Test::Latency, "host-device", WORD, Of::Nothing, Bound::AtMost(5.6)),
    goal(BOTH, Test::Latency, "host-device", of(64 << 10), Of::Nothing, Bound::AtMost(10.0)),
    goal(BOTH, Test::Latency, "host-device", of(4 << 20), Of::Nothing, Bound::AtMost(120.0)),
    goal(BOTH, Test::Latency, "host-device", ANY, Of::BestPeer, Bound::AtMost(1.0)),
    goal(BOTH, Test::Latency, "page-locked-device", of(4 << 20), Of::Nothing, Bound::AtMost(120.0)),
    goal(BOTH, Test::Latency, "page-locked-device", ANY, Of::BestPeer, Bound::AtMost(1.0)),
    // Collectives of two devices: NCCL's speed, and the time of the copies with a little around them.
    goal(UNDER_MPI, Test::Allreduce, "devices", WORD, Of::Nothing, Bound::AtMost(12.0)),
    goal(UNDER_MPI, Test::Allreduce, "devices", of(64 << 10), Of::Nothing, Bound::AtMost(14.0)),
    goal(UNDER_MPI, Test::Allreduce, "devices", of(1 << 20), Of::Nothing, Bound::AtMost(18.0)),
    goal(UNDER_MPI, Test::Allreduce, "devices", of(16 << 20), Of::Nothing, Bound::AtMost(75.0)),
    goal(UNDER_MPI, Test::Allreduce, "devices", of(64 << 20), Of::Nothing, Bound::AtMost(210.0)),
    goal(UNDER_MPI, Test::Bcast, "devices", of(64 << 20), Of::Nothing, Bound::AtMost(185.0)),
    goal(UNDER_MPI, Test::Alltoall, "devices", of(64 << 20), Of::Nothing, Bound::AtMost(130.0)),
    goal(UNDER_MPI, Test::ReduceScatter, "devices", of(64 << 20), Of::Nothing, Bound::AtMost(140.0)),
    goal(UNDER_MPI, Test::Allreduce, "devices", ANY, Of::BestPeer, Bound::AtMost(1.0)),
    goal(UNDER_MPI, Test::Bcast, "devices", ANY, Of::BestPeer, Bound::AtMost(1.0)),
    goal(UNDER_MPI, Test::Allgather, "devices", ANY, Of::BestPeer, Bound::AtMost(1.0)),
    goal(UNDER_MPI, Test::Alltoall, "devices", ANY, Of::BestPeer, Bound::AtMost(1.0)),
    goal(UNDER_MPI, Test::ReduceScatter, "devices", ANY, Of::BestPeer, Bound::AtMost(1.0)),
    // Puts, gets and active messages: the time of the copies with a little around them, and UCX's speed.
    goal(ALONE, Test::Am, "sm", WORD, Of::Nothing, Bound::AtMost(0.25)),
    goal(ALONE, Test::Am, "devices", of(64 << 10), Of::Nothing, Bound::AtMost(9.0)),
    goal(ALONE, Test::Put, "devices", WORD, Of::Nothing, Bound::AtMost(6.0)),
    goal(ALONE, Test::Put, "devices", of(4 << 10), Of::Nothing, Bound::AtMost(9.0)),
    goal(ALONE, Test::Get, "devices", WORD, Of::Nothing, Bound::AtMost(8.0)),
    goal(ALONE, Test::PutRate, "sm", WORD, Of::Nothing, Bound::AtLeast(3e6)),
    goal(ALONE, Test::PutRate, "devices", WORD, Of::Nothing, Bound::AtLeast(1.5e6)),
    goal(ALONE, Test::Put, "sm", ANY, UCX, Bound::AtMost(1.0)),
    goal(ALONE, Test::Get, "sm", ANY, UCX, Bound::AtMost(1.0)),
    goal(ALONE, Test::Am, "sm", ANY, UCX, Bound::AtMost(1.0)),
    goal(ALONE, Test::Put, "devices", ANY, UCX, Bound::AtMost(1.0)),
    goal(ALONE, Test::Get, "devices", ANY, UCX, Bound::AtMost(1.0)),
    goal(ALONE, Test::Am, "devices", ANY, UCX, Bound::AtMost(1.0)),
    // No difference beyond the noise of repetitions.
    goal(BOTH, Test::Latency, "host-beside-devices", WORD, Of::Over("sm"), Bound::AtMost(1.05)),
    goal(BOTH, Test::MessageRate, "host-beside-devices", WORD, Of::Over("sm"), Bound::AtLeast(0.95)),
    goal(BOTH, Test::Latency, "strided", of(256 << 10), Of::Nothing, Bound::AtMost(15.0)),
    goal(BOTH, Test::Latency, "strided", of(16 << 20), Of::Nothing, Bound::AtMost(65.0)),
    goal(BOTH, Test::Latency, "strided", ABOVE_64_KIB, Of::Over("devices"), Bound::AtMost(1.5)),
    goal(BOTH, Test::Latency, "irregular-64", ABOVE_64_KIB, Of::Over("devices"), Bound::AtMost(1.5)),
    goal(BOTH, Test::Latency, "irregular-8", ANY, Of::Over("devices"), Bound::AtMost(4.0)),
];

const fn of(size: u64) -> (u64, u64) {
    (size, size)
}

const fn goal(
    programs: &'static [&'static str],
    test: Test,
    route: &'static str,
    sizes: (u64, u64),
    of: Of,
    bound: Bound,
) -> Goal {
    Goal { programs, test, route, sizes, of, bound }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, Wanted};

    /// A goal without a measured figure would never be missed.
    #[test]
    fn every_goal_has_its_series() {
        let plan = Plan::new(&Wanted::everything(), 2);
        let measured = |test: Test, route: &str, sizes: (u64, u64)| -> Vec<u64> {
            let series = plan.series.iter().find(|series| series.test == test && series.route.name == route);
            let sizes = sizes.0..=sizes.1;
            series
                .map_or(Vec::new(), |series| series.sizes.iter().copied().filter(|size| sizes.contains(size)).collect())
        };
        for goal in GOALS {
            let sizes = measured(goal.test, goal.route, goal.sizes);
            assert!(!sizes.is_empty(), "{} {}: {}", goal.route, goal.test, goal.aim());
            if let Of::Over(route) = goal.of {
                assert!(
                    sizes.iter().all(|size| measured(goal.test, route, ANY).contains(size)),
                    "{route} {}",
                    goal.route
                );
            }
        }
    }
}
