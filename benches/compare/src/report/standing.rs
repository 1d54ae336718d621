//! How Cableway stands beside its peers: the ratio of times at each size, with its interval.

use super::results::Results;
use crate::contender::PEERS;
use crate::plan::{Plan, Series, Test};
use crate::statistics::interval;

/// A ratio counts as another speed if its whole interval lies beyond this factor.
const BEYOND: f64 = 1.05;

/// What the interval of a ratio says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Faster,
    /// No difference beyond the noise.
    Even,
    Slower,
}

/// Cableway's time at one size, relative to that of the best peer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Standing {
    pub(crate) size: u64,
    /// The peer with the best median.
    pub(crate) peer: &'static str,
    /// The median of the rounds' ratios. More than 1 is slower.
    pub(crate) ratio: f64,
    /// The interval that holds the true median with 95 %, or as nearly as the number of rounds allows.
    pub(crate) interval: [f64; 2],
}

impl Standing {
    pub(crate) fn verdict(&self) -> Verdict {
        let [low, high] = self.interval;
        if low > BEYOND {
            Verdict::Slower
        } else if high < 1.0 / BEYOND {
            Verdict::Faster
        } else {
            Verdict::Even
        }
    }
}

/// The standings of one of Cableway's programs in one series.
pub(crate) struct Row<'r> {
    pub(crate) series: &'r Series,
    pub(crate) program: &'static str,
    pub(crate) standings: Vec<Standing>,
}

impl Row<'_> {
    pub(crate) fn name(&self) -> String {
        format!("{}, {} {}", self.program, self.series.route.name, self.series.test)
    }
}

/// Returns the rows of all series in which Cableway and a peer were measured.
pub(crate) fn rows<'r>(plan: &'r Plan, results: &Results) -> Vec<Row<'r>> {
    let programs = ["cableway", "cableway-mpi"];
    let row = |series: &'r Series, program: &'static str| {
        let standings: Vec<_> = series.sizes.iter().filter_map(|size| stand(results, series, *size, program)).collect();
        (!standings.is_empty()).then_some(Row { series, program, standings })
    };
    plan.series.iter().flat_map(|series| programs.into_iter().filter_map(move |program| row(series, program))).collect()
}

/// Returns the figures at which a peer is faster beyond the noise, for people.
pub(crate) fn lost(rows: &[Row<'_>]) -> Vec<String> {
    let of = |row: &Row<'_>| {
        let slower = row.standings.iter().filter(|standing| standing.verdict() == Verdict::Slower);
        let name = row.name();
        slower.map(|at| format!("{name} at {} B takes {:.2} of the time of {}", at.size, at.ratio, at.peer)).collect()
    };
    rows.iter().flat_map(|row| -> Vec<String> { of(row) }).collect()
}

/// Compares a program with its best peer. The component is compared with another MPI, where that was measured.
fn stand(results: &Results, series: &Series, size: u64, program: &'static str) -> Option<Standing> {
    let taken = |program| results.values(series, size, program).filter(|values| !values.is_empty());
    let ours = taken(program)?;
    let peers: &[&'static str] = if program == "cableway-mpi" && taken("ob1").is_some() { &["ob1"] } else { &PEERS };
    let median =
        |name: &&'static str| results.summary(series.route.name, series.test, size, name).map(|all| all.median);
    let measured = peers.iter().filter_map(|name| Some((*name, median(name)?)));
    let less = series.test.less_is_better();
    let (peer, _) = measured.reduce(|best, other| if (other.1 < best.1) == less { other } else { best })?;
    let theirs = taken(peer)?;
    let slowness = |(ours, theirs): (&f64, &f64)| slowness(series.test, *ours, *theirs);
    // A program that failed in a round has fewer values, so that rounds cannot be told apart.
    let ratios: Vec<f64> = if ours.len() == theirs.len() {
        ours.iter().zip(theirs).map(slowness).collect()
    } else {
        vec![slowness((&median(&program)?, &median(&peer)?))]
    };
    let (ratio, interval) = interval(&ratios)?;
    Some(Standing { size, peer, ratio, interval })
}

fn slowness(test: Test, ours: f64, theirs: f64) -> f64 {
    if test.less_is_better() { ours / theirs } else { theirs / ours }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Wanted;

    fn plan(test: &str) -> Plan {
        let (routes, tests) = (vec!["sm".to_owned()], vec![test.to_owned()]);
        Plan::new(&Wanted { routes, tests, ..Wanted::everything() }, 0)
    }

    fn measured(test: &str, values: &[(&'static str, [f64; 9])]) -> Vec<(String, Standing)> {
        let plan = plan(test);
        let mut results = Results::default();
        for (program, values) in values {
            for value in values {
                results.add(program, &plan.series[0], plan.series[0].sizes[0], *value);
            }
        }
        rows(&plan, &results).into_iter().map(|row| (row.name(), row.standings[0].clone())).collect()
    }

    /// Nine values around a median.
    fn around(median: f64) -> [f64; 9] {
        std::array::from_fn(|index| median * (0.96 + 0.01 * index as f64))
    }

    #[test]
    fn a_loss_is_beyond_the_noise_whatever_the_unit() {
        let of = |test: &str, ours: [f64; 9], theirs: [f64; 9]| {
            measured(test, &[("cableway", ours), ("ucx", theirs)])[0].1.verdict()
        };
        assert_eq!(of("latency", around(1.2), around(1.0)), Verdict::Slower);
        assert_eq!(of("latency", around(0.8), around(1.0)), Verdict::Faster);
        assert_eq!(of("latency", around(1.04), around(1.0)), Verdict::Even);
        assert_eq!(of("bandwidth", around(1.2), around(1.0)), Verdict::Faster);
        assert_eq!(of("bandwidth", around(0.8), around(1.0)), Verdict::Slower);
        // Half of the rounds are much slower: the machine is too noisy to tell.
        let noisy = std::array::from_fn(|index| if index % 2 == 0 { 0.9 } else { 2.0 });
        assert_eq!(of("latency", noisy, around(1.0)), Verdict::Even);
    }

    #[test]
    fn the_library_is_held_against_the_best_peer_and_the_component_against_an_mpi() {
        let values =
            [("cableway", around(1.0)), ("cableway-mpi", around(1.0)), ("ob1", around(2.0)), ("ucx", around(0.5))];
        let rows = measured("latency", &values);
        assert_eq!(rows[0].1.peer, "ucx");
        assert_eq!((rows[1].0.as_str(), rows[1].1.peer), ("cableway-mpi, sm latency", "ob1"));
        let rows = measured("bandwidth", &values);
        assert_eq!((rows[0].1.peer, rows[0].1.verdict()), ("ob1", Verdict::Slower));
    }

    #[test]
    fn what_is_lost_is_named() {
        let plan = plan("latency");
        let mut results = Results::default();
        for (program, value) in [("cableway", 1.5), ("ucx", 1.0)] {
            results.add(program, &plan.series[0], 8, value);
        }
        let lost = lost(&rows(&plan, &results));
        assert_eq!(lost, ["cableway, sm latency at 8 B takes 1.50 of the time of ucx"]);
    }
}
