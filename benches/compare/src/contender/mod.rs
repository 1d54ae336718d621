//! The programs that are measured. Each knows how to run a series and to read what it printed.

mod cableway;
#[cfg(feature = "cuda")]
mod copies;
mod nccl;
mod open_mpi;
mod ucx;

use std::path::PathBuf;
use std::process::Command;

use crate::Ours;
use crate::error::Error;
use crate::plan::Series;
use crate::process::output_of;
use crate::report::Results;

/// A program that sends messages between two processes bound to the two cores of a [`Place`].
pub(crate) trait Contender {
    /// As it is called in tables and goals.
    fn name(&self) -> &'static str;

    /// Its version, and the command of one figure, for the report.
    fn describe(&self) -> Description;

    /// Whether it can be measured so: what only an MPI does, only an MPI is asked for.
    fn takes(&self, series: &Series) -> bool {
        !series.test.is_of_mpi()
    }

    /// One figure for each size of the series, each taken over about `seconds`.
    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error>;

    /// What needs no alternation, taken once at the end: cross-checks, start-up, memory.
    fn once(&self, _results: &mut Results) {}
}

pub(crate) struct Description {
    pub(crate) version: String,
    pub(crate) command: String,
}

#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) size: u64,
    pub(crate) value: f64,
}

/// Two cores.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) cores: [u32; 2],
}

impl Place {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let cores = text.split_once(',').and_then(|(one, other)| Some([one.parse().ok()?, other.parse().ok()?]));
        match cores {
            Some([one, other]) if one != other => Ok(Place { cores: [one, other] }),
            _ => Err(format!("'{text}' is not two different cores, as in 0,1")),
        }
    }

    /// As `taskset -c` and `mpirun --cpu-list` take it.
    pub(crate) fn list(self) -> String {
        format!("{},{}", self.cores[0], self.cores[1])
    }
}

/// The program of that name, made ready to run.
///
/// # Errors
///
/// It is not on this machine and could not be built; the message says what would bring it.
pub(crate) fn find(name: &str, place: Place, ours: &Ours) -> Result<Box<dyn Contender>, Error> {
    match name {
        "cableway" => Ok(Box::new(cableway::Cableway::new(place, &ours.command)?)),
        "cableway-mpi" => Ok(Box::new(open_mpi::OpenMpi::cableway(place, ours.component.clone())?)),
        "ob1" => Ok(Box::new(open_mpi::OpenMpi::ob1(place)?)),
        "ucx" => Ok(Box::new(ucx::Ucx::find(place)?)),
        "nccl" => Ok(Box::new(nccl::Nccl::find(ours.devices)?)),
        #[cfg(feature = "cuda")]
        "copies" => Ok(Box::new(copies::Copies::find(place, ours.devices)?)),
        other => Err(Error::Missing(format!("no program is called '{other}'; there are {}", PROGRAMS.join(", ")))),
    }
}

/// By name, in the order of the report: ours, the peers, and the bare copies that bound them all.
pub(crate) const PROGRAMS: [&str; 6] = ["cableway", "cableway-mpi", "ob1", "ucx", "nccl", "copies"];
/// Whose figures ours are held against.
pub(crate) const PEERS: [&str; 3] = ["ob1", "ucx", "nccl"];
/// What no message can be faster than.
pub(crate) const FLOOR: &str = "copies";

/// Where built peers and downloads are kept between runs.
fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("cableway/peers")
}

/// A C program of ours, compiled where there is a compiler, else as an earlier run or another machine left it.
fn compiled(name: &str, source: &str, compiler: &str, options: &[&str]) -> Result<PathBuf, Error> {
    let program = cache().join(name);
    let text = program.with_extension("c");
    if output_of(Command::new(compiler).arg("--version")).is_err() {
        let remedy = format!("needs {compiler}, or {} from a machine that has it", program.display());
        return program.exists().then_some(program).ok_or(Error::Missing(remedy));
    }
    std::fs::create_dir_all(cache())
        .and_then(|()| std::fs::write(&text, source))
        .map_err(|source| Error::Write { path: text.clone(), source })?;
    let mut build = Command::new(compiler);
    output_of(build.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&text).args(options))?;
    Ok(program)
}

/// Reads lines as `cableway pingpong --format json` and our MPI program print them.
fn samples_of(lines: &str) -> Vec<Sample> {
    #[derive(serde::Deserialize)]
    struct Line {
        size: u64,
        value: f64,
    }
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines.map(|line| Sample { size: line.size, value: line.value }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lines_are_read_and_other_lines_passed_over() {
        let printed = "a warning\n\
            {\"test\":\"latency\",\"btl\":\"sm\",\"src\":\"host\",\"dst\":\"host\",\"size\":8,\"value\":0.19,\"unit\":\"us\"}\n";
        let samples = samples_of(printed);
        assert_eq!(samples.len(), 1);
        assert_eq!((samples[0].size, samples[0].value), (8, 0.19));
    }

    #[test]
    fn a_place_is_two_different_cores() {
        assert_eq!(Place::parse("2,5").unwrap().list(), "2,5");
        for wrong in ["1", "1,1", "a,b", ""] {
            assert!(Place::parse(wrong).is_err(), "{wrong}");
        }
    }
}
