//! Open MPI's ob1 over its own shared-memory and socket transports, through our small MPI program.

use std::path::PathBuf;
use std::process::Command;

use super::{Contender, Description, Place, Sample, cache, checkout, samples_of};
use crate::error::Error;
use crate::plan::{Series, by_window, window};
use crate::process::{bounded, output_of, shown};
use crate::report::Results;

pub(super) struct Ob1 {
    place: Place,
    program: PathBuf,
    version: String,
}

impl Ob1 {
    pub(super) fn find(place: Place) -> Result<Self, Error> {
        let missing =
            |_| Error::Missing("needs mpirun and mpicc: apt-get install -y openmpi-bin libopenmpi-dev".into());
        let version = output_of(Command::new("mpirun").arg("--version")).map_err(missing)?;
        let version = version.lines().next().unwrap_or_default().to_owned();
        let program = cache().join("point_to_point");
        std::fs::create_dir_all(cache()).map_err(|source| Error::Write { path: cache(), source })?;
        let source = checkout().join("benches/peers/point_to_point.c");
        output_of(Command::new("mpicc").args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source))?;
        Ok(Ob1 { place, program, version })
    }

    fn mpirun(&self, btl: &str) -> Command {
        let mut command = bounded("mpirun");
        command.args(["--allow-run-as-root", "-np", "2", "--cpu-list", &self.place.list()]);
        command.args(["--bind-to", "cpu-list:ordered", "--mca", "pml", "ob1"]);
        match btl {
            "sm" => command.args(["--mca", "btl", self.shared_memory()]),
            _ => command.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]),
        };
        command
    }

    /// The shared-memory transport is called vader up to Open MPI 4, sm after.
    fn shared_memory(&self) -> &'static str {
        let major = self.version.rsplit(' ').next().and_then(|version| version.split('.').next());
        if major.is_some_and(|major| major.parse().unwrap_or(4) >= 5) { "sm,self" } else { "vader,self" }
    }

    fn point_to_point(&self, series: &Series, sizes: &[u64], seconds: f64) -> Command {
        let mut command = self.mpirun(series.btl);
        let list = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let window = window(sizes[0]).to_string();
        command.arg(&self.program).args([&series.test.to_string(), &list, &seconds.to_string(), &window, series.btl]);
        command
    }
}

impl Contender for Ob1 {
    fn name(&self) -> &'static str {
        "ob1"
    }

    fn describe(&self) -> Description {
        Description { version: self.version.clone(), command: shown(&self.mpirun("sm")) }
    }

    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error> {
        let mut samples = Vec::new();
        for sizes in by_window(&series.sizes) {
            samples.extend(samples_of(&output_of(&mut self.point_to_point(series, sizes, seconds))?));
        }
        Ok(samples)
    }

    /// NetPIPE's ping-pong over the same MPI: our program must agree with one that is not ours.
    fn once(&self, results: &mut Results) {
        for btl in ["sm", "tcp"] {
            let mut command = self.mpirun(btl);
            command.args(["NPopenmpi", "-l", "8", "-u", "8", "-p", "0", "-n", "20000", "-o", "/dev/null"]);
            match net_pipe(&mut command) {
                Ok(latency) => results.note(format!("NetPIPE over ob1, {btl}: 8 B latency {latency:.2} us")),
                Err(error) => results.note(format!("NetPIPE over ob1, {btl}: not measured ({error})")),
            }
        }
    }
}

/// The latency that NetPIPE prints, as in `  0:   8 bytes 20000 times -->   80.47 Mbps in   0.76 usec`, in us.
fn net_pipe(command: &mut Command) -> Result<f64, Error> {
    let shown = shown(command);
    // It reports on standard error.
    let output = command.output().map_err(|source| Error::Start { program: "NPopenmpi".into(), source })?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    latency_in(&said).ok_or(Error::NoFigure { command: shown, said })
}

fn latency_in(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains("-->"))?;
    line.rsplit_once(" in ")?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_pipe_is_read() {
        let said =
            "Now starting the main loop\n  0:       8 bytes 100000 times -->     80.47 Mbps in       0.76 usec\n";
        assert_eq!(latency_in(said), Some(0.76));
        assert_eq!(latency_in("no such program"), None);
    }
}
