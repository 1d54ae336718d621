//! Copies of the driver by one process, without messages. They are the lower bound for messages.

use std::path::PathBuf;

use super::build::compiled;
use super::contract::{Contender, Description, FLOOR, Place, Sample, samples_of};
use crate::error::Error;
use crate::plan::Series;
use crate::process::{bounded, output_of};
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
        let route = series.route;
        let copies = route.btl == "sm" && route.memory.into_iter().any(Memory::on_device);
        copies && !matches!(route.shape, Shape::Irregular { .. }) && !series.test.is_of_mpi()
    }

    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error> {
        let route = series.route;
        let mut samples = Vec::new();
        for (sizes, window) in series.runs() {
            let list = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
            let mut command = bounded("taskset");
            command.args(["-c", &self.place.cores[0].to_string()]).arg(&self.program);
            command.args([&series.test.to_string(), &list, &seconds.to_string(), &window.to_string()]);
            // The host's side is page-locked in any case.
            let place = |memory: Memory| if memory.on_device() { memory } else { Memory::Host };
            command.args(route.memory.map(|memory| place(memory).to_string()));
            command.arg(if route.staged { "staged" } else { "straight" });
            if let Shape::Strided { block, stride } = route.shape {
                command.args([block.to_string(), stride.to_string()]);
            }
            samples.extend(samples_of(&output_of(&mut command)?));
        }
        Ok(samples)
    }
}
