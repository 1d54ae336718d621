//! Starts the ranks of a job on this machine and supervises them until they end.
//!
//! - **Exit code**: 0, or that of the first rank that failed (128 + signal if it was killed). When a rank fails, the
//!   others get SIGTERM, and SIGKILL after [`Launcher::grace`]. [`Launcher::keep_going`] turns this off.
//! - **Signals**: SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT and SIGTSTP are forwarded to every rank.
//!   After SIGTSTP the launcher stops, too. A second SIGINT or SIGTERM kills the ranks.
//! - **Processes**: each rank leads a process group. All processes of the group are killed when the rank ends, and when
//!   the launcher ends, even by SIGKILL. Processes that a rank moved to another group or session are not killed.
//! - **Standard input** goes to rank 0. The standard input of other ranks is empty.
//! - **Output** is inherited, or forwarded line by line with the rank before each line.

mod cores;
mod output;
mod rank;
mod server;
mod signals;
mod supervisor;
mod watcher;

use std::ffi::OsString;
use std::time::Duration;

pub use cores::Bind;

/// An error in starting or supervising a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The program could not be started.
    #[error("rank {rank}: cannot start '{program}': {source}")]
    Start {
        /// The rank.
        rank: u32,
        /// The program.
        program: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Another system call failed.
    #[error("{what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl LaunchError {
    /// Returns the exit code that shells and `mpirun` use for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::Start { source, .. } if source.kind() == std::io::ErrorKind::NotFound => 127,
            LaunchError::Start { .. } => 126,
            LaunchError::System { .. } => 1,
        }
    }

    fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| LaunchError::System { what, source }
    }
}

/// A job to start: the program, the number of ranks and options.
///
/// The job runs in the calling thread. Ranks die with the thread that started them, so that thread must live as long as
/// the job.
#[derive(Clone, Debug)]
pub struct Launcher {
    ranks: u32,
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    bind: Bind,
    tag_output: bool,
    keep_going: bool,
    grace: Duration,
}

impl Launcher {
    /// Describes a job of `ranks` (at least 1) processes of `program`, which is searched for on `PATH`.
    pub fn new(ranks: u32, program: impl Into<OsString>) -> Self {
        Launcher {
            ranks: ranks.max(1),
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            bind: Bind::None,
            tag_output: false,
            keep_going: false,
            grace: Duration::from_secs(3),
        }
    }

    /// Sets the arguments of the program.
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable of the ranks. It replaces an inherited one of the same name.
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the processors that ranks may run on.
    pub fn bind(mut self, bind: Bind) -> Self {
        self.bind = bind;
        self
    }

    /// Sets whether each line of the ranks' output begins with `[rank] `.
    pub fn tag_output(mut self, tag: bool) -> Self {
        self.tag_output = tag;
        self
    }

    /// Sets whether the other ranks continue when one fails.
    pub fn keep_going(mut self, keep_going: bool) -> Self {
        self.keep_going = keep_going;
        self
    }

    /// Sets the time between SIGTERM and SIGKILL.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }
}
