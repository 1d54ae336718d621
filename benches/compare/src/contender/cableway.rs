//! Cableway's own `pingpong`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Contender, Description, Place, Sample, checkout, samples_of};
use crate::error::Error;
use crate::plan::{Series, by_window, window};
use crate::process::{bounded, output_of, shown};

pub(super) struct Cableway {
    place: Place,
    program: PathBuf,
    version: String,
}

impl Cableway {
    /// The program named, else the release build of this checkout.
    pub(super) fn find(place: Place, named: Option<&Path>) -> Result<Self, Error> {
        let program = match named {
            Some(named) => named.to_owned(),
            None => build()?,
        };
        let version = output_of(Command::new(&program).arg("--version"))?.trim().to_owned();
        Ok(Cableway { place, program, version })
    }

    fn pingpong(&self, series: &Series, sizes: &[u64]) -> Command {
        let mut command = bounded("taskset");
        command.args(["-c", &self.place.list()]).arg(&self.program).arg("pingpong");
        command.args(["--test", &series.test.to_string(), "--btl", series.btl, "--format", "json"]);
        let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
        command.args(["--sizes", &format!("{first}..{last}"), "--window", &window(first).to_string()]);
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

    fn measure(&self, series: &Series, _seconds: f64) -> Result<Vec<Sample>, Error> {
        let mut samples = Vec::new();
        for sizes in by_window(&series.sizes) {
            let mut command = self.pingpong(series, sizes);
            let printed = output_of(&mut command)?;
            let taken = samples_of(&printed);
            if taken.is_empty() {
                return Err(Error::NoFigure { command: shown(&command), said: printed });
            }
            samples.extend(taken.into_iter().filter(|sample| sizes.contains(&sample.size)));
        }
        Ok(samples)
    }
}

fn build() -> Result<PathBuf, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    output_of(Command::new(cargo).args(["build", "--release", "-p", "cableway"]).current_dir(checkout()))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| checkout().join("target"), PathBuf::from);
    Ok(target.join("release/cableway"))
}
