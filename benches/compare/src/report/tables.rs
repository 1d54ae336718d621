//! The figures as tables.

use std::fmt::Write;

use super::Report;
use super::results::Results;
use super::standing::{self, Row, Verdict};
use crate::axis;
use crate::goals::{GOALS, Goal, Of};
use crate::plan::{Plan, Series, Test};

pub(super) fn markdown(report: &Report) -> String {
    let mut out = String::from("# Cableway beside its peers\n\n");
    for (name, value) in &report.machine.facts {
        let _ = writeln!(out, "- {name}: {value}");
    }
    let _ = writeln!(out, "- rounds: {}", report.rounds);
    for (name, reason) in &report.absent {
        let _ = writeln!(out, "- {name}: left out, {reason}");
    }
    out.push_str(&summary_table(&report.plan, &report.results));
    out.push_str("\nMedians; in brackets the least and the greatest value taken.\n");
    for series in &report.plan.series {
        out.push_str(&series_table(series, &report.programs, &report.results));
    }
    out.push_str(&goals_table(&report.plan, &report.results));
    for note in report.results.notes() {
        let _ = writeln!(out, "\n{note}.");
    }
    out
}

/// The times relative to the best peer, by series and size. Empty if no peer was measured.
fn summary_table(plan: &Plan, results: &Results) -> String {
    let rows = standing::rows(plan, results);
    if rows.is_empty() {
        return String::new();
    }
    let sizes = sizes(&rows);
    let mut out = String::from("\n## Time relative to the best peer\n\n");
    out.push_str("Medians of the rounds' ratios. Bold: slower beyond the noise. `<`: faster beyond the noise.\n\n");
    let names: Vec<_> = sizes.iter().map(|size| short(*size)).collect();
    let _ = writeln!(out, "| | {} |\n|---|{}", names.join(" | "), "---:|".repeat(sizes.len()));
    for row in &rows {
        let _ = write!(out, "| {} |", row.name());
        for size in &sizes {
            let cell = row.standings.iter().find(|standing| standing.size == *size).map(|standing| {
                let ratio = format!("{:.2}", standing.ratio);
                match standing.verdict() {
                    Verdict::Faster => format!("{ratio} <"),
                    Verdict::Even => ratio,
                    Verdict::Slower => format!("**{ratio}**"),
                }
            });
            let _ = write!(out, " {} |", cell.unwrap_or_default());
        }
        out.push('\n');
    }
    out
}

