//! The file in which the costs of a device lie: lines of words, for people, too.
//!
//! ```text
//! # What copies by this device cost, as Cableway measured them. Delete the file to have them measured anew.
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
//! The lines before `measured` say what the figures hold for, the words after a peer's identity how it is reached; where
//! one is another now, what follows is not believed. A line that is not there was not measured yet, or is refused where it was
//! tried: that is not kept, because another container may be allowed it.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{CopyCost, DeviceCosts, Known, PeerCosts};

/// The version of this format, and of what is measured how: figures of another are measured anew.
const FORMAT: &str = "1";

/// The machine and driver that figures hold for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The driver's versions.
    pub(crate) driver: String,
    pub(crate) uuid: [u8; 16],
    /// The device's place and name.
    pub(crate) device: String,
    /// Devices that it reaches, and how.
    pub(crate) peers: Vec<([u8; 16], String)>,
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Content {
    /// When it was measured, and how long that took.
    pub(crate) measured: String,
    pub(crate) costs: DeviceCosts,
}

/// Why what a file holds is not believed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unbelieved {
    /// It holds for something else than what there is now.
    Outdated(&'static str),
    /// It is no such file.
    Malformed(String),
}

pub(crate) fn write(key: &Key, content: &Content) -> String {
    let mut text =
        "# What copies by this device cost, as Cableway measured them. Delete the file to have them measured anew.\n"
            .to_owned();
    let costs = &content.costs;
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Nothing can go wrong in memory.
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

/// The name of the file of a device.
pub(crate) fn file_name(uuid: &[u8; 16]) -> String {
    digits(uuid) + ".txt"
}

/// Takes what a file holds, of whatever origin, as far as it is about what there is now.
pub(crate) fn read(text: &str, key: &Key) -> Result<Content, Unbelieved> {
    let malformed = |number: usize, reason: &str| Unbelieved::Malformed(format!("line {}: {reason}", number + 1));
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    let mut lines = lines.map(|(number, line)| {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        (number, name, rest)
    });
    let mut head = |name: &str| match lines.next() {
        Some((_, found, rest)) if found == name => Ok(rest),
        Some((number, ..)) => Err(malformed(number, &format!("'{name}' is expected"))),
        None => Err(malformed(0, "it is empty")),
    };
    for (name, now, what) in [
        ("format", FORMAT, "it is of another format"),
        ("driver", &*key.driver, "the driver is another"),
        ("device", &*format!("{} {}", digits(&key.uuid), key.device), "the device is another, or elsewhere"),
    ] {
        if head(name)? != now {
            return Err(Unbelieved::Outdated(what));
        }
    }
    let measured = head("measured")?.to_owned();
    let mut costs = DeviceCosts::default();
    // The peer that lines are about, unless it is none that there is now.
    let mut peer: Option<PeerCosts> = None;
    let mut ended = false;
    for (number, name, rest) in lines {
        let wrong = || malformed(number, &format!("'{name} {rest}' is no such figure"));
        if ended {
            return Err(malformed(number, "something follows the end"));
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
            _ => return Err(malformed(number, &format!("nothing is known of '{name}'"))),
        }
    }
    costs.peers.extend(peer);
    let once = |index: usize| costs.peers[..index].iter().all(|other| other.device != costs.peers[index].device);
    match ended && (0..costs.peers.len()).all(once) {
        true => Ok(Content { measured, costs }),
        false => Err(malformed(text.lines().count(), "it has no end, or a peer twice")),
    }
}

fn figure<T>(text: &str, parse: impl FnOnce(&[&str]) -> Option<T>) -> Option<Known<T>> {
    let words: Vec<&str> = text.split(' ').collect();
    // Kept once, and believed no more.
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
    // Digits and a point: neither signs, nor exponents, nor `inf`.
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

fn is_sane_time(time: &Duration) -> bool {
    *time <= Duration::from_secs(1)
}

/// Rows a second, if there can be so many.
pub(crate) fn sane_rows(rate: f64) -> Option<f64> {
    Some(rate).filter(|rate| (1e3..1e12).contains(rate))
}

/// A cost, if it can be one.
pub(crate) fn sane(cost: CopyCost) -> Option<CopyCost> {
    Some(cost).filter(|cost| is_sane_time(&cost.latency) && (1e6..1e15).contains(&cost.bytes_per_second))
}

/// The words of the line `measured`.
pub(crate) fn measured(at: SystemTime, took: Duration) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let milliseconds = took.as_secs_f64() * 1e3;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z in {milliseconds:.1} ms")
}

/// The date so many days after the first of 1970.
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
