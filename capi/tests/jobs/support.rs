//! Helpers of the tests: compile programs, start jobs, and wait for them with a limit.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cableway::launcher::Launcher;
use libtest_mimic::Failed;

/// The name of a test and its function, which panics to fail.
pub(crate) type Test = (&'static str, fn());

pub(crate) fn run(test: fn()) -> Result<(), Failed> {
    catch_unwind(AssertUnwindSafe(test)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Failed::from(text.unwrap_or("panicked"))
    })
}

/// The first argument of this executable as a launcher. The number of ranks, whether the others go on when one fails,
/// and the program with its arguments follow.
pub(crate) const LAUNCH: &str = "launch";

pub(crate) fn launch() -> ExitCode {
    let mut arguments = std::env::args_os().skip(2);
    let mut next = || arguments.next().expect("the tests pass all arguments");
    let ranks = next().to_string_lossy().parse().expect("a number of ranks");
    let keep_going = next() == "yes";
    let program = next();
    let ended = Launcher::new(ranks, program).arguments(arguments).keep_going(keep_going).run();
    ended.map_or_else(|error| ExitCode::from(error.exit_code()), ExitCode::from)
}

/// Returns the file of this repository.
pub(crate) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the folder of `libcableway.so`: that of the profile, above the one of this executable.
pub(crate) fn library_folder() -> PathBuf {
    let here = std::env::current_exe().expect("this process has an executable");
    let folder = here.ancestors().nth(2).expect("cargo places tests in a folder of the profile's");
    let library = folder.join("libcableway.so");
    assert!(library.is_file(), "there is no {}, or its link leads nowhere", library.display());
    folder.to_owned()
}

/// A language, by its compiler, and the options that make it strict.
#[derive(Clone, Copy)]
pub(crate) struct Language {
    pub(crate) compiler: &'static str,
    pub(crate) standard: &'static str,
}

pub(crate) const C: Language = Language { compiler: "cc", standard: "-std=c99" };
pub(crate) const CPP: Language = Language { compiler: "c++", standard: "-std=c++11" };

impl Language {
    /// Returns the strict compiler, or `None` if the machine has none.
    pub(crate) fn compile(self) -> Option<Command> {
        if !has(self.compiler) {
            skip(&format!("there is no {}, the compiler of the programs", self.compiler));
            return None;
        }
        let mut command = Command::new(self.compiler);
        command.args([self.standard, "-Wall", "-Wextra", "-Wshadow", "-Werror", "-pedantic", "-O1", "-g", "-pthread"]);
        command.args(["-D_POSIX_C_SOURCE=200809L", "-I"]).arg(file("include"));
        Some(command)
    }
}

/// Checks whether the machine has a command.
pub(crate) fn has(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok()
}

/// Returns the executable of a program's source, or `None` if the machine has no compiler for it.
pub(crate) fn program(source: &str) -> Option<PathBuf> {
    let language = if source.ends_with(".cc") { CPP } else { C };
    let mut compile = language.compile()?;
    let folder = library_folder();
    let name = Path::new(source).file_name().expect("a file").to_string_lossy().into_owned();
    // Other tests may build the same file at the same time.
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.program"));
    let unique = format!("{}.{}.{:?}", built.display(), std::process::id(), std::thread::current().id());
    compile.arg(file(source)).arg("-o").arg(&unique).arg("-L").arg(&folder);
    compile.args(["-lcableway", "-ldl"]).arg(format!("-Wl,-rpath,{}", folder.display()));
    let text = std::fs::read_to_string(file(source)).expect("the program is there");
    if text.contains("-l:libcuda.so.1") {
        if !real_driver() {
            let folder = sim_cuda::Vendor::Nvidia.folder().expect("sim-cuda is built with the tests that use it");
            compile.arg("-L").arg(&folder).arg(format!("-Wl,-rpath,{}", folder.display()));
        }
        compile.arg("-l:libcuda.so.1");
    }
    let output = compile.output().expect("the compiler is there");
    assert!(output.status.success(), "{compile:?}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&unique, &built).expect("both are in one folder");
    Some(built)
}

/// Returns whether the programs use the machine's driver.
fn real_driver() -> bool {
    std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some_and(|value| value == "1")
}

/// A job of a program.
pub(crate) struct Job<'a> {
    /// 0: one process without a launcher.
    pub(crate) ranks: u32,
    pub(crate) source: &'a str,
    pub(crate) arguments: &'static [&'static str],
    /// Parameters, by the names of their variables.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// Whether the other ranks go on when one fails.
    pub(crate) keep_going: bool,
}

impl<'a> Job<'a> {
    pub(crate) const fn new(ranks: u32, source: &'a str) -> Job<'a> {
        Job { ranks, source, arguments: &[], variables: &[], keep_going: false }
    }

    /// Runs the job to its end. Returns `None` if the program cannot be compiled here.
    pub(crate) fn run(&self) -> Option<Finished> {
        let program = program(self.source)?;
        let mut command = match self.ranks {
            0 => Command::new(program),
            ranks => {
                let mut launcher = Command::new(std::env::current_exe().expect("this process has an executable"));
                launcher.args([LAUNCH, &ranks.to_string(), if self.keep_going { "yes" } else { "no" }]).arg(program);
                launcher
            }
        };
        command.args(self.arguments);
        let inherited: Vec<OsString> = std::env::vars_os().map(|(name, _)| name).collect();
        for name in inherited.iter().filter(|name| name.to_string_lossy().starts_with("CABLEWAY_")) {
            command.env_remove(name);
        }
        // Nothing is measured or stored in a home folder.
        command.env("CABLEWAY_COSTS", "default");
        // The programs use the driver of this vendor, whichever one other tests are about.
        if !real_driver() {
            let folder = sim_cuda::Vendor::Nvidia.folder();
            command.env("CABLEWAY_CUDA_LIBDIR", folder.expect("sim-cuda is built with the tests that use it"));
        }
        command.envs(self.variables.iter().copied());
        Some(finish(command))
    }

    /// Runs the job, all of whose ranks must say that they are done.
    pub(crate) fn succeeds(&self) {
        if let Some(finished) = self.run() {
            finished.assert_done(self.ranks.max(1));
        }
    }
}

/// A finished process: its status and output.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) fn done(&self) -> u32 {
        self.stdout.matches("done\n").count() as u32
    }

    pub(crate) fn assert_done(&self, ranks: u32) {
        assert!(self.status.success() && self.done() == ranks, "{self:#?}");
    }
}

/// Only a hang takes so long. No test waits for this to pass.
const HANG: Duration = Duration::from_secs(600);

fn finish(mut command: Command) -> Finished {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let read = |stream: Option<Box<dyn std::io::Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stream.expect("the stream is a pipe").read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(child.stdout.take().map(|stream| Box::new(stream) as _));
    let stderr = read(child.stderr.take().map(|stream| Box::new(stream) as _));
    let status = wait(&mut child);
    let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    let status = status.unwrap_or_else(|| panic!("{command:?}: still running after {HANG:?}\n{stdout}\n{stderr}"));
    Finished { status, stdout, stderr }
}

/// Waits for a process. Ends it after the limit; its ranks end with it.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let end = Instant::now() + HANG;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Prints the reason why a test is skipped.
pub(crate) fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}
