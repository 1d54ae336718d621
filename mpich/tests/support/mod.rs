//! Runs programs of MPICH with the library under test preloaded.
//!
//! Cargo builds the library beside these tests. The programs are the C files in `tests/programs`, which use some headers of
//! `ompi/tests/programs`, built by the machine's `mpicc.mpich`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use test_nodes::{collect, wait_for};

const LAUNCHER: &str = "mpiexec.hydra";
const COMPILER: &str = "mpicc.mpich";

/// Returns the reason why MPICH's programs cannot run here, if any.
pub(crate) fn missing() -> Option<String> {
    let found = |program: &str| {
        Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output()
            .is_ok_and(|said| said.status.success())
    };
    let missing = [LAUNCHER, COMPILER].into_iter().find(|program| !found(program))?;
    Some(format!("there is no {missing} (apt-get install mpich libmpich-dev)"))
}

/// Returns the library under test, which cargo builds beside the tests.
fn library() -> PathBuf {
    let here = std::env::current_exe().expect("this process has an executable");
    let library = here.with_file_name("libcableway_coll_mpich.so");
    assert!(library.is_file(), "there is no {}", library.display());
    library
}

/// Returns the folder of the driver for the tests: the one that `CABLEWAY_CUDA_LIBDIR` names, or the double's.
pub(crate) fn driver() -> PathBuf {
    match std::env::var_os("CABLEWAY_CUDA_LIBDIR") {
        Some(folder) => folder.into(),
        None => sim_cuda::library_folder().expect("sim-cuda is built with the tests that use it"),
    }
}

/// Returns the executable of `tests/programs/NAME.c`. Builds it if it is older than a source.
fn program(name: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ompi/tests/programs");
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mpich-{name}"));
    let changed = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    let folders = [own.clone(), shared.clone(), shared.join("collectives")];
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let newest = files.filter_map(|entry| changed(&entry.path())).max();
    if changed(&built) < newest {
        // Other tests may build the same file at the same time.
        let fresh = format!("{}.{}.{:?}", built.display(), std::process::id(), std::thread::current().id());
        let mut mpicc = Command::new(COMPILER);
        mpicc.args([
            "-O1",
            "-g",
            "-pthread",
            "-rdynamic",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
            &fresh,
        ]);
        mpicc.arg(own.join(format!("{name}.c"))).arg("-I").arg(&own).arg("-I").arg(&shared).arg("-ldl");
        let output = mpicc.output().unwrap_or_else(|error| panic!("{mpicc:?}: {error}"));
        assert!(output.status.success(), "{mpicc:?}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&fresh, &built).expect("both are in one folder");
    }
    built
}

/// A run of a program.
pub(crate) struct Run {
    command: Command,
    ranks: u32,
    name: &'static str,
    arguments: Vec<String>,
}

impl Run {
    /// Prepares a run with the library preloaded, on a machine that may have devices.
    pub(crate) fn new(ranks: u32, name: &'static str, arguments: &[&str]) -> Run {
        let mut command = Command::new(LAUNCHER);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CABLEWAY_") || name.starts_with("MPI")) {
            command.env_remove(name);
        }
        // Nothing is measured or stored in a home folder.
        command.env("CABLEWAY_COSTS", "default").env("CABLEWAY_CUDA_LIBDIR", driver());
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Run { command, ranks, name, arguments }
    }

    pub(crate) fn with(mut self, variable: &str, value: &str) -> Run {
        self.command.env(variable, value);
        self
    }

    pub(crate) fn without(mut self, variable: &str) -> Run {
        self.command.env_remove(variable);
        self
    }

    /// Has small calls of ranks that share a device change, too.
    pub(crate) fn with_small_calls(self) -> Run {
        self.with("CABLEWAY_TEST_INTERNAL", "1").with("CABLEWAY_COLL_SHARED_LIMIT", "0")
    }

    /// Runs the program to its end, and checks that it succeeds.
    pub(crate) fn finish(self) -> Finished {
        let Run { mut command, ranks, name, arguments } = self;
        command
            .args(["-n", &ranks.to_string(), "-genv", "LD_PRELOAD"])
            .arg(library())
            .arg(program(name))
            .args(arguments);
        let finished = finish_within(&mut command, HANG);
        assert!(finished.status.success(), "{}\n{}\n{}", finished.status, finished.stdout, finished.stderr);
        assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
        finished
    }
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Returns the number behind these words.
    pub(crate) fn number(&self, words: &str) -> u64 {
        let line = self.stdout.lines().find_map(|line| line.strip_prefix(words)?.strip_prefix(": "));
        line.and_then(|line| line.trim().parse().ok()).unwrap_or_else(|| panic!("no '{words}' in:\n{}", self.stdout))
    }
}

/// Only a hang takes so long. No test waits for this to pass.
const HANG: Duration = Duration::from_secs(600);

/// Runs a command to its end, without input. A command that exceeds the limit is ended, and the test fails.
fn finish_within(command: &mut Command, limit: Duration) -> Finished {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (child.stdout.take().map(collect), child.stderr.take().map(collect));
    let status = wait_for(&mut child, limit);
    if status.is_none() {
        // The launcher passes the signal on to its ranks.
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        if wait_for(&mut child, Duration::from_secs(10)).is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
    let text = |thread: Option<JoinHandle<String>>| thread.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    let status = status.unwrap_or_else(|| panic!("{command:?}: still running after {limit:?}\n{stdout}\n{stderr}"));
    Finished { status, stdout, stderr }
}

/// Returns whether this machine may have a device. Without a list of PCI devices it may.
pub(crate) fn may_have_device() -> bool {
    let files = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg", "/dev/kfd"];
    let devices = std::fs::read_to_string("/proc/bus/pci/devices").unwrap_or_default();
    let mut vendors = devices.lines().filter_map(|line| line.split_ascii_whitespace().nth(1)?.get(..4));
    devices.is_empty()
        || vendors.any(|vendor| ["10de", "1002"].contains(&vendor))
        || files.iter().any(|file| Path::new(file).exists())
}
