//! Runs MPI programs under the machine's own, unmodified Open MPI with the component under test.
//!
//! Cargo builds the component beside these tests. A folder holds it as an installation would, and `mpirun` searches
//! this folder first. The programs are the C files in `tests/programs`, built by the machine's `mpicc`.

#![allow(dead_code)] // each test file uses its part

pub(crate) mod clang;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use test_nodes::{collect, wait_for};

/// The names under which Open MPI finds the components in the object file.
pub(crate) const NAMES: &[&str] = &["mca_pml_cableway.so", "mca_coll_cableway.so", "mca_osc_cableway.so"];
/// One more name, if Open MPI has the accelerator framework.
const ACCELERATOR: &str = "mca_accelerator_cableway.so";

/// Returns a folder with the component under test, under all its names.
pub(crate) fn components() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = scratch().join(format!("components-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("cargo's folder for tests can be written");
        for name in NAMES.iter().copied().chain((major_version() >= 5).then_some(ACCELERATOR)) {
            let link = folder.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(object(), &link).expect("a link can be made");
        }
        folder
    })
}

/// Returns the object file under test, which cargo builds beside the tests.
pub(crate) fn object() -> PathBuf {
    let here = std::env::current_exe().expect("this process has an executable");
    let object = here.with_file_name("libcableway_ompi.so");
    assert!(object.is_file(), "there is no {}", object.display());
    object
}

/// Returns the preload library, which cargo builds there, too.
pub(crate) fn preloaded() -> PathBuf {
    let library = object().with_file_name("libcableway_mpi.so");
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

/// Returns a folder for files of tests.
pub(crate) fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Returns the executable of `tests/programs/NAME.c`, or of `mp_NAME.cc`. Builds it if it is older than the source. Programs whose names begin
/// with `streams` are linked with the library of stream extensions, `mp` and those with `mp_` with that of LibMP's calls.
pub(crate) fn program(name: &str) -> PathBuf {
    let source = format!("{name}.c");
    if name.starts_with("streams") {
        linked_with_streams(name, &source, &[])
    } else if name == "mp" || name.starts_with("mp_") {
        // Its helpers are those of the stream extensions.
        let streams = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/mpix/include");
        if Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.cc")).is_file() {
            // It needs the compiler for C++, but not its library, nor MPI's.
            let more = ["-std=c++11", "-fno-exceptions", "-fno-rtti", "-DOMPI_SKIP_MPICXX", streams, "-rdynamic"];
            return linked_with_mp(name, &format!("{name}.cc"), &more);
        }
        linked_with_mp(name, &source, &[streams, "-rdynamic"])
    } else {
        build(name, &source, &["-rdynamic"])
    }
}

/// Returns what [`build`] makes with the library of stream extensions and more flags.
pub(crate) fn linked_with_streams(file: &str, source: &str, more: &[&str]) -> PathBuf {
    let folder = object().parent().expect("a folder").to_owned();
    let profile = folder.parent().expect("cargo's folder of the profile");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/mpix/include");
    let (search, run) = (format!("-L{}", folder.display()), format!("-Wl,-rpath,{}", profile.display()));
    build(file, source, &[&[include, &search, "-lcableway_mpix", &run], more].concat())
}

/// Returns what [`build`] makes with the library of LibMP's calls and more flags.
pub(crate) fn linked_with_mp(file: &str, source: &str, more: &[&str]) -> PathBuf {
    let folder = object().parent().expect("a folder").to_owned();
    let profile = folder.parent().expect("cargo's folder of the profile");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/mp/include");
    let (search, run) = (format!("-L{}", folder.display()), format!("-Wl,-rpath,{}", profile.display()));
    build(file, source, &[&[include, &search, "-lcableway_mp", &run], more].concat())
}

