//! An unmodified Open MPI, measured by a small MPI program: with its own ob1, and with Cableway's component.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::{cache, compiled};
use super::contract::{Contender, Description, Place, Sample, samples_of};
use crate::error::Error;
use crate::plan::{Series, Test};
use crate::process::{bounded, is_on_path, list, output_of, shown};

/// The program's access to device memory. A build without devices names no function of a driver.
#[cfg(feature = "cuda")]
const DEVICE: &str = include_str!("../../../peers/device.h");
#[cfg(not(feature = "cuda"))]
const DEVICE: &str = include_str!("../../../peers/no_device.h");

/// The program of collectives, with NCCL's beside those of MPI. A build without devices has none.
#[cfg(feature = "cuda")]
const COLLECTIVES: Option<[&str; 2]> =
    Some([include_str!("../../../peers/collectives.c"), include_str!("../../../peers/nccl.h")]);
#[cfg(not(feature = "cuda"))]
const COLLECTIVES: Option<[&str; 2]> = None;

/// Debian's name of NetPIPE for Open MPI.
const NET_PIPE: &str = "NPopenmpi";

/// The PML of Open MPI that carries the messages.
enum Pml {
    /// Open MPI's own ob1, over its own transports.
    Ob1,
    /// Cableway's component, from this folder.
    Cableway(PathBuf),
}

pub(super) struct OpenMpi {
    pml: Pml,
    place: Place,
    point_to_point: PathBuf,
    collectives: Option<PathBuf>,
    version: String,
}

impl OpenMpi {
    pub(super) fn ob1(place: Place) -> Result<Self, Error> {
        Self::find(place, Pml::Ob1)
    }

    /// With the component in this file.
    pub(super) fn cableway(place: Place, component: Result<PathBuf, String>) -> Result<Self, Error> {
        let mut found = Self::find(place, Pml::Ob1)?;
        found.pml = Pml::Cableway(lay_out(&component.map_err(Error::Missing)?)?);
        Ok(found)
    }

    fn find(place: Place, pml: Pml) -> Result<Self, Error> {
        let missing =
            |_| Error::Missing("needs mpirun and mpicc: apt-get install -y openmpi-bin libopenmpi-dev".into());
        let version = output_of(Command::new("mpirun").arg("--version")).map_err(missing)?;
        let version = version.lines().next().unwrap_or_default().to_owned();
        let program = |name, source: &str| {
            compiled(name, &source.replace("#include \"device.h\"", DEVICE), "mpicc", &["-pthread", "-ldl"])
        };
        let point_to_point = program("point_to_point", include_str!("../../../peers/point_to_point.c"))?;
        let collectives = COLLECTIVES.map(|[source, nccl]| {
            let source = source.replace("#include \"nccl.h\"", nccl);
            program("collectives", &source)
        });
        let collectives = collectives.transpose()?;
        Ok(OpenMpi { pml, place, point_to_point, collectives, version })
    }

    /// `mpirun` with the transport as a user would select it, or with Open MPI's defaults.
    fn mpirun(&self, btl: &str) -> Command {
        let mut command = bounded("mpirun");
        command.args(["--allow-run-as-root", "-np", "2", "--cpu-list", &self.place.list()]);
        command.args(["--bind-to", "cpu-list:ordered"]);
        match (&self.pml, btl) {
            (Pml::Ob1, "sm") => command.args(["--mca", "btl", self.shared_memory()]),
            (Pml::Ob1, "tcp") => command.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]),
            (Pml::Cableway(_), "sm") => command.args(["--mca", "pml_cableway_btl", "self,sm"]),
            (Pml::Cableway(_), "tcp") => command.args([
                "--mca",
                "pml_cableway_btl",
                "self,tcp",
                "--mca",
                "pml_cableway_btl_tcp_if_include",
                "lo",
            ]),
            _ => &mut command,
        };
        match &self.pml {
            Pml::Ob1 => command.args(["--mca", "pml", "ob1"]),
            Pml::Cableway(folder) => command.args(["--mca", "pml", "cableway"]).args(self.searched(folder)),
        };
        command
    }

    /// The folders with components: Cableway's, then Open MPI's own.
    fn searched(&self, folder: &Path) -> [String; 3] {
        let said = output_of(Command::new("ompi_info").args(["--path", "pkglibdir", "--parsable"])).unwrap_or_default();
        let own = said.trim().rsplit(':').next().unwrap_or_default().to_owned();
        // 5.0's mpirun gives the short name a value of its own on some distributions.
        let name = if self.major() >= 5 { "opal_mca_base_component_path" } else { "mca_base_component_path" };
        ["--mca".to_owned(), name.to_owned(), format!("{}:{own}", folder.display())]
    }

    /// The shared-memory transport is called vader up to Open MPI 4, sm after.
    fn shared_memory(&self) -> &'static str {
        if self.major() >= 5 { "sm,self" } else { "vader,self" }
    }

    fn major(&self) -> u32 {
        let major = self.version.rsplit(' ').next().and_then(|version| version.split('.').next());
        major.and_then(|major| major.parse().ok()).unwrap_or(4)
    }

    fn point_to_point(&self, series: &Series, sizes: &[u64], window: u64, seconds: f64) -> Command {
        let route = series.route;
        // The start is measured with Open MPI's defaults and all of its transports.
        let mut command = self.mpirun(if series.test == Test::Start { "" } else { route.btl });
        if route.staged {
            command.args(["--mca", "pml_cableway_device_ipc", "no"]);
        }
        if route.copier {
            command.args(["--mca", "pml_cableway_device_copier", "yes"]);
        }
        let list = list(sizes.iter().copied());
        command.arg(&self.point_to_point).args([&series.test.to_string(), &list, &seconds.to_string()]);
        command.args([&window.to_string(), route.name]);
        if route.on_device() {
            command.args(route.memory.map(|memory| memory.to_string()));
            command.args(route.shape.words());
        }
        command
    }

    /// Measures a collective operation. `memory` is the place that the program of collectives reads: `host`, `device`, or
    /// one of NCCL's. The environment gets `variables`.
    pub(super) fn collective(
        &self,
        series: &Series,
        memory: &str,
        seconds: f64,
        variables: &[(&str, &str)],
    ) -> Result<Vec<Sample>, Error> {
        let Some(program) = &self.collectives else {
            return Err(Error::Missing("built without devices, and so without the program of collectives".into()));
        };
        let operation = series.test.to_string();
        let list = list(series.sizes.iter().copied());
        let mut command = self.mpirun(series.route.btl);
        command.envs(variables.iter().copied()).arg(program);
        command.args([memory, &seconds.to_string(), &list, &operation]);
        Ok(times_of(&operation, &output_of(&mut command)?))
    }
}

