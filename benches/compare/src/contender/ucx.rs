//! UCX's own `ucx_perftest`, from the wheel that PyPI carries: the fastest host peer, though it is no MPI.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::build::cache;
use super::contract::{Contender, Description, Place, Sample};
use crate::error::Error;
use crate::plan::{Series, Test};
use crate::process::{bounded, output_of, shown};
use crate::route::{self, Memory, Route, Shape};

const VERSION: &str = "1.22.0";

pub(super) struct Ucx {
    place: Place,
    root: PathBuf,
    /// Messages a second that earlier runs reached, to fill the time that the next is to take.
    rates: RefCell<HashMap<(Test, &'static str, u64), f64>>,
}

impl Ucx {
    pub(super) fn find(place: Place) -> Result<Self, Error> {
        let root = cache().join(format!("ucx-{VERSION}"));
        if !root.join("libucx/bin/ucx_perftest").exists() {
            fetch(&root)?;
        }
        let ucx = Ucx { place, root, rates: RefCell::default() };
        output_of(ucx.command("ucx_info", &route::SM).arg("-v"))?;
        Ok(ucx)
    }

    fn command(&self, program: &str, route: &Route) -> Command {
        let library = self.root.join("libucx/lib");
        let mut command = bounded(self.root.join("libucx/bin").join(program));
        command
            .env("LD_LIBRARY_PATH", format!("{}:{}", library.display(), self.root.join("libucx_cu13.libs").display()));
        command.env("UCX_MODULE_DIR", library.join("ucx"));
        match (route.btl, route.on_device(), route.staged) {
            ("sm", false, _) => command.env("UCX_TLS", "posix,cma,self"),
            ("sm", true, true) => command.env("UCX_TLS", "sm,cuda_copy,self"),
            ("sm", true, false) => command.env("UCX_TLS", "sm,cuda_copy,cuda_ipc,self"),
            (_, false, _) => command.env("UCX_TLS", "tcp,self").env("UCX_NET_DEVICES", "lo"),
            (_, true, _) => command.env("UCX_TLS", "tcp,cuda_copy,self").env("UCX_NET_DEVICES", "lo"),
        };
        command
    }

    /// One side of a measurement: its own device is the only one that it sees.
    fn perftest(&self, route: &Route, side: usize) -> Command {
        let mut command = self.command("ucx_perftest", route);
        if let Memory::Device(index) | Memory::PageLocked(index) = route.memory[side] {
            command.env("CUDA_VISIBLE_DEVICES", index.to_string());
        }
        command
    }

    /// One size. The server says when it listens; the client prints the figures.
    fn size(&self, series: &Series, size: u64, seconds: f64) -> Result<Sample, Error> {
        let port = free_port()?;
        let mut server = Server::start(self.perftest(series.route, 1), self.place.cores[0], port)?;
        let mut client = self.perftest(series.route, 0);
        let messages = self.messages(series, size, seconds);
        client.args(["127.0.0.1", "-f", "-v", "-t", name_of(series.test), "-s", &size.to_string()]);
        if series.test.is_one_sided() {
            // Its own number differs. One test of gets serves both latency and rate.
            client.args(["-O", &series.test.window(size).to_string()]);
        }
        client.args(["-n", &messages.to_string(), "-w", &(messages / 10 + 1).to_string()]);
        if series.route.on_device() {
            let kinds = series.route.memory.map(|memory| if memory.on_device() { "cuda" } else { "host" });
            client.args(["-m", &kinds.join(",")]);
        }
        client.args(["-c", &self.place.cores[1].to_string(), "-p", &port.to_string()]);
        let printed = output_of(&mut client)?;
        server.wait();

        let figures =
            Figures::read(&printed).ok_or_else(|| Error::NoFigure { command: shown(&client), said: printed })?;
        self.rates.borrow_mut().insert((series.test, series.route.name, size), 1e6 / figures.microseconds);
        let value = match series.test {
            test if test.is_rate() => figures.rate,
            Test::Bandwidth => size as f64 / figures.microseconds,
            _ => figures.microseconds,
        };
        Ok(Sample { size, value })
    }

    /// How many messages fill the time; a guess for a first run.
    fn messages(&self, series: &Series, size: u64, seconds: f64) -> u64 {
        let known = self.rates.borrow().get(&(series.test, series.route.name, size)).copied();
        let guess = match (series.route.on_device(), series.route.btl) {
            (true, _) => 2e10 / (size as f64 + 4e5),
            (false, "sm") => 5e9 / (size as f64 + 1e3),
            (false, _) => 5e8 / (size as f64 + 1e3),
        };
        let rate = known.unwrap_or(guess);
        ((rate * seconds) as u64).max(10)
    }
}

impl Contender for Ucx {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn describe(&self) -> Description {
        let variables = "UCX_TLS=posix,cma,self (sm) or UCX_TLS=tcp,self UCX_NET_DEVICES=lo (tcp), devices: cuda_copy and, where not staged, cuda_ipc besides;";
        let command = format!("{variables} ucx_perftest -t TEST -c CORE");
        Description { version: format!("UCX {VERSION} (wheel libucx-cu13)"), command }
    }

