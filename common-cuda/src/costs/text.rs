//! The format of a file with a device's costs: lines of text that people can read, too.
//!
//! ```text
//! # Costs of copies by this device, measured by Cableway. Delete the file to measure them again.
//! format 1
//! driver 13.0 580.159.04
//! device 4a1f...(32 digits) 0000:1B:00.0 NVIDIA H200
//! measured 2026-11-22T15:20:33Z in 6.2 ms
//! to_host 7.400 us 55.300 GB/s
//! call 1.500 us
//! rows 777.123 M/s
//! several 1.250 us
//! peer 77c0...(32 digits) nvlink 0
//! push 6.700 us 378.000 GB/s
//! pull 7.200 us 377.000 GB/s
//! end
//! ```
//!
//! The lines before `measured` state what the figures hold for. The words after a peer's identity state its link. If
//! one of these lines does not match the machine, the figures after it are ignored. A missing line was not measured
//! yet, or the driver refused the operation. Refusals are not kept, because another container may be allowed the
//! operation.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{CopyCost, DeviceCosts, Known, PeerCosts};

/// The version of the format and of the measurements. Files of other versions are measured again.
const FORMAT: &str = "1";

/// The machine and driver that figures hold for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The driver's versions.
    pub(crate) driver: String,
    pub(crate) uuid: [u8; 16],
    /// The device's PCI address and name.
    pub(crate) device: String,
    /// The devices that it can access, and the kind of each link.
    pub(crate) peers: Vec<([u8; 16], String)>,
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Content {
    /// When the costs were measured, and how long that took.
    pub(crate) measured: String,
    pub(crate) costs: DeviceCosts,
}

/// Why a file is ignored.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UnusableFile {
    /// It is valid for another machine, driver or format.
    Outdated(&'static str),
    /// Its content is malformed.
    Malformed(String),
}

pub(crate) fn write(key: &Key, content: &Content) -> String {
    let mut text =
        "# Costs of copies by this device, measured by Cableway. Delete the file to measure them again.\n".to_owned();
    let costs = &content.costs;
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{words}");
    };
    line(format_args!("format {FORMAT}"));
    line(format_args!("driver {}", key.driver));
    line(format_args!("device {} {}", digits(&key.uuid), key.device));
    line(format_args!("measured {}", content.measured));
    let mut row = |name: &str, known: Known<String>| match known {
        Known::Nothing | Known::Refused => {}
        Known::Is(figures) => line(format_args!("{name} {figures}")),
    };
    row("to_host", shown(costs.to_host, show_cost));
    row("from_host", shown(costs.from_host, show_cost));
    row("within", shown(costs.within, show_cost));
    row("call", shown(costs.call, show_time));
    row("rows", shown(costs.rows_per_second, |rate| format!("{:.3} M/s", rate * 1e-6)));
    row("several", shown(costs.several, show_time));
    row("kernel", shown(costs.kernel, show_cost));
    for (uuid, kind) in &key.peers {
        let Some(peer) = costs.peers.iter().find(|peer| peer.device == *uuid) else { continue };
        row("peer", Known::Is(format!("{} {kind}", digits(uuid))));
        row("push", shown(peer.push, show_cost));
        row("pull", shown(peer.pull, show_cost));
    }
    text + "end\n"
}

fn shown<T>(known: Known<T>, show: impl FnOnce(T) -> String) -> Known<String> {
    match known {
        Known::Nothing => Known::Nothing,
        Known::Refused => Known::Refused,
        Known::Is(figure) => Known::Is(show(figure)),
    }
}

fn show_cost(cost: CopyCost) -> String {
    format!("{} {:.3} GB/s", show_time(cost.latency), cost.bytes_per_second * 1e-9)
}

fn show_time(time: Duration) -> String {
    format!("{:.3} us", time.as_secs_f64() * 1e6)
}

