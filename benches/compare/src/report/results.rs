//! The measured values, and the results of the comparison.

use std::collections::BTreeMap;

use crate::contender::{FLOOR, PEERS};
use crate::goals::{Goal, Of};
use crate::plan::{Series, Test};
use crate::statistics::{Summary, summary};

/// Every measured value, and remarks.
#[derive(Default)]
pub(crate) struct Results {
    taken: BTreeMap<Key, Vec<f64>>,
    notes: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) route: &'static str,
    pub(super) test: Test,
    pub(super) size: u64,
    pub(super) program: &'static str,
}

impl Results {
    pub(crate) fn add(&mut self, program: &'static str, series: &Series, size: u64, value: f64) {
        let key = Key { route: series.route.name, test: series.test, size, program };
        self.taken.entry(key).or_default().push(value);
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// All figures, by route, test, size and program.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Key, Summary)> {
        self.taken.iter().filter_map(|(key, values)| Some((key, summary(values)?)))
    }

    pub(super) fn summary(&self, route: &'static str, test: Test, size: u64, program: &'static str) -> Option<Summary> {
        summary(self.taken.get(&Key { route, test, size, program })?)
    }

    /// The values of one figure, in the order of the rounds.
    pub(super) fn values(&self, series: &Series, size: u64, program: &'static str) -> Option<&[f64]> {
        let key = Key { route: series.route.name, test: series.test, size, program };
        self.taken.get(&key).map(Vec::as_slice)
    }

    fn median(&self, route: &'static str, test: Test, size: u64, program: &'static str) -> Option<f64> {
        self.summary(route, test, size, program).map(|summary| summary.median)
    }

    /// The figure of Cableway's library, or of the component if only that was measured.
    fn ours(&self, route: &'static str, test: Test, size: u64) -> Option<f64> {
        ["cableway", "cableway-mpi"].into_iter().find_map(|program| self.median(route, test, size, program))
    }

    pub(super) fn best_peer(&self, route: &'static str, test: Test, size: u64) -> Option<f64> {
        let peers = PEERS.into_iter().filter_map(|program| self.median(route, test, size, program));
        peers.reduce(if test.less_is_better() { f64::min } else { f64::max })
    }

    fn floor(&self, route: &'static str, test: Test, size: u64) -> Option<f64> {
        self.median(route, test, size, FLOOR)
    }

    /// The programs with figures in a series.
    pub(super) fn measured(&self, series: &Series, programs: &[&'static str]) -> Vec<&'static str> {
        let figure = |size: &u64, program| self.summary(series.route.name, series.test, *size, program);
        let has = |program: &&'static str| series.sizes.iter().any(|size| figure(size, program).is_some());
        programs.iter().copied().filter(has).collect()
    }

    /// The ratios of Cableway's figure to the best peer's and to the floor, as tables show them.
    pub(super) fn beside(&self, series: &Series, size: u64) -> [String; 2] {
        let (route, test) = (series.route.name, series.test);
        let ours = self.ours(route, test, size);
        [self.best_peer(route, test, size), self.floor(route, test, size)]
            .map(|other| ours.zip(other).map_or_else(|| "-".to_owned(), |(ours, other)| format!("{:.2}", ours / other)))
    }

    /// The ratio of one of Cableway's programs at one size to the figure that the goal names. `None` if one of the two
    /// was not measured.
    pub(super) fn held_against(&self, goal: &Goal, program: &'static str, size: u64) -> Option<Standing> {
        let (route, test) = (goal.route, goal.test);
        let ours = self.median(route, test, size, program)?;
        let measure = match goal.of {
            Of::Peer(name) => self.median(route, test, size, name)?,
            Of::BestPeer => self.best_peer(route, test, size)?,
            Of::Over(other) => self.median(other, test, size, program)?,
            Of::Nothing => 1.0,
        };
        let [best_peer, floor] = [self.best_peer(route, test, size), self.floor(route, test, size)];
        Some(Standing { ours, best_peer, floor, reached: ours / measure })
    }
}

/// A figure of Cableway, with those of others.
pub(super) struct Standing {
    pub(super) ours: f64,
    pub(super) best_peer: Option<f64>,
    pub(super) floor: Option<f64>,
    /// The quantity that a goal limits.
    pub(super) reached: f64,
}
