//! Times of host messages between processes of this node, and their origin.

use std::process::{Command, Stdio};

use cableway::{HostTimes, Parameters, host_times};
use serde_json::Value;

use super::super::parameters::ParameterOptions;
use super::section::{Fact, Section};

/// Sends messages of each size between two processes, one at a time and in windows. They measure the ways that the data
/// may take. Each way is tried three times for each size.
const MEASUREMENTS: [&[&str]; 2] = [
    &["pingpong", "--btl", "sm", "--test", "latency", "--iterations", "20"],
    &["pingpong", "--btl", "sm", "--test", "bandwidth", "--window", "4", "--iterations", "15"],
];

/// Rounds of them at most. On a busy machine a window may arrive message by message, and then counts as single messages.
const ROUNDS: u32 = 4;

/// One size of each kind that has times of its own.
const SIZES: &str = "24K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,32M";

/// Lists the kept times. With `measure`, the two processes of a job measure what is not kept.
pub(super) fn section(parameters: &Parameters, options: &ParameterOptions, measure: bool) -> Section {
    let missing =
        || host_times(parameters).is_some_and(|(_, lines)| lines.len() < MEASUREMENTS.len() * SIZES.split(',').count());
    let run = || MEASUREMENTS.iter().try_for_each(|measurement| run(options, measurement));
    let measured = (0..ROUNDS).take_while(|_| measure && missing()).try_for_each(|_| run());
    let Some((path, lines)) = host_times(parameters) else {
        let reason = "not kept: costs=default, or neither costs_folder, XDG_CACHE_HOME nor HOME names a folder";
        return Section::one("Host messages", vec![("reason", reason.into())]);
    };
    if let Err(error) = measured {
        return Section::one("Host messages", vec![("not_measured", error.into())]);
    }
    if lines.is_empty() {
        return Section::one("Host messages", vec![("times", "not measured since this node was booted".into())]);
    }
    let mut things =
        vec![vec![("messages", "measured by earlier jobs".into()), ("file", path.display().to_string().into())]];
    things.extend(lines.iter().map(facts));
    Section::several("Host messages", things)
}

fn facts(line: &HostTimes) -> Vec<Fact> {
    let [streamed, get, cached, unasked, halves] = line.each.map(|each| match each {
        Some(picoseconds) => Value::from(format!("{:.1} GB/s", 1000.0 / picoseconds)),
        None => "not measured".into(),
    });
    let pattern = if line.in_windows { "in windows" } else { "one at a time" };
    let name = format!("{}, {pattern}, from {} B", line.distance.name(), line.from);
    vec![
        ("messages", name.into()),
        ("past_the_caches", streamed),
        ("fetched", get),
        ("through_the_caches", cached),
        ("without_a_request", unasked),
        ("by_both_sides", halves),
    ]
}

fn run(options: &ParameterOptions, measurement: &[&str]) -> Result<(), String> {
    let command = std::env::current_exe().map_err(|error| format!("this executable is not found: {error}"))?;
    let output = Command::new(command)
        .args(measurement)
        .args(["--sizes", SIZES])
        .envs(options.variables())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start 'cableway pingpong': {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let reason = || errors.lines().last().unwrap_or("it gave no reason").to_owned();
    output.status.success().then_some(()).ok_or_else(|| format!("'cableway pingpong' failed: {}", reason()))
}