fn digits(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the name of a device's file.
pub(crate) fn file_name(uuid: &[u8; 16]) -> String {
    digits(uuid) + ".txt"
}

/// Parses a file of any origin, and checks that it describes this machine.
pub(crate) fn read(text: &str, key: &Key) -> Result<Content, UnusableFile> {
    let malformed = |number: usize, reason: &str| UnusableFile::Malformed(format!("line {}: {reason}", number + 1));
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    let mut lines = lines.map(|(number, line)| {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        (number, name, rest)
    });
    let mut head = |name: &str| match lines.next() {
        Some((_, found, rest)) if found == name => Ok(rest),
        Some((number, ..)) => Err(malformed(number, &format!("expected '{name}'"))),
        None => Err(malformed(0, "the file is empty")),
    };
    for (name, now, what) in [
        ("format", FORMAT, "it has another format version"),
        ("driver", &*key.driver, "the driver has changed"),
        ("device", &*format!("{} {}", digits(&key.uuid), key.device), "the device or its PCI address has changed"),
    ] {
        if head(name)? != now {
            return Err(UnusableFile::Outdated(what));
        }
    }
    let measured = head("measured")?.to_owned();
    let mut costs = DeviceCosts::default();
    // The peer that the next lines describe; `None` if this process cannot see that peer.
    let mut peer: Option<PeerCosts> = None;
    let mut ended = false;
    for (number, name, rest) in lines {
        let wrong = || malformed(number, &format!("invalid figure '{name} {rest}'"));
        if ended {
            return Err(malformed(number, "there is text after the end"));
        }
        match name {
            "to_host" => costs.to_host = figure(rest, cost).ok_or_else(wrong)?,
            "from_host" => costs.from_host = figure(rest, cost).ok_or_else(wrong)?,
            "within" => costs.within = figure(rest, cost).ok_or_else(wrong)?,
            "call" => costs.call = figure(rest, time).ok_or_else(wrong)?,
            "rows" => costs.rows_per_second = figure(rest, rows).ok_or_else(wrong)?,
            "several" => costs.several = figure(rest, time).ok_or_else(wrong)?,
            "kernel" => costs.kernel = figure(rest, cost).ok_or_else(wrong)?,
            "peer" => {
                costs.peers.extend(peer.take());
                let known = key.peers.iter().find(|(uuid, kind)| rest == format!("{} {kind}", digits(uuid)));
                peer = known.map(|(uuid, _)| PeerCosts { device: *uuid, push: Known::Nothing, pull: Known::Nothing });
            }
            "push" | "pull" => {
                let found = figure(rest, cost).ok_or_else(wrong)?;
                match (&mut peer, name) {
                    (Some(peer), "push") => peer.push = found,
                    (Some(peer), _) => peer.pull = found,
                    (None, _) => {}
                }
            }
            "end" => ended = true,
            _ => return Err(malformed(number, &format!("unknown row '{name}'"))),
        }
    }
    costs.peers.extend(peer);
    let once = |index: usize| costs.peers[..index].iter().all(|other| other.device != costs.peers[index].device);
    match ended && (0..costs.peers.len()).all(once) {
        true => Ok(Content { measured, costs }),
        false => Err(malformed(text.lines().count(), "its end is missing, or a peer occurs twice")),
    }
}

fn figure<T>(text: &str, parse: impl FnOnce(&[&str]) -> Option<T>) -> Option<Known<T>> {
    let words: Vec<&str> = text.split(' ').collect();
    // Earlier versions kept refusals. Measure again.
    if words == ["refused"] { Some(Known::Nothing) } else { parse(&words).map(Known::Is) }
}

fn cost(words: &[&str]) -> Option<CopyCost> {
    let [latency, unit, rate, "GB/s"] = *words else { return None };
    sane(CopyCost { latency: time(&[latency, unit])?, bytes_per_second: number(rate)? * 1e9 })
}

fn time(words: &[&str]) -> Option<Duration> {
    let [time, "us"] = *words else { return None };
    Duration::try_from_secs_f64(number(time)? * 1e-6).ok().filter(is_sane_time)
}

fn rows(words: &[&str]) -> Option<f64> {
    let [rate, "M/s"] = *words else { return None };
    number(rate).map(|rate| rate * 1e6).and_then(sane_rows)
}

fn number(text: &str) -> Option<f64> {
    // Accept digits and a point, but no signs, exponents or `inf`.
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

fn is_sane_time(time: &Duration) -> bool {
    *time <= Duration::from_secs(1)
}

/// Returns the rows in a second, if the figure is plausible.
pub(crate) fn sane_rows(rate: f64) -> Option<f64> {
    Some(rate).filter(|rate| (1e3..1e12).contains(rate))
}

/// Returns the cost, if it is plausible.
pub(crate) fn sane(cost: CopyCost) -> Option<CopyCost> {
    Some(cost).filter(|cost| is_sane_time(&cost.latency) && (1e6..1e15).contains(&cost.bytes_per_second))
}

/// Formats the line `measured`.
pub(crate) fn measured(at: SystemTime, took: Duration) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let milliseconds = took.as_secs_f64() * 1e3;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z in {milliseconds:.1} ms")
}

/// Returns the date that is this many days after 1970-01-01.
fn date(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests;
