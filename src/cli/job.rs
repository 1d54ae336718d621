//! Commands that are a job of themselves: started as one process, they start the ranks.

use std::process::ExitCode;

use cableway::launcher::{Bind, Launcher};
use cableway::{StartedBy, World};

use super::Failure;
use super::parameters::ParameterOptions;

/// What became of this process.
pub(super) enum Joined {
    /// It is a rank.
    Member(World),
    /// It started the ranks, which have ended with this code.
    Ended(ExitCode),
}

impl Joined {
    /// Has a rank do its part of the job. What went wrong is said before the job is left: peers that hear of that end
    /// with an error of their own, for which the launcher ends whoever is still there.
    pub(super) fn play(self, part: impl FnOnce(&World) -> Result<(), Failure>) -> ExitCode {
        match self {
            Joined::Member(world) => part(&world).map_or_else(Failure::report, |()| ExitCode::SUCCESS),
            Joined::Ended(code) => code,
        }
    }
}

/// Joins the job that this process was started in, or runs this very command as a job of `ranks`.
pub(super) fn join(options: &ParameterOptions, btl: Option<&str>, ranks: u32) -> Result<Joined, Failure> {
    // Before any process is started, so that what is wrong is said once.
    let parameters = options.resolve_with(btl)?;
    if StartedBy::detect() == StartedBy::Nobody && ranks > 1 {
        return launch(ranks).map(Joined::Ended);
    }
    let mut world = World::options().map_err(Failure::usage)?.parameters(parameters);
    if let Some(folder) = options.cuda_libdir() {
        world = world.device_library(folder);
    }
    let world = world.init().map_err(|error| Failure::failed(1, error))?;
    if world.size() != ranks {
        let size = world.size();
        return Err(Failure::usage(format!("this job has {size} ranks; this command takes {ranks}")));
    }
    Ok(Joined::Member(world))
}

fn launch(ranks: u32) -> Result<ExitCode, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::failed(1, format!("finding myself: {error}")))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bind = if cores >= ranks as usize { Bind::Core } else { Bind::None };
    let launcher = Launcher::new(ranks, program).arguments(std::env::args_os().skip(1)).bind(bind);
    launcher.run().map(ExitCode::from).map_err(|error| Failure::failed(error.exit_code(), error))
}
