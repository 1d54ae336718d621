//! Cableway's own `pingpong` and `collectives`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::contract::{Contender, Description, Place, Sample, samples_of};
use crate::error::Error;
use crate::plan::Series;
use crate::process::{bounded, list, output_of, shown};
use crate::route::{Memory, Shape};
use crate::statistics::{Summary, summary};

/// The number of measurements of the time to join a job.
const STARTS: u32 = 7;
/// Ranks of the job in which memory is measured.
const RANKS: u32 = 17;

pub(super) struct Cableway {
    place: Place,
    program: PathBuf,
    version: String,
}

impl Cableway {
    pub(super) fn new(place: Place, program: &Path) -> Result<Self, Error> {
        let version = output_of(Command::new(program).arg("--version"))?.trim().to_owned();
        Ok(Cableway { place, program: program.to_owned(), version })
    }

    /// Returns one of the costs that the example `footprint` prints.
    fn footprint(&self, ranks: u32, name: &str) -> Result<f64, Error> {
        let program = self.program.with_file_name("examples").join("footprint");
        let mut command = bounded(&self.program);
        command.args(["run", "-n", &ranks.to_string(), "--set", "btl=self,sm", "--"]).arg(program);
        let printed = output_of(&mut command)?;
        let value = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok());
        value.ok_or_else(|| Error::NoFigure { command: shown(&command), said: printed })
    }

    /// Returns a command of Cableway on the two cores.
    fn command(&self, verb: &str) -> Command {
        let mut command = bounded("taskset");
        command.args(["-c", &self.place.list()]).arg(&self.program).arg(verb);
        command
    }

    fn collectives(&self, series: &Series, sizes: &[u64], seconds: f64) -> Command {
        let mut command = self.command("collectives");
        let memory = if series.route.on_device() { "device" } else { "host" };
        command.args(["--operation", &series.test.to_string(), "--memory", memory, "--format", "json"]);
        command.args(["--btl", &format!("self,{}", series.route.btl), "--sizes", &list(sizes.iter().copied())]);
        command.args(["--seconds", &seconds.to_string()]);
        command
    }

    fn pingpong(&self, series: &Series, sizes: &[u64], window: u64, seconds: f64) -> Command {
        let mut command = self.command("pingpong");
        let route = series.route;
        command.args(["--test", &series.test.to_string(), "--btl", route.btl, "--format", "json"]);
        let listed = list(sizes.iter().copied());
        command.args(["--sizes", &listed, "--window", &window.to_string(), "--seconds", &seconds.to_string()]);
        for (side, memory) in ["src", "dst"].into_iter().zip(route.memory) {
            match memory {
                // As that of UCX's program.
                Memory::Host if series.test.is_put_or_get() => command.args([&format!("--{side}"), "shared"]),
                Memory::Device(_) => command.args([&format!("--{side}"), "device"]),
                Memory::PageLocked(_) => command.args([&format!("--{side}"), "pinned"]),
                Memory::Host | Memory::HostBeside(_) => &mut command,
            };
            if let Memory::Device(index) | Memory::PageLocked(index) | Memory::HostBeside(index) = memory {
                command.args([format!("--{side}-device"), index.to_string()]);
            }
        }
        if route.beside_devices() {
            command.arg("--beside-devices");
        }
        if route.staged {
            command.args(["--set", "device_ipc=no"]);
        }
        if route.copier {
            command.args(["--set", "device_copier=yes"]);
        }
        if let Some(datatype) = sizes.first().and_then(|size| route.shape.datatype(*size)) {
            command.args(["--datatype", &datatype]);
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

    fn takes(&self, series: &Series) -> bool {
        series.test.needs_no_mpi() || series.test.is_collective()
    }

    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error> {
        let mut samples = Vec::new();
        for (sizes, window) in series.runs() {
            // An element of a datatype is a whole message, so that there is one for each size.
            let at_once = if series.route.shape == Shape::Contiguous { sizes.len() } else { 1 };
            for sizes in sizes.chunks(at_once) {
                let mut command = match series.test.is_collective() {
                    true => self.collectives(series, sizes, seconds),
                    false => self.pingpong(series, sizes, window, seconds),
                };
                let printed = output_of(&mut command)?;
                let found = samples_of(&printed);
                if found.len() != sizes.len() {
                    return Err(Error::NoFigure { command: shown(&command), said: printed });
                }
                samples.extend(found);
            }
        }
        Ok(samples)
    }

    fn remarks(&self, _btls: &BTreeSet<&str>) -> Vec<String> {
        let starts: Result<Vec<f64>, Error> =
            (0..STARTS).map(|_| self.footprint(2, "milliseconds of World::init")).collect();
        let start = match starts.map(|starts| summary(&starts)) {
            Ok(Some(Summary { median, least, greatest, .. })) => format!(
                "World::init in a job of 2, the wait for the other's start included: {median:.2} ms ({least:.2}..{greatest:.2})"
            ),
            Ok(None) => "World::init: not measured".to_owned(),
            Err(error) => format!("World::init: not measured ({error})"),
        };
        let memory = match self.footprint(RANKS, "bytes per connected peer") {
            Ok(bytes) => format!("memory per connected peer, in a job of {RANKS}: {:.0} KiB", bytes / 1024.0),
            Err(error) => format!("memory per connected peer: not measured ({error})"),
        };
        vec![start, memory]
    }
}
