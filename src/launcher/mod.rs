//! Starts the ranks of a job on this machine and stays with them until they have ended.
//!
//! - **Exit code**: 0, or that of the first rank that failed (128 + signal for one that was killed). The others are
//!   then told to end (SIGTERM), and killed after [`Launcher::grace`]; unless [`Launcher::keep_going`].
//! - **Signals**: SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT and SIGTSTP (after which the launcher
//!   stops, too) go on to every rank. A second SIGINT or SIGTERM kills.
//! - **Processes**: each rank leads a process group, of which nothing is left when the rank has ended, nor when the
//!   launcher has, even by SIGKILL. What a rank has put into a group or session of its own is on its own.
//! - **Standard input** goes to rank 0; other ranks read an empty one.
//! - **Output** is inherited, or passed on line by line with the rank before each line.

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

/// Why a job could not be started or supervised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The program does not run.
    #[error("rank {rank}: cannot start '{program}': {source}")]
    Start {
        /// The rank that was to be started.
        rank: u32,
        /// The program.
        program: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl LaunchError {
    /// The exit code that shells and `mpirun` give to this.
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

/// What to start, and how. Runs in the calling thread, which must be the process's main thread or live as long as the
/// job: ranks die with the thread that started them.
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
    /// A job of `ranks` (at least 1) processes of `program`, found as a shell would find it.
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

    /// Arguments of the program.
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// A variable for the ranks, over those that they inherit.
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Where ranks may run.
    pub fn bind(mut self, bind: Bind) -> Self {
        self.bind = bind;
        self
    }

    /// Whether each line of the ranks' output begins with `[rank] `.
    pub fn tag_output(mut self, tag: bool) -> Self {
        self.tag_output = tag;
        self
    }

    /// Whether the other ranks go on when one has failed.
    pub fn keep_going(mut self, keep_going: bool) -> Self {
        self.keep_going = keep_going;
        self
    }

    /// How long ranks have between SIGTERM and SIGKILL.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }
}
