//! The interface of a program under measurement.

use std::collections::BTreeSet;

use crate::error::Error;
use crate::plan::Series;

/// The programs in the order of the report: Cableway, the peers, NCCL with several operations in a stream, and the driver's
/// copies, which bound all of them.
pub(crate) const PROGRAMS: [&str; 7] = ["cableway", "cableway-mpi", "ob1", "ucx", "nccl", QUEUED, "copies"];
/// NCCL without a wait after each operation. It is no peer, because MPI's calls wait.
pub(crate) const QUEUED: &str = "nccl-queued";
/// The programs that Cableway is compared with.
pub(crate) const PEERS: [&str; 3] = ["ob1", "ucx", "nccl"];
/// The program that no message can be faster than.
pub(crate) const FLOOR: &str = "copies";

/// A program that sends messages between two processes bound to the two cores of a [`Place`].
pub(crate) trait Contender {
    /// Returns the name in tables and goals.
    fn name(&self) -> &'static str;

    /// Returns the version, and the command of one figure, for the report.
    fn describe(&self) -> Description;

    /// Returns whether the program can run the series.
    fn takes(&self, series: &Series) -> bool {
        series.test.is_of_messages()
    }

    /// Measures one figure for each size of the series, for about `seconds` each.
    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error>;

    /// Measures cross-checks over these transports, start-up and memory once, at the end. Returns a sentence about each.
    fn remarks(&self, _btls: &BTreeSet<&str>) -> Vec<String> {
        Vec::new()
    }
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

    /// Formats the cores as `taskset -c` and `mpirun --cpu-list` read them.
    pub(crate) fn list(self) -> String {
        format!("{},{}", self.cores[0], self.cores[1])
    }
}

/// Reads lines as `cableway pingpong --format json` and `benches/peers/point_to_point.c` print them.
pub(super) fn samples_of(lines: &str) -> Vec<Sample> {
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
