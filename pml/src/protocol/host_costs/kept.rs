//! Costs of host messages that are kept for the next jobs on this node: read once, and written when the engine ends.
//!
//! ```text
//! # Times of host messages on this node, measured by Cableway. Delete the file to measure them again.
//! # distance, pattern, bytes from, picoseconds for each byte: streamed, get, cached, unasked, halves
//! format 3
//! machine 1f0c...(boot) 6.8.0-60-generic Intel(R) Xeon(R) Platinum 8480C
//! l3 single 16384 151 160 110 95 144
//! l3 window 32768 148 131 - - 92
//! end
//! ```
//!
//! A file holds for one boot of a node. `-` stands for a way that was not measured.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

use cableway_base::Parameters;
use cableway_base::kept::{Folder, node};
use cableway_base::parameters::CostSource;
use cableway_btl::Distance;
use parking_lot::Mutex;

use super::{CLASSES, SMALLEST, WAYS};

/// The version of the format and of the measurements. Files of other versions are ignored.
const FORMAT: &str = "3";
/// A new figure is written if it differs from the kept one by more than one part in so many.
const NOTEWORTHY: f32 = 8.0;

/// The picoseconds for each byte by each way, where known.
pub(crate) type Row = [Option<f32>; WAYS.len()];
/// The rows of all sizes.
pub(crate) type Rows = [Row; CLASSES];
type Table = BTreeMap<Key, Rows>;
type Key = (Distance, Pattern);

/// How messages of a size come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pattern {
    /// One at a time.
    Single,
    /// Several at once.
    Window,
}

impl Pattern {
    pub(crate) const ALL: [Pattern; 2] = [Pattern::Single, Pattern::Window];

    /// Returns the pattern of so many messages.
    pub(crate) fn of(messages: u32) -> Pattern {
        if messages > 1 { Pattern::Window } else { Pattern::Single }
    }

    fn name(self) -> &'static str {
        match self {
            Pattern::Single => "single",
            Pattern::Window => "window",
        }
    }
}

/// A line of the kept costs, for users.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HostTimes {
    /// What the processors of the two processes share.
    pub distance: Distance,
    /// Whether the times are those of messages of which several are under way at once.
    pub in_windows: bool,
    /// The size in bytes from which on the times hold, up to twice the size.
    pub from: u64,
    /// Picoseconds for each byte by fragments past the caches, by the receiver's fetch, by fragments through the caches,
    /// by fragments that the receiver did not request, and by copies of both sides, where known.
    pub each: [Option<f32>; 5],
}

/// Returns what earlier jobs measured of host messages on this node, and the file that keeps it. Returns `None` if
/// nothing is kept: no folder is known, or the parameter `costs` is `default`.
pub fn host_times(parameters: &Parameters) -> Option<(PathBuf, Vec<HostTimes>)> {
    let folder = Folder::new(&parameters.costs_folder).filter(|_| parameters.costs != CostSource::Default)?;
    let line = |(distance, pattern): Key, (class, each): (usize, Row)| HostTimes {
        distance,
        in_windows: pattern == Pattern::Window,
        from: SMALLEST << class,
        each,
    };
    let known = |(_, row): &(usize, Row)| row.iter().any(Option::is_some);
    let table = load(&folder, &machine());
    let lines = table
        .into_iter()
        .flat_map(|(key, rows)| rows.into_iter().enumerate().filter(known).map(move |row| line(key, row)));
    Some((folder.file(&file_name()), lines.collect()))
}

/// The kept costs of this process's node.
pub(crate) struct Kept {
    folder: Option<Folder>,
    /// What the file holds, and what is new.
    known: OnceLock<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    table: Table,
    new: Table,
}

impl Kept {
    /// Creates the costs. Nothing is read yet.
    pub(crate) fn new(parameters: &Parameters) -> Kept {
        let kept = parameters.pml_host_trials != 0 && parameters.costs != CostSource::Default;
        let folder = kept.then(|| Folder::new(&parameters.costs_folder)).flatten();
        Kept { folder, known: OnceLock::new() }
    }

    /// Returns the costs at this distance of messages that come so.
    pub(crate) fn rows(&self, distance: Distance, pattern: Pattern) -> Option<Rows> {
        self.known().lock().table.get(&(distance, pattern)).copied()
    }