/// The sizes of all rows, in order.
pub(super) fn sizes(rows: &[Row<'_>]) -> Vec<u64> {
    let mut sizes: Vec<u64> = rows.iter().flat_map(|row| row.standings.iter().map(|standing| standing.size)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// A size as people write it. Some tests have none.
pub(super) fn short(size: u64) -> String {
    if size == 0 { "-".to_owned() } else { axis::short(size as f64) }
}

/// A row for each size: every measured program, and Cableway in relation to the best peer and the floor.
fn series_table(series: &Series, programs: &[&'static str], results: &Results) -> String {
    let of = |size, program| results.summary(series.route.name, series.test, size, program);
    let programs = results.measured(series, programs);
    let mut out =
        format!("\n## {} ({}): {}, {}\n\n", series.route.name, series.route.words(), series.test, series.test.unit());
    let _ = writeln!(out, "| bytes | {} | of the best peer | of the floor |", programs.join(" | "));
    let _ = writeln!(out, "|---:|{}---:|---:|", "---:|".repeat(programs.len()));
    for size in &series.sizes {
        let _ = write!(out, "| {size} |");
        for program in &programs {
            match of(*size, program) {
                Some(summary) => {
                    let [median, least, greatest] =
                        [summary.median, summary.least, summary.greatest].map(|value| figure(series.test, value));
                    let _ = write!(out, " {median} ({least}..{greatest}) |");
                }
                None => out.push_str(" - |"),
            }
        }
        let [peer, floor] = results.beside(series, *size);
        let _ = writeln!(out, " {peer} | {floor} |");
    }
    out
}

/// Empty if nothing of Cableway was measured.
fn goals_table(plan: &Plan, results: &Results) -> String {
    let mut out = String::new();
    for row in goal_rows(plan, results) {
        if out.is_empty() {
            let _ = writeln!(out, "\n## Goals\n\n| {} | met |", GOAL_COLUMNS.join(" | "));
            out.push_str("|---|---:|---:|---:|---|---:|---|\n");
        }
        let met = if row.met { "yes" } else { "**no**" };
        let _ = writeln!(out, "| {} | {met} |", row.cells.join(" | "));
    }
    out
}

/// The cells of a row. Each is a figure, except the first one and the goal's.
pub(super) const GOAL_COLUMNS: [&str; 6] = ["figure", "ours", "best peer", "floor", "goal", "reached"];

/// A goal at one size, for one program of Cableway.
pub(super) struct GoalRow {
    pub(super) cells: [String; GOAL_COLUMNS.len()],
    pub(super) met: bool,
}

/// The goals with figures in this run.
pub(super) fn goal_rows(plan: &Plan, results: &Results) -> Vec<GoalRow> {
    let mut rows = Vec::new();
    for goal in GOALS {
        let series = plan.series.iter().filter(|series| series.test == goal.test && series.route.name == goal.route);
        let sizes =
            series.flat_map(|series| &series.sizes).filter(|size| (goal.sizes.0..=goal.sizes.1).contains(*size));
        for size in sizes {
            for program in goal.programs {
                let Some(standing) = results.held_against(goal, program, *size) else { continue };
                let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| figure(goal.test, value));
                rows.push(GoalRow {
                    cells: [
                        format!("{program}, {} {}, {size} B", goal.route, goal.test),
                        shown(Some(standing.ours)),
                        shown(standing.best_peer),
                        shown(standing.floor),
                        goal.aim(),
                        reached(goal, standing.reached),
                    ],
                    met: goal.bound.holds(standing.reached),
                });
            }
        }
    }
    rows
}

pub(super) fn figure(test: Test, value: f64) -> String {
    match test {
        test if test.is_rate() => format!("{:.2} M", value / 1e6),
        Test::Start => format!("{value:.1}"),
        Test::Bandwidth => format!("{value:.0}"),
        _ => format!("{value:.3}"),
    }
}

/// A ratio, or the figure itself.
fn reached(goal: &Goal, reached: f64) -> String {
    if matches!(goal.of, Of::Nothing) { figure(goal.test, reached) } else { format!("{reached:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Wanted;

    fn results(values: &[(&'static str, f64)]) -> (Plan, Results) {
        let (routes, tests) = (vec!["sm".to_owned()], vec!["latency".to_owned()]);
        let plan = Plan::new(&Wanted { routes, tests, ..Wanted::everything() }, 0);
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
        assert!(
            table.contains("| cableway, sm latency, 8 B | 0.300 | 0.350 | - | at most 0.55 of ob1's | 0.75 | **no** |"),
            "{table}"
        );
        assert!(
            table.contains("| cableway, sm latency, 8 B | 0.300 | 0.350 | - | at most 1 of ucx's | 0.86 | yes |"),
            "{table}"
        );
    }

    #[test]
    fn the_summary_marks_what_is_faster_and_slower() {
        let (plan, mut results) = results(&[("cableway", 0.30), ("ucx", 0.40)]);
        results.add("cableway", &plan.series[0], 1024, 0.50);
        results.add("ucx", &plan.series[0], 1024, 0.25);
        let table = summary_table(&plan, &results);
        assert!(table.contains("| | 8 | 1K |\n|---|---:|---:|\n"), "{table}");
        assert!(table.contains("| cableway, sm latency | 0.75 < | **2.00** |"), "{table}");
    }

    #[test]
    fn without_our_own_figures_no_goal_is_judged() {
        let (plan, results) = results(&[("ob1", 0.40)]);
        assert_eq!(goals_table(&plan, &results), "");
        let table = series_table(&plan.series[0], &["cableway", "ob1"], &results);
        assert!(table.contains("| bytes | ob1 |") && table.contains("| 8 | 0.400 (0.400..0.400) | - | - |"), "{table}");
        assert!(table.contains("| 1024 | - | - | - |"), "{table}");
    }
}
