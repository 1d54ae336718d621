//! The figures as tables for people, and as JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::contender::Contender;
use crate::error::Error;
use crate::goals::{GOALS, Goal, Of};
use crate::machine::Machine;
use crate::plan::{Plan, Series, Test};
use crate::statistics::{Summary, summary};

/// Every value that was taken, and remarks.
#[derive(Default)]
pub(crate) struct Results {
    taken: BTreeMap<Key, Vec<f64>>,
    notes: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    btl: &'static str,
    test: Test,
    size: u64,
    program: &'static str,
}

impl Results {
    pub(crate) fn add(&mut self, program: &'static str, series: &Series, size: u64, value: f64) {
        let key = Key { btl: series.btl, test: series.test, size, program };
        self.taken.entry(key).or_default().push(value);
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    fn summary(&self, btl: &'static str, test: Test, size: u64, program: &'static str) -> Option<Summary> {
        summary(self.taken.get(&Key { btl, test, size, program })?)
    }

    /// Ours over the peer's that the goal names; none where one of them was not measured.
    fn ratio(&self, goal: &Goal, size: u64) -> Option<f64> {
        let median = |program| self.summary(goal.btl, goal.test, size, program).map(|summary| summary.median);
        let peer = match goal.of {
            Of::Peer(name) => median(name)?,
            Of::BestPeer => {
                let peers = ["ob1", "ucx"].into_iter().filter_map(median);
                peers.reduce(if goal.test == Test::Latency { f64::min } else { f64::max })?
            }
        };
        Some(median(goal.program)? / peer)
    }
}

/// One object a line, in the shape of `cableway pingpong --format json`, with the program and the spread besides.
pub(crate) fn json(results: &Results) -> String {
    let mut out = String::new();
    for (key, values) in &results.taken {
        let Some(summary) = summary(values) else { continue };
        let line = serde_json::json!({
            "program": key.program, "test": key.test.to_string(), "btl": key.btl, "src": "host", "dst": "host",
            "size": key.size, "value": summary.median, "unit": key.test.unit(),
            "least": summary.least, "greatest": summary.greatest, "takings": summary.takings,
        });
        let _ = writeln!(out, "{line}");
    }
    out
}

pub(crate) fn markdown(
    machine: &Machine,
    plan: &Plan,
    contenders: &[Box<dyn Contender>],
    results: &Results,
    absent: &[(String, String)],
) -> String {
    let mut out = String::from("# Cableway beside its peers\n\n");
    for (name, value) in &machine.facts {
        let _ = writeln!(out, "- {name}: {value}");
    }
    for (name, reason) in absent {
        let _ = writeln!(out, "- {name}: left out, {reason}");
    }
    out.push_str("\nMedians; in brackets the least and the greatest value taken.\n");
    let programs: Vec<&'static str> = contenders.iter().map(|contender| contender.name()).collect();
    for series in &plan.series {
        out.push_str(&series_table(series, &programs, results));
    }
    out.push_str(&goals_table(plan, results));
    for note in &results.notes {
        let _ = writeln!(out, "\n{note}.");
    }
    out
}

fn series_table(series: &Series, programs: &[&'static str], results: &Results) -> String {
    let mut out = format!("\n## {} over {}, {}\n\n", series.test, series.btl, series.test.unit());
    let _ = writeln!(out, "| bytes | {} |", programs.join(" | "));
    let _ = writeln!(out, "|---:|{}", "---:|".repeat(programs.len()));
    for size in &series.sizes {
        let _ = write!(out, "| {size} |");
        for program in programs {
            match results.summary(series.btl, series.test, *size, program) {
                Some(summary) => {
                    let [median, least, greatest] =
                        [summary.median, summary.least, summary.greatest].map(|value| figure(series.test, value));
                    let _ = write!(out, " {median} ({least}..{greatest}) |");
                }
                None => out.push_str(" - |"),
            }
        }
        out.push('\n');
    }
    out
}

/// Empty where nothing of ours was measured.
fn goals_table(plan: &Plan, results: &Results) -> String {
    let mut rows = String::new();
    for goal in GOALS {
        let series = plan.series.iter().filter(|series| series.test == goal.test && series.btl == goal.btl);
        let sizes =
            series.flat_map(|series| &series.sizes).filter(|size| (goal.sizes.0..=goal.sizes.1).contains(*size));
        for size in sizes {
            let Some(ratio) = results.ratio(goal, *size) else { continue };
            let met = if goal.bound.holds(ratio) { "yes" } else { "**no**" };
            let Goal { program, btl, test, .. } = goal;
            let _ = writeln!(rows, "| {program}, {btl} {test}, {size} B | {} | {ratio:.2} | {met} |", goal.aim());
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!("\n## Goals\n\n| figure | goal, as a ratio | reached | met |\n|---|---|---:|---|\n{rows}")
}

fn figure(test: Test, value: f64) -> String {
    match test {
        Test::Latency => format!("{value:.3}"),
        Test::MessageRate | Test::ThreadedRate => format!("{:.2} M", value / 1e6),
        Test::Start => format!("{value:.1}"),
        Test::Bandwidth => format!("{value:.0}"),
    }
}

/// Writes the report as `<date>-<kind of machine>.md`.
///
/// # Errors
///
/// The folder or the file cannot be written.
pub(crate) fn save(folder: &Path, machine: &Machine, report: &str) -> Result<PathBuf, Error> {
    let path = folder.join(format!("{}-{}.md", machine.date, machine.kind));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, report));
    written.map(|()| path.clone()).map_err(|source| Error::Write { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(values: &[(&'static str, f64)]) -> (Plan, Results) {
        let plan = Plan::new(0.1, &["sm".to_owned()], &["latency".to_owned()]);
        let mut results = Results::default();
        for (program, value) in values {
            results.add(program, &plan.series[0], 8, *value);
        }
        (plan, results)
    }

    #[test]
    fn a_goal_missed_is_marked() {
        let (plan, results) = results(&[("cableway", 0.30), ("ob1", 0.40), ("ucx", 0.35)]);
        let table = goals_table(&plan, &results);
        assert!(table.contains("| cableway, sm latency, 8 B | at most 0.55 of ob1's | 0.75 | **no** |"), "{table}");
        assert!(table.contains("| cableway, sm latency, 8 B | at most 1 of ucx's | 0.86 | yes |"), "{table}");
    }

    #[test]
    fn without_our_own_figures_no_goal_is_judged() {
        let (plan, results) = results(&[("ob1", 0.40)]);
        assert_eq!(goals_table(&plan, &results), "");
        assert!(series_table(&plan.series[0], &["cableway", "ob1"], &results).contains("| 8 | - | 0.400"));
    }
}
