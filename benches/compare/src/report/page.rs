//! The report as one HTML file that needs nothing else.

use std::fmt::Write;

use super::Report;
use super::drawing::{Line, svg};
use super::standing::{self, Row, Verdict};
use super::tables::{GOAL_COLUMNS, figure, goal_rows, short, sizes};
use crate::contender::FLOOR;
use crate::error::Error;
use crate::plan::Series;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:1em 0;font-variant-numeric:tabular-nums}\
    th,td{border-bottom:1px solid #ddd;padding:.25em .8em;text-align:right}\
    th{white-space:nowrap}.ratios th,.ratios td{padding:.2em .45em}\
    h3{margin:1.5em 0 0}h3+.wide table{margin-top:.3em}\
    th:first-child,td:first-child{text-align:left;white-space:nowrap;position:sticky;left:0;background:#fff}\
    .faster{background:#d3efd9}.slower{background:#f9d0cd;font-weight:bold}.no{color:#b00;font-weight:bold}\
    .spread{color:#888;font-size:85%;display:block;white-space:nowrap}\
    .wide{overflow-x:auto}.plots{display:flex;flex-direction:column;gap:1em}\
    svg{width:100%;height:auto}\
    @media(max-width:800px){body{font-size:13px}th,td{padding:.2em .4em}svg text{font-size:22px}}\
    details{margin:1em 0}\
    dt{font-weight:600}dd{margin:0 0 .4em 1em;overflow-wrap:anywhere}";

pub(super) fn html(report: &Report) -> Result<String, Error> {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Cableway beside its peers</title>\n\
         <style>{STYLE}</style>\n<h1>Cableway beside its peers</h1>\n"
    );
    summary(&mut out, report);
    out.push_str("<details><summary>The machine, the programs and their commands</summary><dl>");
    let absent = report.absent.iter().map(|(name, reason)| (name.clone(), format!("left out, {reason}")));
    let rounds = ("rounds".to_owned(), report.rounds.to_string());
    for (name, value) in report.machine.facts.iter().cloned().chain([rounds]).chain(absent) {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escaped(&name), escaped(&value));
    }
    out.push_str("</dl></details>\n<p>Medians; in grey the least and the greatest value taken.</p>\n");
    for series in &report.plan.series {
        section(&mut out, report, series)?;
    }
    goals(&mut out, report);
    for note in report.results.notes() {
        let _ = writeln!(out, "<p>{}.</p>", escaped(note));
    }
    out.push_str("</html>\n");
    Ok(out)
}

/// The times relative to the best peer: a table for each route, by test and size.
fn summary(out: &mut String, report: &Report) {
    let rows = standing::rows(&report.plan, &report.results);
    if rows.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Time relative to the best peer</h2>\n<p>Medians of the rounds' ratios. <span class=\"faster\">Faster</span> or \
         <span class=\"slower\">slower</span> beyond the noise.</p>\n",
    );
    for of_route in rows.chunk_by(|one, next| one.series.route.name == next.series.route.name) {
        standings(out, of_route);
    }
}

/// The rows of one route.
fn standings(out: &mut String, rows: &[Row<'_>]) {
    let (route, sizes) = (rows[0].series.route, sizes(rows));
    let _ =
        write!(out, "<h3>{}</h3>\n<div class=\"wide\"><table class=\"ratios\"><tr><th></th>", escaped(&route.words()));
    for size in &sizes {
        let _ = write!(out, "<th>{}</th>", short(*size));
    }
    out.push_str("</tr>\n");
    for row in rows {
        let _ = write!(out, "<tr><td>{}, {}</td>", row.series.test, escaped(row.program));
        for size in &sizes {
            let Some(at) = row.standings.iter().find(|standing| standing.size == *size) else {
                out.push_str("<td></td>");
                continue;
            };
            let class = match at.verdict() {
                Verdict::Faster => "faster",
                Verdict::Even => "even",
                Verdict::Slower => "slower",
            };
            let [low, high] = at.interval;
            let told = format!("{low:.2} to {high:.2} of the time of {}", at.peer);
            let _ = write!(out, "<td class=\"{class}\" title=\"{told}\">{:.2}</td>", at.ratio);
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn section(out: &mut String, report: &Report, series: &Series) -> Result<(), Error> {
    let (route, test) = (series.route, series.test);
    let of = |size, program| report.results.summary(route.name, test, size, program);
    let programs = report.results.measured(series, &report.programs);
    if programs.is_empty() {
        return Ok(());
    }
    let title = format!("{}, {test} ({})", route.words(), test.unit());
    let _ = writeln!(out, "<h2>{}</h2>", escaped(&title));
    if series.sizes.len() > 1 {
        let lines = |value: &dyn Fn(u64, &'static str) -> Option<f64>| -> Vec<Line> {
            let line = |name: &&'static str| {
                let points = series.sizes.iter().filter_map(|size| Some((*size as f64, value(*size, name)?)));
                Line { name, points: points.collect() }
            };
            programs.iter().map(line).filter(|line| !line.points.is_empty()).collect()
        };
        let figures = lines(&|size, program| Some(of(size, program)?.median));
        let ratios = lines(&|size, program| {
            let peer = report.results.best_peer(route.name, test, size)?;
            (program != FLOOR).then_some(of(size, program)?.median / peer)
        });
        let _ = write!(out, "<div class=\"plots\">{}", svg(test.unit(), &figures)?);
        if !ratios.is_empty() {
            out.push_str(&svg("ratio to the best peer", &ratios)?);
        }
        out.push_str("</div>\n");
    }
    out.push_str("<div class=\"wide\"><table><tr><th>bytes</th>");
    for program in &programs {
        let _ = write!(out, "<th>{program}</th>");
    }
    out.push_str("<th>of the best peer</th><th>of the floor</th></tr>\n");
    for size in &series.sizes {
        let _ = write!(out, "<tr><td>{size}</td>");
        for program in &programs {
            let Some(summary) = of(*size, program) else {
                out.push_str("<td>-</td>");
                continue;
            };
            let [median, least, greatest] =
                [summary.median, summary.least, summary.greatest].map(|value| figure(test, value));
            let _ = write!(out, "<td>{median} <span class=\"spread\">{least}..{greatest}</span></td>");
        }
        for ratio in report.results.beside(series, *size) {
            let _ = write!(out, "<td>{ratio}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
    Ok(())
}

fn goals(out: &mut String, report: &Report) {
    let rows = goal_rows(&report.plan, &report.results);
    if rows.is_empty() {
        return;
    }
    let row = |tag: &str, cells: &[&str]| {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect::<String>()
    };
    let _ =
        writeln!(out, "<h2>Goals</h2>\n<div class=\"wide\"><table><tr>{}<th>met</th></tr>", row("th", &GOAL_COLUMNS));
    for goal in rows {
        let met = if goal.met { "<td>yes</td>" } else { "<td class=\"no\">no</td>" };
        let _ = writeln!(out, "<tr>{}{met}</tr>", row("td", &goal.cells.each_ref().map(String::as_str)));
    }
    out.push_str("</table></div>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