    /// Its datatypes are not those of a device, and it uses no device beside its messages.
    fn takes(&self, series: &Series) -> bool {
        let route = series.route;
        series.test.needs_no_mpi() && route.shape == Shape::Contiguous && !route.beside_devices()
    }

    fn measure(&self, series: &Series, seconds: f64) -> Result<Vec<Sample>, Error> {
        series.sizes.iter().map(|size| self.size(series, *size, seconds)).collect()
    }
}

fn name_of(test: Test) -> &'static str {
    match test {
        Test::MessageRate | Test::Bandwidth => "tag_bw",
        Test::Put => "ucp_put_lat",
        Test::Get | Test::GetRate => "ucp_get",
        Test::Am => "ucp_am_lat",
        Test::PutRate => "ucp_put_bw",
        Test::AmRate => "ucp_am_bw",
        _ => "tag_lat",
    }
}

/// Takes the wheel from the registry, once.
fn fetch(root: &Path) -> Result<(), Error> {
    let missing = |error| Error::Missing(format!("needs the wheel libucx-cu13 {VERSION}, which pip brings: {error}"));
    let wheels = root.join("wheel");
    std::fs::create_dir_all(&wheels).map_err(|source| Error::Write { path: wheels.clone(), source })?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "-q", "--no-deps", "-d"]).arg(&wheels).arg(format!("libucx-cu13=={VERSION}"));
    output_of(&mut pip).map_err(missing)?;
    let entries = std::fs::read_dir(&wheels).into_iter().flatten().flatten().map(|entry| entry.path());
    for wheel in entries.filter(|path| path.extension().is_some_and(|extension| extension == "whl")) {
        output_of(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(root)).map_err(missing)?;
    }
    // Unpacked by Python, programs have lost their mode.
    for program in ["ucx_perftest", "ucx_info"] {
        let path = root.join("libucx/bin").join(program);
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, executable).map_err(|source| Error::Write { path, source })?;
    }
    Ok(())
}

fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|source| Error::Start { program: "ucx_perftest".into(), source })
}

/// The listening side; ended when dropped.
struct Server(Child);

impl Server {
    /// Returns once it listens.
    fn start(mut command: Command, core: u32, port: u16) -> Result<Self, Error> {
        command.args(["-q", "-c", &core.to_string(), "-p", &port.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let failed = |source| Error::Start { program: "ucx_perftest".into(), source };
        let mut server = Server(command.spawn().map_err(failed)?);
        let limit = Instant::now() + Duration::from_secs(10);
        while !listening(port) {
            if server.0.try_wait().map_err(failed)?.is_some() || Instant::now() > limit {
                return Err(Error::NoFigure { command: shown(&command), said: "it does not listen".into() });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn wait(&mut self) {
        // How it ended does not matter once the client has its figures.
        let _ = self.0.wait();
    }
}

/// Seen in the kernel's table: connecting to find out would be taken for the client.
fn listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let suffix = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .any(|columns| columns.get(1).is_some_and(|local| local.ends_with(&suffix)) && columns.get(3) == Some(&LISTEN))
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM, because `timeout` hands it on to the server; a process that has been waited for is not signalled.
        if let Ok(None) = self.0.try_wait()
            && let Some(pid) = Pid::from_raw(self.0.id() as i32)
        {
            let _ = kill_process(pid, Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

/// The columns of interest of its comma-separated output.
struct Figures {
    /// Of one message: half a round trip for latencies, the interval for bandwidths.
    microseconds: f64,
    rate: f64,
}

impl Figures {
    fn read(printed: &str) -> Option<Self> {
        let mut lines = printed.lines().skip_while(|line| !line.starts_with("iterations,"));
        let names: Vec<&str> = lines.next()?.split(',').collect();
        let values: Vec<&str> = lines.next()?.split(',').collect();
        let value = |name| {
            let column = names.iter().position(|column| *column == name)?;
            values.get(column)?.trim().parse::<f64>().ok()
        };
        Some(Figures { microseconds: value("overall_lat")?, rate: value("overall_mr")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_port_is_seen() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listening(port));
        drop(listener);
        assert!(!listening(port));
    }

    #[test]
    fn perftest_is_read() {
        let printed = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
            20000,6.459,6.535,6.535,9564.47,9564.47,153032,153032\n";
        let figures = Figures::read(printed).unwrap();
        assert_eq!((figures.microseconds, figures.rate), (6.535, 153032.0));
        assert!(Figures::read("Waiting for connection...\n").is_none());
    }
}
