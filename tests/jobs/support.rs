//! Helpers of the tests: find the command, start jobs, and wait for them with a limit.

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The name of a test and its function, which panics to fail.
pub(crate) type Test = (&'static str, fn());

/// The name of a role and its function. An error ends the rank with exit code 1.
pub(crate) type Role = (&'static str, fn() -> Result<(), Box<dyn std::error::Error>>);

pub(crate) fn run(test: fn()) -> Result<(), Failed> {
    catch_unwind(AssertUnwindSafe(test)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Failed::from(text.unwrap_or("panicked"))
    })
}

pub(crate) fn play(name: &str, roles: &[Role]) -> ExitCode {
    let Some((_, role)) = roles.iter().find(|(known, _)| *known == name) else {
        eprintln!("no role '{name}'");
        return ExitCode::from(2);
    };
    match role() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the command under test: `CABLEWAY_BIN`, else the one beside this executable, or in a folder above, as cargo
/// places it.
pub(crate) fn cableway() -> Command {
    let mut command = Command::new(std::env::var_os("CABLEWAY_BIN").map_or_else(find_beside, PathBuf::from));
    let ours = |name: &str| name.starts_with("CABLEWAY_") && name != "CABLEWAY_TEST_VENDOR";
    for (name, _) in std::env::vars().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    // Nothing is measured or stored in a home folder, unless a test is about it.
    command.env("CABLEWAY_COSTS", "default");
    command.env(cableway::FOR_TESTS, "");
    command
}

fn find_beside() -> PathBuf {
    let here = std::env::current_exe().expect("this process has an executable");
    let found = here.ancestors().skip(1).take(2).map(|folder| folder.join("cableway")).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("no cableway beside {}; name it in CABLEWAY_BIN", here.display()))
}

/// Returns the transports under test: those of every machine, or the ones that CABLEWAY_TEST_TRANSPORTS names.
pub(crate) fn transports() -> Vec<String> {
    let named = std::env::var("CABLEWAY_TEST_TRANSPORTS").unwrap_or_else(|_| "sm,tcp".to_owned());
    named.split(',').map(str::to_owned).collect()
}

/// Returns the options of a job over one transport. The peer timeout is much longer than [`SOON`], so an end that is
/// detected earlier was detected by an event.
pub(crate) fn over(btl: &str) -> Vec<String> {
    vec!["--set".to_owned(), format!("btl={btl}"), "--set".to_owned(), PATIENT.to_owned()]
}

/// The job's option for that.
pub(crate) const PATIENT: &str = "peer_timeout=1200s";

/// The time limit within a rank for detecting a peer's end, also on a busy or emulated machine.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// Only a hang takes so long. No test waits for this to pass.
pub(crate) const HANG: Duration = Duration::from_secs(600);

/// Returns `cableway run -n RANKS OPTIONS -- ...`. The caller adds the program.
pub(crate) fn job(ranks: u32, options: &[&str]) -> Command {
    let mut command = cableway();
    command.arg("run").args(["-n", &ranks.to_string()]).args(options).arg("--");
    command
}

/// Returns a job of shells.
pub(crate) fn shell_job(ranks: u32, options: &[&str], script: &str) -> Command {
    let mut command = job(ranks, options);
    command.args(["sh", "-c", script]);
    command
}

/// Returns a job whose ranks play a role.
pub(crate) fn role_job(ranks: u32, options: &[&str], role: &str) -> Command {
    let mut command = job(ranks, options);
    command.args(this(role));
    command
}

/// Returns the command line of this executable in a role.
pub(crate) fn this(role: &str) -> [String; 2] {
    let here = std::env::current_exe().expect("this process has an executable");
    [here.to_string_lossy().into_owned(), format!("role={role}")]
}

/// A running process whose output is collected.
pub(crate) struct Running {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

/// A finished process: its status and output.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    pub(crate) fn assert_success(self) -> Self {
        assert!(self.status.success(), "{self:#?}");
        self
    }
}

