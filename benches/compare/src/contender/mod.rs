//! The programs that are measured. Each knows how to run a series and to read what it printed.

mod cableway;
mod ob1;
mod ucx;

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::plan::Series;
use crate::report::Results;

/// A program that sends messages between two processes bound to the two cores of a [`Place`].
pub(crate) trait Contender {
    /// As it is called in tables and goals.
    fn name(&self) -> &'static str;

    /// Its version, and the command of one figure, for the report.
    fn describe(&self) -> Description;

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
pub(crate) fn find(name: &str, place: Place, ours: Option<&Path>) -> Result<Box<dyn Contender>, Error> {
    match name {
        "cableway" => Ok(Box::new(cableway::Cableway::find(place, ours)?)),
        "ob1" => Ok(Box::new(ob1::Ob1::find(place)?)),
        "ucx" => Ok(Box::new(ucx::Ucx::find(place)?)),
        other => Err(Error::Missing(format!("no program is called '{other}'; there are cableway, ob1 and ucx"))),
    }
}

/// Where built peers and downloads are kept between runs.
fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("cableway/peers")
}

/// The root of this checkout.
fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
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
