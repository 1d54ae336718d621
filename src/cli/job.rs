//! Commands that run as a job: started as one process, they start the ranks themselves.

use std::process::ExitCode;

use cableway::launcher::{Bind, Launcher};
use cableway::{StartedBy, World};

use super::Failure;
use super::parameters::ParameterOptions;

/// The role of this process in the command's job.
pub(super) enum Joined {
    /// This process is a rank.
    Member(World),
    /// This process started the ranks, which have ended with this exit code.
    Ended(ExitCode),
}

impl Joined {
    /// Runs `part` if this process is a rank. Logs its error before leaving the job: peers fail when a rank leaves, and
    /// the launcher then ends the remaining ranks.
    pub(super) fn play(self, part: impl FnOnce(&World) -> Result<(), Failure>) -> ExitCode {
        match self {
            Joined::Member(world) => part(&world).map_or_else(Failure::report, |()| ExitCode::SUCCESS),
            Joined::Ended(code) => code,
        }
    }
}

/// How many ranks a command's job has.
#[derive(Clone, Copy)]
pub(super) enum Ranks {
    Exactly(u32),
    /// So many if the command starts them. A job that it was started in may have any number.
    Any(u32),
}

/// The job that a command runs as.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) ranks: Ranks,
    /// Each rank has a core of its own, if there are enough. Ranks with threads of their own need more.
    pub(super) on_cores: bool,
}

/// Joins the job that this process was started in, or runs this command again as a job.
pub(super) fn join(options: &ParameterOptions, btl: Option<&str>, job: Job) -> Result<Joined, Failure> {
    let (Ranks::Exactly(ranks) | Ranks::Any(ranks)) = job.ranks;
    // Checked before any process is started, so that an error is reported once.
    let parameters = options.resolve_with(btl)?;
    if StartedBy::detect() == StartedBy::Nobody && ranks > 1 {
        return launch(ranks, job.on_cores).map(Joined::Ended);
    }
    let mut world = World::options().map_err(Failure::usage)?.parameters(parameters);
    for folder in options.libdirs() {
        world = world.device_library(folder);
    }
    let world = world.init().map_err(|error| Failure::failed(1, error))?;
    if matches!(job.ranks, Ranks::Exactly(_)) && world.size() != ranks {
        let size = world.size();
        return Err(Failure::usage(format!("this job has {size} ranks; this command takes {ranks}")));
    }
    Ok(Joined::Member(world))
}

fn launch(ranks: u32, on_cores: bool) -> Result<ExitCode, Failure> {
    let program =
        std::env::current_exe().map_err(|error| Failure::failed(1, format!("finding this executable: {error}")))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bind = if on_cores && cores >= ranks as usize { Bind::Core } else { Bind::None };
    let launcher = Launcher::new(ranks, program).arguments(std::env::args_os().skip(1)).bind(bind);
    launcher.run().map(ExitCode::from).map_err(|error| Failure::failed(error.exit_code(), error))
}