/// Returns the file of this name that `mpicc` makes of a source in `tests/programs`. Builds it if it is older than the
/// source.
pub(crate) fn build(file: &str, source: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let built = scratch().join(file);
    let changed = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    // Programs of several files share folders.
    let folder = source.parent().expect("a folder");
    let inner = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = inner.filter(|path| path.is_dir()).chain([folder.to_owned()]);
    let files = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let newest = files.filter_map(|entry| changed(&entry.path())).max();
    if changed(&built) < newest {
        std::fs::create_dir_all(built.parent().expect("a folder")).expect("cargo's folder for tests can be written");
        // Other tests may build the same file at the same time.
        let fresh = format!("{}.{}.{:?}", built.display(), std::process::id(), std::thread::current().id());
        let mut mpicc = Command::new("mpicc");
        mpicc.args(["-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", "-o", &fresh]).arg(&source);
        mpicc.args(flags).arg("-ldl");
        let output = mpicc.output().unwrap_or_else(|error| panic!("{mpicc:?}: {error}"));
        assert!(output.status.success(), "{mpicc:?}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&fresh, &built).expect("both are in one folder");
    }
    built
}

/// Returns `mpirun` with this many ranks and the component selected. The caller adds the program and its arguments.
pub(crate) fn mpirun(ranks: u32) -> Command {
    let mut command = mpirun_as_is(ranks);
    command.args(["--mca", "pml", "cableway"]);
    command
}

/// Returns the same with Open MPI's own selection among all components, including the one under test.
pub(crate) fn mpirun_as_is(ranks: u32) -> Command {
    mpirun_with(ranks, components())
}

/// Returns the same with the components of a folder instead of those under test.
pub(crate) fn mpirun_with(ranks: u32, folder: &Path) -> Command {
    let mut command = Command::new("mpirun");
    clean(&mut command);
    use_own_temporary_folder(&mut command);
    // Nothing is measured or stored in a home folder.
    command.env("CABLEWAY_COSTS", "default");
    if major_version() < 5 {
        // With libevent's epoll, mpirun of Debian 12 (PMIx 4.2.2) sometimes misses a spawned process, which then waits
        // in MPI_Init forever, whatever carries its messages.
        command.env("EVENT_NOEPOLL", "1");
    }
    command.args(["--allow-run-as-root", "--oversubscribe", "-np", &ranks.to_string()]);
    command.args(["--mca", path_parameter(), &path_with(folder)]);
    command
}

/// Returns the program without `mpirun`, as a job of one rank. `mpirun` loses the last lines of processes that end with
/// an error, and their exit status.
pub(crate) fn singleton(program: &Path) -> Command {
    let mut command = Command::new(program);
    clean(&mut command);
    use_own_temporary_folder(&mut command);
    command.env("CABLEWAY_COSTS", "default");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env(format!("OMPI_MCA_{}", path_parameter()), component_path());
    command
}

/// The variable that names the folder for temporary files.
const TEMPORARY: &str = "TMPDIR";

/// Gives a launcher its own folder for temporary files. [`finish_within`] removes it.
///
/// Open MPI names its session's folder after the launcher's process id. `mpirun` of 5.0.7 (PRRTE 3.0.8) fails with
/// `PMIX_ERR_EXISTS` if a process that had the same id left its folder behind.
fn use_own_temporary_folder(command: &mut Command) {
    static LAUNCHERS: AtomicU32 = AtomicU32::new(0);
    let launcher = LAUNCHERS.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("cableway-mpi-{}-{launcher}", std::process::id()));
    // A test process that was killed may have had the same id.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
    command.env(TEMPORARY, folder);
}

/// Adds a program to an `mpirun` of this many ranks, and runs it. Returns what each rank wrote to stderr, which goes to
/// a file instead of `mpirun`.
pub(crate) fn run_apart(
    mpirun: &mut Command,
    ranks: u32,
    program: &Path,
    arguments: &[&str],
) -> (Finished, Vec<String>) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let folder = scratch().join(format!("stderr-{}-{run}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("cargo's folder for tests can be written");
    let script = format!("exec \"$0\" \"$@\" 2>'{}'/$OMPI_COMM_WORLD_RANK", folder.display());
    let finished = finish(mpirun.args(["sh", "-c", &script]).arg(program).args(arguments));
    let said =
        (0..ranks).map(|rank| std::fs::read_to_string(folder.join(rank.to_string())).unwrap_or_default()).collect();
    let _ = std::fs::remove_dir_all(folder);
    (finished, said)
}

/// 5.0's mpirun gives the short name, which PMIx uses, too, its own value on some distributions.
pub(crate) fn path_parameter() -> &'static str {
    if major_version() >= 5 { "opal_mca_base_component_path" } else { "mca_base_component_path" }
}

/// Returns the major version of the Open MPI that runs the tests.
pub(crate) fn major_version() -> u32 {
    static MAJOR: OnceLock<u32> = OnceLock::new();
    *MAJOR.get_or_init(|| {
        let output = Command::new("ompi_info").arg("--version").output().expect("ompi_info comes with mpirun");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = said.split_whitespace().find_map(|word| word.strip_prefix('v')?.split('.').next()?.parse().ok());
        number.unwrap_or_else(|| panic!("ompi_info names no version: {said}"))
    })
}