pub(crate) fn start(command: &mut Command) -> Running {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    Running { child, stdout, stderr }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Runs to the end, without input.
pub(crate) fn finish(command: &mut Command) -> Finished {
    start(command.stdin(Stdio::null())).finish()
}

/// Runs to the end with this input.
pub(crate) fn finish_with_input(command: &mut Command, input: &str) -> Finished {
    let mut running = start(command.stdin(Stdio::piped()));
    let mut stdin = running.child.stdin.take().expect("stdin is a pipe");
    stdin.write_all(input.as_bytes()).expect("the process reads its input");
    drop(stdin);
    running.finish()
}

impl Running {
    pub(crate) fn finish(mut self) -> Finished {
        let mut status = None;
        let in_time = eventually(|| {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        if !in_time {
            self.signal(Signal::KILL);
        }
        let text = |thread: Option<JoinHandle<String>>| thread.and_then(|t| t.join().ok()).unwrap_or_default();
        let (stdout, stderr) = (text(self.stdout.take()), text(self.stderr.take()));
        let status = status.unwrap_or_else(|| panic!("still running after {HANG:?}\n{stdout}\n{stderr}"));
        Finished { status, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process can be signalled");
    }
}

/// Waits until `condition` holds, and returns whether it does in time.
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + HANG;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Returns the processes whose command line contains `marker`, with their state as in /proc/PID/stat, including
/// zombies.
pub(crate) fn processes_with(marker: &str) -> Vec<(u32, char)> {
    let folders = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = folders.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| pid != std::process::id())
        .filter_map(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let state = stat.rsplit_once(") ")?.1.chars().next()?;
            String::from_utf8_lossy(&command).contains(marker).then_some((pid, state))
        })
        .collect()
}

/// Returns a number of seconds that no other process sleeps. It exceeds [`HANG`], and [`processes_with`] finds it.
pub(crate) fn long_sleep() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("1999.{}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the option that names the folder of the tested vendor's driver.
pub(crate) fn libdir_option() -> &'static str {
    match sim_cuda::Vendor::tested() {
        sim_cuda::Vendor::Nvidia => "--cuda-libdir",
        sim_cuda::Vendor::Amd => "--hip-libdir",
    }
}

/// Returns the kinds of memory that Cableway allocates on devices of the tested vendor.
pub(crate) fn kinds() -> Vec<cableway::BufferKind> {
    match sim_cuda::Vendor::tested() {
        sim_cuda::Vendor::Nvidia => cableway::BufferKind::ALL.to_vec(),
        sim_cuda::Vendor::Amd => vec![
            cableway::BufferKind::Device,
            cableway::BufferKind::Pool,
            cableway::BufferKind::Managed,
            cableway::BufferKind::Pinned,
        ],
    }
}

/// A folder without a device driver.
pub(crate) const NO_DRIVER: &str = "/nonexistent";

/// Runs jobs over every transport, with host memory only and with device memory, too.
pub(crate) fn with_every_driver(ranks: u32, role: &str) {
    let driver = Driver::find().options();
    for btl in transports() {
        let mut options = over(&btl);
        let without: Vec<&str> = options.iter().map(String::as_str).collect();
        finish(role_job(ranks, &without, role).env("CABLEWAY_CUDA_LIBDIR", NO_DRIVER)).assert_success();
        options.extend_from_slice(&driver);
        let with: Vec<&str> = options.iter().map(String::as_str).collect();
        finish(&mut role_job(ranks, &with, role)).assert_success();
    }
}

/// The device driver that tests use.
pub(crate) struct Driver {
    pub(crate) folder: PathBuf,
    pub(crate) simulated: bool,
    /// The number of its devices.
    pub(crate) devices: u64,
}

impl Driver {
    pub(crate) fn find() -> Self {
        let folder = sim_cuda::library_folder().expect("a driver lies beside the tests or in CABLEWAY_CUDA_LIBDIR");
        let info = finish(cableway().args(["info", "--format", "json", libdir_option()]).arg(&folder)).assert_success();
        let info: Value = serde_json::from_str(&info.stdout).expect("info prints an object");
        let simulated = info["driver"]["simulated"].as_bool().expect("the driver was found");
        let devices = info["devices"].as_array().map_or(0, Vec::len) as u64;
        Driver { folder, simulated, devices }
    }

    /// Returns the options of a job that uses the driver.
    pub(crate) fn options(&self) -> Vec<String> {
        vec![libdir_option().to_owned(), self.folder.to_string_lossy().into_owned()]
    }
}

/// Runs the command with a terminal as its input, output and error output, under `script`. Returns `None` if that is
/// not installed.
pub(crate) fn on_terminal(command: &Command) -> Option<Command> {
    if Command::new("script").arg("--version").output().is_err() {
        skip("script (Debian: bsdutils) is not installed, so that there is no terminal");
        return None;
    }
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| format!("'{}'", word.to_string_lossy())).collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["-qefc", &line, "/dev/null"]);
    Some(script)
}

/// Prints the reason why a test is skipped.
pub(crate) fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}