/// Reads lines as the program of collectives prints them: operation, bytes, microseconds.
fn times_of(operation: &str, lines: &str) -> Vec<Sample> {
    let time = |line: &str| {
        let mut words = line.split_whitespace();
        let size = (words.next()? == operation).then(|| words.next())??.parse().ok()?;
        Some(Sample { size, value: words.next()?.parse().ok()? })
    };
    lines.lines().filter_map(time).collect()
}

impl Contender for OpenMpi {
    fn name(&self) -> &'static str {
        match self.pml {
            Pml::Ob1 => "ob1",
            Pml::Cableway(_) => "cableway-mpi",
        }
    }

    fn describe(&self) -> Description {
        let home = std::env::var("HOME").unwrap_or_default();
        Description { version: self.version.clone(), command: without_home(&shown(&self.mpirun("sm")), &home) }
    }

    /// Without Cableway's component, device memory crashes it. MPI's own puts and gets are calls of windows, and it has no
    /// active messages.
    fn takes(&self, series: &Series) -> bool {
        let (device, collective) = (series.route.on_device(), series.test.is_collective());
        let able = !series.test.is_one_sided() && (!collective || self.collectives.is_some());
        able && (!device || matches!(self.pml, Pml::Cableway(_)))
    }

    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error> {
        if series.test.is_collective() {
            let memory = if series.route.on_device() { "device" } else { "host" };
            return self.collective(series, memory, seconds, &[]);
        }
        let mut samples = Vec::new();
        for (sizes, window) in series.runs() {
            samples.extend(samples_of(&output_of(&mut self.point_to_point(series, sizes, window, seconds))?));
        }
        Ok(samples)
    }

    /// NetPIPE's ping-pong over the same MPI, to check the other program's latency.
    fn remarks(&self, btls: &BTreeSet<&str>) -> Vec<String> {
        let name = self.name();
        if !is_on_path(NET_PIPE) {
            return vec![format!(
                "NetPIPE over {name}: left out, there is no {NET_PIPE} (apt-get install netpipe-openmpi)"
            )];
        }
        let remark = |btl: &&str| {
            let mut command = self.mpirun(btl);
            command.args([NET_PIPE, "-l", "8", "-u", "8", "-p", "0", "-n", "20000", "-o", "/dev/null"]);
            match net_pipe(&mut command) {
                Ok(latency) => format!("NetPIPE over {name}, {btl}: 8 B latency {latency:.2} us"),
                Err(error) => format!("NetPIPE over {name}, {btl}: not measured ({error})"),
            }
        };
        btls.iter().map(remark).collect()
    }
}

/// A folder in which Open MPI finds the component under its names.
fn lay_out(object: &Path) -> Result<PathBuf, Error> {
    let folder = cache().join("components");
    let lay = |name: &str| {
        let link = folder.join(name);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(object.canonicalize()?, &link)
    };
    std::fs::create_dir_all(&folder)
        .and_then(|()| ["mca_pml_cableway.so", "mca_coll_cableway.so"].into_iter().try_for_each(lay))
        .map_err(|source| Error::Write { path: folder.clone(), source })?;
    Ok(folder)
}

/// The latency that NetPIPE prints, as in `  0:   8 bytes 20000 times -->   80.47 Mbps in   0.76 usec`, in us.
fn net_pipe(command: &mut Command) -> Result<f64, Error> {
    let shown = shown(command);
    // It reports on standard error.
    let output = command.output().map_err(|source| Error::Start { program: NET_PIPE.into(), source })?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    latency_in(&said).ok_or(Error::NoFigure { command: shown, said })
}

fn latency_in(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains("-->"))?;
    line.rsplit_once(" in ")?.1.split_whitespace().next()?.parse().ok()
}

/// A command in a readable form.
fn without_home(command: &str, home: &str) -> String {
    if home.len() > 1 { command.replace(home, "~") } else { command.to_owned() }
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

    #[test]
    fn times_of_collectives_are_read() {
        let said = "a warning\nallreduce                     8        12.25  (100 calls)\nbcast 8 3.5 (7 calls)\n";
        let times: Vec<_> = times_of("allreduce", said).iter().map(|sample| (sample.size, sample.value)).collect();
        assert_eq!(times, [(8, 12.25)]);
    }

    #[test]
    fn a_report_tells_nobodys_home() {
        assert_eq!(
            without_home("mpirun --path /users/one/.cache:/usr/lib", "/users/one"),
            "mpirun --path ~/.cache:/usr/lib"
        );
        for nothing in ["", "/"] {
            assert_eq!(without_home("mpirun /usr", nothing), "mpirun /usr");
        }
    }
}
