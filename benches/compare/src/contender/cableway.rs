//! Cableway's own `pingpong`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Contender, Description, Place, Sample, samples_of};
use crate::error::Error;
use crate::plan::{Series, Test, window};
use crate::process::{bounded, output_of, shown};
use crate::report::Results;
use crate::route::{Memory, Strided};
use crate::statistics::{Summary, summary};

/// How often the time to join a job is taken.
const STARTS: u32 = 7;
/// Ranks of the job in which memory is looked at.
const RANKS: u32 = 17;

pub(super) struct Cableway {
    place: Place,
    program: PathBuf,
    version: String,
    /// Seconds that an iteration took in earlier runs, to fill the time that the next is to take.
    known: RefCell<HashMap<(Test, &'static str, u64), f64>>,
}

impl Cableway {
    pub(super) fn new(place: Place, program: &Path) -> Result<Self, Error> {
        let version = output_of(Command::new(program).arg("--version"))?.trim().to_owned();
        Ok(Cableway { place, program: program.to_owned(), version, known: RefCell::default() })
    }

    fn size(&self, series: &Series, size: u64, seconds: f64) -> Result<Sample, Error> {
        let known = self.known.borrow().get(&(series.test, series.route.name, size)).copied();
        let iteration = known.unwrap_or_else(|| guess(series, size));
        let mut command = self.pingpong(series, size);
        command.args(["--iterations", &((seconds / iteration) as u32).clamp(2, 10_000_000).to_string()]);
        let printed = output_of(&mut command)?;
        let sample = samples_of(&printed).into_iter().find(|sample| sample.size == size);
        let sample = sample.ok_or_else(|| Error::NoFigure { command: shown(&command), said: printed })?;
        if let Some(iteration) = iteration_time(series.test, sample) {
            self.known.borrow_mut().insert((series.test, series.route.name, size), iteration);
        }
        Ok(sample)
    }

    /// One of the costs that the example `footprint` tells.
    fn footprint(&self, ranks: u32, name: &str) -> Result<f64, Error> {
        let program = self.program.with_file_name("examples").join("footprint");
        let mut command = bounded(&self.program);
        command.args(["run", "-n", &ranks.to_string(), "--set", "btl=self,sm", "--"]).arg(program);
        let printed = output_of(&mut command)?;
        let value = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok());
        value.ok_or_else(|| Error::NoFigure { command: shown(&command), said: printed })
    }

    fn pingpong(&self, series: &Series, size: u64) -> Command {
        let mut command = bounded("taskset");
        command.args(["-c", &self.place.list()]).arg(&self.program).arg("pingpong");
        let route = series.route;
        command.args(["--test", &series.test.to_string(), "--btl", route.btl, "--format", "json"]);
        command.args(["--sizes", &size.to_string(), "--window", &window(size).to_string()]);
        for (side, memory) in ["src", "dst"].into_iter().zip(route.memory) {
            if let Memory::Device(index) = memory {
                command.args([format!("--{side}"), "device".to_owned(), format!("--{side}-device"), index.to_string()]);
            }
        }
        if route.staged {
            command.args(["--set", "device_ipc=no"]);
        }
        if route.copier {
            command.args(["--set", "device_copier=yes"]);
        }
        if let Some(Strided { block, stride }) = route.strided {
            command.args(["--datatype", &format!("vector:{block}:{stride}:{}", size / block)]);
        }
        command
    }
}

impl Contender for Cableway {
    fn name(&self) -> &'static str {
        "cableway"
    }

    fn describe(&self) -> Description {
        let command = format!("taskset -c {} cableway pingpong --test TEST --btl BTL --format json", self.place.list());
        Description { version: self.version.clone(), command }
    }

    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error> {
        series.sizes.iter().map(|size| self.size(series, *size, seconds)).collect()
    }

    fn once(&self, results: &mut Results) {
        let starts: Result<Vec<f64>, Error> =
            (0..STARTS).map(|_| self.footprint(2, "milliseconds of World::init")).collect();
        results.note(match starts.map(|starts| summary(&starts)) {
            Ok(Some(Summary { median, least, greatest, .. })) => format!(
                "World::init in a job of 2, the wait for the other's start included: {median:.2} ms ({least:.2}..{greatest:.2})"
            ),
            Ok(None) => "World::init: not measured".to_owned(),
            Err(error) => format!("World::init: not measured ({error})"),
        });
        results.note(match self.footprint(RANKS, "bytes per connected peer") {
            Ok(bytes) => format!("memory per connected peer, in a job of {RANKS}: {:.0} KiB", bytes / 1024.0),
            Err(error) => format!("memory per connected peer: not measured ({error})"),
        });
    }
}

/// Seconds that an iteration may take, before any was measured: rather too few of them than too many.
fn guess(series: &Series, size: u64) -> f64 {
    let messages = if series.test == Test::Latency { 2 } else { window(size) };
    let (start, rate) = match (series.route.on_device(), series.route.btl) {
        (true, _) => (20e-6, 20e9),
        (false, "sm") => (1e-6, 5e9),
        (false, _) => (20e-6, 1e9),
    };
    messages as f64 * (start + size as f64 / rate)
}

/// Seconds that one iteration took: a round trip, or a window.
fn iteration_time(test: Test, sample: Sample) -> Option<f64> {
    let window = window(sample.size) as f64;
    match test {
        Test::Latency => Some(2e-6 * sample.value),
        Test::MessageRate => Some(window / sample.value),
        Test::Bandwidth => Some(window * sample.size as f64 / (sample.value * 1e6)),
        Test::ThreadedRate | Test::Start => None,
    }
}