/// Removes parameters of Open MPI and Cableway from the caller's environment.
pub(crate) fn clean(command: &mut Command) {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("OMPI_") || name.starts_with("CABLEWAY_")) {
        command.env_remove(name);
    }
}

/// Returns the folders with components: the one under test, then Open MPI's own.
pub(crate) fn component_path() -> String {
    path_with(components())
}

/// Returns the path to the components of this folder and to Open MPI's own.
fn path_with(folder: &Path) -> String {
    static OWN: OnceLock<String> = OnceLock::new();
    let own = OWN.get_or_init(|| {
        let output = Command::new("ompi_info").args(["--path", "pkglibdir", "--parsable"]).output();
        let said = String::from_utf8_lossy(&output.expect("ompi_info comes with mpirun").stdout).into_owned();
        said.trim().rsplit(':').next().unwrap_or_default().to_owned()
    });
    format!("{}:{own}", folder.display())
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Finished {
    pub(crate) fn assert_success(self) -> Self {
        assert!(self.status.success(), "{}\n{}\n{}", self.status, self.stdout, self.stderr);
        self
    }
}

/// Runs `tests/programs/NAME.c` with this many ranks under the component, and checks that it succeeds.
pub(crate) fn run_program(ranks: u32, name: &str, arguments: &[&str]) -> Finished {
    finish(mpirun(ranks).arg(program(name)).args(arguments)).assert_success()
}

/// Only a hang takes so long. No test waits for this to pass.
pub(crate) const HANG: Duration = Duration::from_secs(600);

/// Runs a command to its end, without input.
pub(crate) fn finish(command: &mut Command) -> Finished {
    finish_within(command, HANG)
}

/// Runs a command to its end. A command that exceeds the limit is ended, and the test fails.
pub(crate) fn finish_within(command: &mut Command, limit: Duration) -> Finished {
    let began = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    let mut status = wait_for(&mut child, limit);
    if status.is_none() {
        // mpirun passes the signal on to its ranks.
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        if wait_for(&mut child, Duration::from_secs(10)).is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        status = None;
    }
    if let Some((_, Some(folder))) = command.get_envs().find(|(name, _)| *name == TEMPORARY) {
        let _ = std::fs::remove_dir_all(folder);
    }
    let text = |thread: Option<JoinHandle<String>>| thread.and_then(|t| t.join().ok()).unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    let status = status.unwrap_or_else(|| panic!("{command:?}: still running after {limit:?}\n{stdout}\n{stderr}"));
    Finished { status, stdout, stderr, took: began.elapsed() }
}

/// Debian's name of NetPIPE for Open MPI.
const NETPIPE: &str = "NPopenmpi";
pub(crate) const NO_NETPIPE: &str = "there is no NetPIPE (apt-get install netpipe-openmpi)";

pub(crate) fn has_netpipe() -> bool {
    Command::new("sh").args(["-c", &format!("command -v {NETPIPE}")]).output().is_ok_and(|found| found.status.success())
}

/// Runs NetPIPE's integrity check by an `mpirun` of two ranks, with messages up to `longest` bytes.
pub(crate) fn netpipe(mpirun: &mut Command, longest: usize, mode: &[&str], limit: Duration) {
    mpirun.arg(NETPIPE).args(["-i", "-n", "3", "-u", &longest.to_string(), "-o", "/dev/null"]).args(mode);
    let run = finish_within(mpirun, limit).assert_success();
    let said = run.stdout + &run.stderr;
    // The other rank's output may appear in the middle of a line.
    let (sizes, passed) = (said.matches(" times -->").count(), said.matches("Integrity check passed").count());
    assert!(sizes > 30 && passed == sizes, "{mode:?}, {passed} of {sizes}: {said}");
}

/// Prints why a test is skipped.
pub(crate) fn skip(reason: &str) {
    println!("skipped: {reason}");
}

/// Checks that a program on device memory left out no case: it printed at least so many checks.
pub(crate) fn assert_checked(run: &Finished, at_least: u64) {
    // Open MPI 5.0's launcher may put it behind a part of what the program wrote to its standard error.
    let line = run.stdout.lines().find_map(|line| Some(line.split_once("checks: ")?.1));
    let checks: u64 = line.and_then(|line| line.parse().ok()).unwrap_or(0);
    assert!(checks >= at_least, "{checks} checks, not {at_least}:\n{}", run.stdout);
}
