//! Copies of the driver by one process, without messages. They are the lower bound for messages.

use std::path::PathBuf;

use super::build::compiled;
use super::contract::{Contender, Description, FLOOR, Place, Sample, samples_of};
use crate::error::Error;
use crate::plan::{Series, Test};
use crate::process::{bounded, list, output_of};
use crate::route::{Memory, Shape};

pub(super) struct Copies {
    place: Place,
    program: PathBuf,
}

impl Copies {
    pub(super) fn find(place: Place, devices: u32) -> Result<Self, Error> {
        if devices == 0 {
            return Err(Error::Missing("there is no device".to_owned()));
        }
        Ok(Copies { place, program: compiled("copies", include_str!("../../../peers/copies.c"), "cc", &["-ldl"])? })
    }
}

impl Contender for Copies {
    fn name(&self) -> &'static str {
        FLOOR
    }

    fn describe(&self) -> Description {
        let command = format!("taskset -c {} copies TEST SIZES SECONDS WINDOW WAY", self.place.cores[0]);
        Description {
            version: "the driver's copies alone, by one process (benches/peers/copies.c)".to_owned(),
            command,
        }
    }

    /// The driver has no call to copy irregular blocks.
    fn takes(&self, series: &Series) -> bool {
        let (route, test) = (series.route, series.test);
        let copies = route.btl == "sm" && route.memory.into_iter().any(Memory::on_device);
        copies && !matches!(route.shape, Shape::Irregular { .. }) && (test.is_of_messages() || test.is_collective())
    }

    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error> {
        if series.test.is_collective() {
            return self.collective(series, seconds);
        }
        let mut samples = Vec::new();
        for (sizes, window) in series.runs() {
            samples.extend(self.copies(series, series.test, sizes, window, seconds)?);
        }
        Ok(samples)
    }
}

impl Copies {
    fn copies(
        &self,
        series: &Series,
        test: Test,
        sizes: &[u64],
        window: u64,
        seconds: f64,
    ) -> Result<Vec<Sample>, Error> {
        let route = series.route;
        let list = list(sizes.iter().copied());
        let mut command = bounded("taskset");
        command.args(["-c", &self.place.cores[0].to_string()]).arg(&self.program);
        command.args([&test.to_string(), &list, &seconds.to_string(), &window.to_string()]);
        // The host's side is page-locked in any case.
        let place = |memory: Memory| if memory.on_device() { memory } else { Memory::Host };
        command.args(route.memory.map(|memory| place(memory).to_string()));
        command.arg(if route.staged { "staged" } else { "straight" });
        if let Shape::Strided { block, stride } = route.shape {
            command.args([block.to_string(), stride.to_string()]);
        }
        Ok(samples_of(&output_of(&mut command)?))
    }

    /// Times the copies that an operation of two ranks needs at least. Both directions of the link work at a time.
    fn collective(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error> {
        let mut sizes: Vec<u64> = series.sizes.iter().flat_map(|size| [*size, size / 2]).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let copies = self.copies(series, Test::Latency, &sizes, 1, seconds)?;
        let time = |size: u64| copies.iter().find(|copy| copy.size == size).map(|copy| copy.value);
        let least = |size: u64| Some(Sample { size, value: least_of(series.test, time(size)?, time(size / 2)?) });
        Ok(series.sizes.iter().copied().filter_map(least).collect())
    }
}

/// Returns the least time of an operation of two ranks, from those of copies of all bytes and of half of them.
fn least_of(test: Test, whole: f64, half: f64) -> f64 {
    match test {
        Test::Bcast => whole,
        // Both ranks get the other one's values, or the sums of half of them and then the other half of the sums.
        Test::Allreduce => whole.min(2.0 * half),
        _ => half,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_needs_the_copies_of_what_ranks_do_not_have() {
        assert_eq!(least_of(Test::Bcast, 10.0, 6.0), 10.0);
        assert_eq!(least_of(Test::Alltoall, 10.0, 6.0), 6.0);
        assert_eq!((least_of(Test::Allreduce, 7.0, 7.0), least_of(Test::Allreduce, 100.0, 40.0)), (7.0, 80.0));
    }
}