    /// Keeps the costs of a size.
    pub(crate) fn note(&self, key: Key, class: usize, row: &Row) {
        let Known { table, new } = &mut *self.known().lock();
        let before = table.entry(key).or_default()[class];
        let differs = |(before, now): (Option<f32>, &Option<f32>)| match (before, now) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(before), Some(now)) => (before - now).abs() * NOTEWORTHY > before,
        };
        if before.into_iter().zip(row).any(differs) {
            merge(table, key, class, row);
            merge(new, key, class, row);
        }
    }

    /// Writes what is new, beside what other processes wrote meanwhile. Does nothing while another process writes.
    pub(crate) fn save(&self) {
        let (Some(folder), Some(known)) = (&self.folder, self.known.get()) else { return };
        let new = std::mem::take(&mut known.lock().new);
        if new.is_empty() {
            return;
        }
        let machine = machine();
        let written = folder.try_lock().and_then(|lock| {
            let Some(lock) = lock else { return Ok(()) };
            let mut table = load(folder, &machine);
            for (key, rows) in new {
                for (class, row) in rows.iter().enumerate() {
                    merge(&mut table, key, class, row);
                }
            }
            folder.write(&lock, &file_name(), &write(&machine, &table))
        });
        if let Err(error) = written {
            log::debug!("{}: the times of host messages are not kept: {error}", folder.file(&file_name()).display());
        }
    }

    fn known(&self) -> &Mutex<Known> {
        self.known.get_or_init(|| {
            let table = self.folder.as_ref().map(|folder| load(folder, &machine()));
            Mutex::new(Known { table: table.unwrap_or_default(), new: Table::new() })
        })
    }
}

fn merge(table: &mut Table, key: Key, class: usize, row: &Row) {
    let kept = &mut table.entry(key).or_default()[class];
    for (kept, now) in kept.iter_mut().zip(row) {
        *kept = now.or(*kept);
    }
}

fn file_name() -> String {
    format!("host-{}.txt", node())
}

/// Returns what figures hold for: the boot, the kernel, and the processor.
fn machine() -> String {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = text("/proc/cpuinfo").lines().find_map(|line| Some(line.strip_prefix("model name")?.to_owned()));
    let model = model.unwrap_or_default();
    [
        text("/proc/sys/kernel/random/boot_id").trim(),
        text("/proc/sys/kernel/osrelease").trim(),
        model.trim_start_matches([' ', '\t', ':']),
    ]
    .join(" ")
}

/// Reads the file. An unusable one is ignored, with a warning if it is malformed.
fn load(folder: &Folder, machine: &str) -> Table {
    let fault = match folder.read(&file_name()) {
        Ok(None) => return Table::new(),
        Ok(Some(text)) => match read(&text, machine) {
            Ok(table) => return table,
            Err(fault) => fault,
        },
        Err(error) => error.to_string(),
    };
    let path = folder.file(&file_name());
    cableway_base::warn_once(&format!("costs/{}", path.display()), || {
        format!("{} is ignored, and the times of host messages are measured again: {fault}", path.display())
    });
    Table::new()
}

fn write(machine: &str, table: &Table) -> String {
    let mut text =
        "# Times of host messages on this node, measured by Cableway. Delete the file to measure them again.\n\
                    # distance, pattern, bytes from, picoseconds for each byte: streamed, get, cached, unasked, halves\n"
            .to_owned();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "format {FORMAT}\nmachine {machine}");
    for ((distance, pattern), rows) in table {
        for (class, row) in rows.iter().enumerate().filter(|(_, row)| row.iter().any(Option::is_some)) {
            let shown = row.map(|each| each.map_or_else(|| "-".to_owned(), |each| format!("{each:.0}")));
            let (from, each) = (SMALLEST << class, shown.join(" "));
            let _ = writeln!(text, "{} {} {from} {each}", distance.name(), pattern.name());
        }
    }
    text.push_str("end\n");
    text
}

/// Parses a file. One for another machine or format is empty.
fn read(text: &str, machine: &str) -> Result<Table, String> {
    let mut table = Table::new();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut key = |name: &str| lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
    if key("format") != Some(FORMAT) || key("machine") != Some(machine) {
        return Ok(table);
    }
    for line in lines {
        if line == "end" {
            return Ok(table);
        }
        let (key, class, row) = parse(line).ok_or_else(|| format!("the line '{line}' is not valid"))?;
        table.entry(key).or_default()[class] = row;
    }
    Err("its end is missing".to_owned())
}

fn parse(line: &str) -> Option<(Key, usize, Row)> {
    let mut words = line.split(' ');
    let name = words.next()?;
    let distance = Distance::ALL.into_iter().find(|distance| distance.name() == name)?;
    let name = words.next()?;
    let pattern = Pattern::ALL.into_iter().find(|pattern| pattern.name() == name)?;
    let from: u64 = words.next()?.parse().ok()?;
    let class = (0..CLASSES).find(|class| SMALLEST << class == from)?;
    let mut row = Row::default();
    for each in &mut row {
        *each = match words.next()? {
            "-" => None,
            word => Some(word.parse::<u32>().ok().filter(|&each| each != 0)? as f32),
        };
    }
    words.next().is_none().then_some(((distance, pattern), class, row))
}

#[cfg(test)]
mod tests;
